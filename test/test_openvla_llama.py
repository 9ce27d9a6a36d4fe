"""The language model against Llama of transformers with the same weights."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip('torch', reason='the language model is written in it')
transformers = pytest.importorskip('transformers', reason='it is what is compared with')

from openvla_rig import config_of, model_of  # noqa: E402

from vla_ros.policies.openvla.config import Llama, tiny  # noqa: E402
from vla_ros.policies.openvla.kernels.ops import Rows  # noqa: E402
from vla_ros.policies.openvla.llama import LanguageModel  # noqa: E402
from vla_ros.policies.openvla.precision import precision  # noqa: E402
from vla_ros.policies.openvla.static import StaticLlama  # noqa: E402

torch.set_num_threads(1)
TOLERANCE = 1e-4
SIZES = {'plain': tiny().llama, 'grouped': replace(tiny().llama, heads=4, kv_heads=2),
         'one head of keys': replace(tiny().llama, heads=4, kv_heads=1),
         'other numbers': Llama(300, 48, 80, 2, 3, 3, theta=500_000.0, epsilon=1e-5)}


@pytest.fixture(params=SIZES)
def pair(request: pytest.FixtureRequest) -> tuple[LanguageModel, Any]:
    """Ours, and that of transformers with the very same state_dict."""
    return pair_of(SIZES[request.param])


def pair_of(sizes: Llama) -> tuple[LanguageModel, Any]:
    config = transformers.LlamaConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.width, intermediate_size=sizes.hidden,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads, max_position_embeddings=sizes.positions,
        rms_norm_eps=sizes.epsilon, tie_word_embeddings=False,
        rope_parameters={'rope_type': 'default', 'rope_theta': sizes.theta})
    theirs = transformers.LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in theirs.named_parameters():
            if value.ndim == 1:
                value.uniform_(0.5, 1.5, generator=generator)
            else:
                value.normal_(0.0, 1.0 if 'embed' in name else value.shape[1] ** -0.5,
                              generator=generator)
    ours = LanguageModel(sizes).eval()
    ours.load_state_dict(theirs.state_dict())  # strict: the names are those of the checkpoint
    return ours, theirs


def ids_of(model: LanguageModel, count: int, batch: int = 1, seed: int = 0) -> Any:
    return torch.randint(0, model.sizes.vocabulary, (batch, count),
                         generator=torch.Generator().manual_seed(seed))


def logits_of(model: LanguageModel, ids: Any, *arguments: Any) -> Any:
    return model.lm_head(model(model.model.embed_tokens(ids), *arguments))


@torch.no_grad()
def test_logits_of_a_whole_sequence_are_equal(pair: tuple[LanguageModel, Any]) -> None:
    ours, theirs = pair
    ids = ids_of(ours, 90, batch=2)
    wanted = theirs(ids).logits
    assert wanted.std() > 0.5
    assert (logits_of(ours, ids) - wanted).abs().max() <= TOLERANCE


@torch.no_grad()
def test_logits_token_by_token_with_a_cache_are_equal(pair: tuple[LanguageModel, Any]) -> None:
    ours, theirs = pair
    ids = ids_of(ours, 24)
    cache: list[Any] = []
    known = inspect.signature(theirs.forward).parameters
    past = {'cache' if 'cache' in known else 'past_key_values': transformers.DynamicCache()}
    found = []
    for place in range(24):
        step = ids[:, place:place + 1]
        made = theirs(step, **past, use_cache=True)
        found.append(logits_of(ours, step, cache))
        assert (found[-1] - made.logits).abs().max() <= TOLERANCE
    assert (torch.cat(found, 1) - theirs(ids).logits).abs().max() <= TOLERANCE
    assert len(cache) == ours.sizes.layers
    assert cache[0][0].shape == (1, ours.sizes.kv_heads, 24, ours.sizes.head)


@torch.no_grad()
def test_rows_after_cached_ones_look_back_and_not_ahead(pair: tuple[LanguageModel, Any]) -> None:
    ours, theirs = pair
    ids = ids_of(ours, 30)
    wanted = theirs(ids).logits
    cache: list[Any] = []
    parts = [logits_of(ours, ids[:, start:end], cache)
             for start, end in ((0, 11), (11, 12), (12, 25), (25, 30))]
    assert (torch.cat(parts, 1) - wanted).abs().max() <= TOLERANCE


@torch.no_grad()
def test_without_causality_every_row_sees_every_row(pair: tuple[LanguageModel, Any]) -> None:
    ours, _ = pair
    ids = ids_of(ours, 12)
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % ours.sizes.vocabulary
    for options, moves in (((), False), ((None, None, False), True)):
        difference = (logits_of(ours, ids, *options) - logits_of(ours, changed, *options)).abs()
        assert bool(difference[0, 0].max() > 1e-4) == moves
    mask = torch.ones(12, 12, dtype=torch.bool)
    assert torch.allclose(logits_of(ours, ids, None, mask, False),
                          logits_of(ours, ids, None, None, False), atol=1e-5)


@torch.no_grad()
def test_cut_head_is_the_rows_of_the_actions() -> None:
    config = config_of()
    model = model_of(config)
    hidden = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0))
    whole = model.language_model.lm_head(hidden)
    assert torch.allclose(model.action_logits(hidden), whole[..., 44:300], atol=1e-5)


@pytest.mark.parametrize('grouped', [False, True])
@torch.no_grad()
def test_static_passes_make_the_same_logits(grouped: bool) -> None:
    """A padded prompt in one pass, then one token after the other, in a slot of a ring."""
    config = config_of(heads=4 if grouped else 2)
    model = model_of(config)
    ours, theirs = pair_of(config.llama)
    model.language_model.load_state_dict(ours.state_dict())
    ids = ids_of(ours, 40)
    wanted = theirs(ids).logits[0, :, config.actions.first:config.actions.top]
    static = StaticLlama(model, precision('fp32'), slots=3, length=44)
    static.keys.fill_(7.0)  # of a frame before: must not be seen
    static.values.fill_(7.0)
    padding, slot, told = 6, 2, 31
    positions = torch.tensor([*range(told), *[-1] * padding], dtype=torch.int32)
    at = Rows(positions, torch.full_like(positions, slot))
    x = torch.cat([static.embed(ids[0, :told]), torch.randn(padding, 64)])
    rows = torch.tensor([told - 1, 3])
    found = static.many(x, at, told + padding, rows)
    assert (found - wanted[rows]).abs().max() <= TOLERANCE
    for place in range(told, 40):
        at = Rows(torch.tensor([place], dtype=torch.int32), torch.tensor([slot], dtype=torch.int32))
        found = static.one(static.embed(ids[0, place:place + 1]).clone(), at)
        assert (found - wanted[place]).abs().max() <= TOLERANCE
    # Rows that follow each other in the ring may come in one pass too.
    places = torch.arange(33, 40, dtype=torch.int32)
    found = static.many(static.embed(ids[0, 33:]), Rows(places, torch.full_like(places, slot)), 0,
                        torch.arange(7))
    assert (found - wanted[33:]).abs().max() <= TOLERANCE
    for other in (0, 1):
        assert torch.equal(static.keys[:, other], torch.full_like(static.keys[:, other], 7.0))
    assert torch.equal(static.keys[:, slot, 40:], torch.full_like(static.keys[:, slot, 40:], 7.0))
