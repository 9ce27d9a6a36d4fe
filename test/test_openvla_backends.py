"""The fast backends against the plain one: token by token, over frames, resets and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip('torch', reason='the backends are written in it')

from openvla_rig import config_of, frames, model_of  # noqa: E402

from vla_ros.policies.openvla.backend import Backend, Frame  # noqa: E402
from vla_ros.policies.openvla.backends import BACKENDS, BackendOptions, make_backend  # noqa: E402
from vla_ros.policies.openvla.baseline import Baseline  # noqa: E402
from vla_ros.policies.openvla.config import OpenVlaConfig, small, tiny  # noqa: E402

torch.set_num_threads(1)
BUCKETS = (16, 32)
KINDS = {'graph': ('graph', False), 'jacobi': ('jacobi', False),
         'actionflow': ('actionflow', False), 'overlapping': ('actionflow', True)}
LAGS = {'graph': 0, 'jacobi': 0, 'actionflow': 6, 'overlapping': 7}
PLAIN = ('graph', 'jacobi')
CONFIG = config_of()


def make(kind: str, config: OpenVlaConfig = CONFIG, precision: str = 'fp32', seed: int = 0,
         consume: bool = False, **options: Any) -> Backend:
    name, overlap = KINDS[kind]
    return make_backend(name, model_of(config, seed), precision,
                        BackendOptions(**{'buckets': BUCKETS, 'overlap': overlap, **options}),
                        consume)


def baseline_ids(seen: list[Frame], config: OpenVlaConfig = CONFIG, seed: int = 0
                 ) -> list[NDArray[np.int64]]:
    backend = Baseline(model_of(config, seed))
    return [backend.step(frame) for frame in seen]


def check_stream(backend: Backend, seen: list[Frame], wanted: list[NDArray[np.int64]]) -> None:
    """Nothing for the first frames, then the action of the frame `lag` before, each time."""
    for number, frame in enumerate(seen):
        ids = backend.step(frame)
        if number < backend.lag:
            assert ids is None
        else:
            assert ids is not None
            assert ids.dtype == np.int64
            assert ids.tolist() == wanted[number - backend.lag].tolist(), f'frame {number}'


@pytest.fixture(scope='module')
def hundred() -> tuple[list[Frame], list[NDArray[np.int64]]]:
    """Frames of ten and more instructions in both buckets, and what the baseline says."""
    seen = frames(CONFIG, 100, longest=32)
    return seen, baseline_ids(seen)


# --- equal answers -------------------------------------------------------------------------------


def test_what_is_compared_is_worth_it(hundred: tuple[Any, Any]) -> None:
    """Frames of many lengths, answers that differ, and no tie that rounding could decide."""
    seen, wanted = hundred
    lengths = {len(frame.ids) for frame in seen}
    assert len(lengths) > 10
    assert min(lengths) < BUCKETS[0] < max(lengths) <= BUCKETS[1]
    table = np.array(wanted)
    assert sum(len(np.unique(column)) for column in table.T) > 150
    # Most tokens of two frames with one instruction differ: images and state tell too.
    assert np.mean([table[i] == table[i + 1] for i in range(99) if (i + 1) % 5]) < 0.5
    baseline = Baseline(model_of(CONFIG))
    for frame, ids in zip(seen, wanted, strict=True):
        logits = np.sort(baseline.teacher_logits(frame, ids), 1)
        assert (logits[:, -1] - logits[:, -2]).min() > 1e-4


@pytest.mark.parametrize('kind', KINDS)
def test_tokens_equal_the_baseline_over_100_frames_with_a_reset_among_them(
        kind: str, hundred: tuple[Any, Any]) -> None:
    seen, wanted = hundred
    backend = make(kind)
    assert backend.lag == LAGS[kind]
    check_stream(backend, seen[:43], wanted[:43])
    backend.reset()
    check_stream(backend, seen[43:], wanted[43:])


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('config', [
    config_of(images=1, state=0), config_of(images=3, state=0, heads=4, kv_heads=2),
    config_of(images=1, state=7, horizon=2, dimensions=3), config_of(dimensions=2),
    config_of(dimensions=1)],
    ids=['no state', 'grouped', 'chunks', 'two tokens', 'one token'])
def test_tokens_equal_the_baseline_for_other_policies(kind: str, config: OpenVlaConfig) -> None:
    """Without state, with grouped queries, chunks of two steps, one token only."""
    seen = frames(config, 9, seed=1)
    backend = make(kind, config, seed=1)
    assert backend.lag == config.actions.tokens - 1 + (kind == 'overlapping') \
        if kind not in PLAIN else not backend.lag
    check_stream(backend, seen, baseline_ids(seen, config, seed=1))


@pytest.mark.parametrize('kind', KINDS)
def test_images_of_another_size_are_resized_as_the_baseline_does(kind: str) -> None:
    seen = frames(CONFIG, 10, size=(21, 40))
    backend = make(kind, image=(21, 40))
    backend.warm_up(lambda line: None)
    check_stream(backend, seen, baseline_ids(seen))


@pytest.mark.parametrize('kind', KINDS)
def test_what_the_ring_held_before_is_not_seen(kind: str, hundred: tuple[Any, Any]) -> None:
    """Frames of long prompts leave more rows behind than short ones overwrite."""
    seen, wanted = hundred
    order = sorted(range(100), key=lambda number: -len(seen[number].ids))
    backend = make(kind)
    chosen = order[:8] + order[-8:]
    check_stream(backend, [seen[number] for number in chosen], [wanted[n] for n in chosen])


@pytest.mark.parametrize('kind', KINDS)
def test_after_a_reset_nothing_of_before_is_left(kind: str, hundred: tuple[Any, Any]) -> None:
    seen, wanted = hundred
    backend, fresh = make(kind), make(kind)
    for frame in seen[:10]:
        backend.step(frame)
    backend.reset()
    for frame in seen[20:30]:
        found, expected = backend.step(frame), fresh.step(frame)
        assert (found is None) == (expected is None)
        assert found is None or found.tolist() == expected.tolist()
        assert backend.passes == fresh.passes
    first = make(kind)
    first.step(seen[31])
    backend.step(seen[31])
    backend.reset()
    backend.step(seen[31])  # what was answered last is no guess any more
    assert backend.passes == first.passes
    assert kind != 'jacobi' or backend.passes > 1.0


@pytest.mark.parametrize('kind', KINDS)
def test_a_frame_that_is_not_finite_does_not_spoil_those_after_it(kind: str,
                                                                  hundred: tuple[Any, Any]) -> None:
    """It has the longest prompt: what it leaves in the ring is not written over at once."""
    seen, wanted = hundred
    rng = np.random.default_rng(0)
    broken = replace(seen[0], ids=np.array([1, *rng.integers(6, 40, 30), 5]),
                     state=np.full(CONFIG.state, np.nan, np.float32))
    short = min(range(0, 100, 5), key=lambda number: len(seen[number].ids))
    assert len(seen[short].ids) < 10
    backend, stream = make(kind), [broken, *seen[short:short + 5], *seen[:12]]
    answers = [None, *wanted[short:short + 5], *wanted[:12]]
    for number, frame in enumerate(stream):
        ids = backend.step(frame)
        if ids is not None and number > backend.lag:
            assert ids.tolist() == answers[number - backend.lag].tolist()


@pytest.mark.parametrize('kind', KINDS)
def test_warm_up_reports_each_bucket_and_leaves_nothing_behind(kind: str,
                                                               hundred: tuple[Any, Any]) -> None:
    seen, wanted = hundred
    lines: list[str] = []
    backend = make(kind)
    backend.warm_up(lines.append)
    assert [line for line in lines if 'prompts of up to' in line] == [
        'capturing the pass for prompts of up to 16 tokens (1 of 2)',
        'capturing the pass for prompts of up to 32 tokens (2 of 2)']
    check_stream(backend, seen[:9], wanted[:9])


@pytest.mark.parametrize('kind', KINDS)
def test_a_model_that_is_used_up_is_empty_and_the_answers_are_the_same(
        kind: str, hundred: tuple[Any, Any]) -> None:
    seen, wanted = hundred
    name, overlap = KINDS[kind]
    model = model_of(CONFIG)
    options = BackendOptions(buckets=BUCKETS, overlap=overlap)
    kept = make_backend(name, model, 'fp32', options)
    assert all(layer.mlp.up_proj.weight.numel() for layer in model.language_model.model.layers)
    check_stream(kept, seen[:9], wanted[:9])
    backend = make_backend(name, model, 'fp32', options, consume=True)
    for layer in model.language_model.model.layers:
        linear = [part for part in layer.modules() if isinstance(part, torch.nn.Linear)]
        assert len(linear) == 7
        assert not any(part.weight.numel() for part in linear)
    check_stream(backend, seen[:11], wanted[:11])


# --- told tokens, stages -------------------------------------------------------------------------


@pytest.mark.parametrize('kind', KINDS)
def test_teacher_logits_equal_the_baselines(kind: str, hundred: tuple[Any, Any]) -> None:
    """Told the baseline's tokens, and others; in the middle of a stream, which begins anew."""
    seen, wanted = hundred
    baseline, backend = Baseline(model_of(CONFIG)), make(kind)
    rng = np.random.default_rng(0)
    actions = CONFIG.actions
    for number in (0, 30, 60):
        backend.step(seen[number + 1])
        for ids in (wanted[number], rng.integers(actions.first, actions.top, actions.tokens)):
            found = backend.teacher_logits(seen[number], ids)
            assert found.shape == (actions.tokens, actions.bins)
            assert found.dtype == np.float32
            assert np.abs(found - baseline.teacher_logits(seen[number], ids)).max() <= 1e-4
        assert (baseline.teacher_logits(seen[number], wanted[number]).argmax(1) + actions.first
                ).tolist() == wanted[number].tolist()
    check_stream(backend, seen[:10], wanted[:10])


@pytest.mark.parametrize('kind', KINDS)
def test_stages_are_named_and_measuring_them_leaves_nothing_behind(
        kind: str, hundred: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from vla_ros.policies.openvla.captured import Captured
    seen, wanted = hundred
    called: list[object] = []

    def once(work: Any, device: Any, times: int = 30) -> float:
        work()
        called.append(device)
        return 1.5

    monkeypatch.setattr(Captured, 'milliseconds', once)
    backend = make(kind)
    backend.step(seen[50])
    found = backend.stages()
    names = {'vision_ms', 'prefill_ms', 'decode_ms_per_token'}
    assert set(found) == names | (set() if kind in PLAIN else {'packed_ms'})
    assert set(found.values()) == {1.5}
    assert len(called) == len(found)
    check_stream(backend, seen[:9], wanted[:9])


def test_milliseconds_are_those_of_a_call() -> None:
    from vla_ros.policies.openvla.captured import Captured
    calls: list[int] = []
    captured = Captured(lambda: calls.append(torch.is_inference_mode_enabled()),
                        torch.device('cpu'))
    assert calls == []
    assert captured.milliseconds(torch.device('cpu'), times=5) >= 0.0
    assert calls == [True] * 5


# --- jacobi --------------------------------------------------------------------------------------


def test_jacobi_needs_1_to_k_passes_and_fewer_for_what_repeats(hundred: tuple[Any, Any]) -> None:
    seen, wanted = hundred
    backend = make('jacobi')
    count = []
    for frame, ids in zip(seen[:40], wanted, strict=False):
        assert backend.step(frame).tolist() == ids.tolist()  # type: ignore[union-attr]
        count.append(backend.passes)
        assert backend.step(frame).tolist() == ids.tolist()  # type: ignore[union-attr]
        assert backend.passes == 1.0
    assert all(1.0 <= passes <= CONFIG.actions.tokens for passes in count)
    assert max(count) > 2.0
    assert len(set(count)) > 1


def test_jacobi_takes_a_pass_more_where_the_guess_is_wrong_later(hundred: tuple[Any, Any]) -> None:
    """The guess is right up to a place: what follows the first wrong one is corrected too."""
    seen, wanted = hundred
    backend: Any = make('jacobi')
    tokens = CONFIG.actions.tokens
    for place in range(tokens):
        guess = wanted[7].copy()
        guess[place] += -1 if guess[place] > CONFIG.actions.first else 1
        backend.reset()
        backend._guess.copy_(torch.from_numpy(guess))
        backend.outputs.host['ids'][:] = guess
        assert backend.step(seen[7]).tolist() == wanted[7].tolist()
        if place == tokens - 1:
            assert backend.passes == 1.0  # nothing was told the last token
        else:
            assert 2.0 <= backend.passes <= tokens - place


# --- refused -------------------------------------------------------------------------------------


def refusal(action: Any, *arguments: Any) -> str:
    with pytest.raises(ValueError) as caught:
        action(*arguments)
    text = str(caught.value)
    assert '\n' not in text
    return text


@pytest.mark.parametrize('kind', KINDS)
def test_a_frame_that_is_refused_leaves_the_stream_as_it_was(kind: str,
                                                             hundred: tuple[Any, Any]) -> None:
    seen, wanted = hundred
    rng = np.random.default_rng(0)
    broken = {
        'instruction: 33 tokens with its prompt; at most 32 fit the buckets':
            replace(seen[0], ids=np.ones(33, np.int64)),
        r'images: [2, 28, 56, 3]: the buffers were made for [2, 28, 28, 3]':
            replace(seen[0], images=rng.integers(0, 256, (2, 28, 56, 3), np.uint8)),
        r'images: [1, 28, 28, 3]: the buffers were made for [2, 28, 28, 3]':
            replace(seen[0], images=seen[0].images[:1]),
        'state: missing: the policy takes 3 values': replace(seen[0], state=None)}
    backend = make(kind)
    for number, frame in enumerate(seen[:20]):
        if number in (0, 1, 5, 12):
            for line, bad in broken.items():
                assert line in refusal(backend.step, bad)
        ids = backend.step(frame)
        if number < backend.lag:
            assert ids is None
        else:
            assert ids is not None
            assert ids.tolist() == wanted[number - backend.lag].tolist()


@pytest.mark.parametrize('kind', KINDS)
def test_prompts_of_exactly_a_bucket_fit(kind: str) -> None:
    rng = np.random.default_rng(0)
    seen = [replace(frame, ids=np.array([1, *rng.integers(6, 40, size - 2), 5]))
            for frame, size in zip(frames(CONFIG, 12), (16, 17, 32) * 4, strict=True)]
    check_stream(make(kind), seen, baseline_ids(seen))


def test_what_cannot_be_built_is_refused_in_one_line() -> None:
    model = model_of(CONFIG)
    for name, precision, options, line in (
            ('eager', 'fp32', {}, 'backend: eager: the family openvla has baseline, graph'),
            ('baseline', 'int8-weight', {}, 'baseline is plain: it runs in fp32, fp16 and bf16'),
            ('graph', 'bf16', {}, 'precision: bf16: the weights were loaded as float32'),
            ('graph', 'int3', {}, 'precision: int3: allowed are fp32'),
            ('graph', 'fp32', {'prefill_precision': 'fp8'}, 'prefill_precision: fp8: only with'),
            ('graph', 'int8-weight', {'prefill_precision': 'int4'}, 'allowed are default, bf16'),
            ('graph', 'fp32', {'buckets': (4, 32)}, 'buckets: 4: allowed is 8 to 2048 tokens'),
            ('actionflow', 'fp32', {'buckets': (200,)}, 'buckets: 200: the prompt, the images')):
        assert line in refusal(make_backend, name, model, precision, BackendOptions(**options))


def test_longest_prompt_and_action_must_fit_the_positions_of_the_model() -> None:
    config = replace(CONFIG, llama=replace(CONFIG.llama, positions=32 + 9 + 7))
    make('graph', config)
    config = replace(CONFIG, llama=replace(CONFIG.llama, positions=32 + 9 + 6))
    assert 'take 48 positions; the model has 47' in refusal(make, 'graph', config)


# --- precisions ----------------------------------------------------------------------------------


@pytest.mark.parametrize('precision', ['fp8', 'int8-weight', 'int4-weight'])
@pytest.mark.parametrize('kind', KINDS)
def test_quantized_weights_change_logits_a_little_and_alike_in_all_backends(
        precision: str, kind: str, hundred: tuple[Any, Any]) -> None:
    seen, wanted = hundred
    baseline, backend = Baseline(model_of(CONFIG)), make(kind, precision=precision)
    plain = baseline.teacher_logits(seen[3], wanted[3])
    error = np.abs(backend.teacher_logits(seen[3], wanted[3]) - plain)
    assert 1e-4 < error.max()
    assert error.mean() < {'fp8': 0.1, 'int8-weight': 0.03, 'int4-weight': 0.3}[precision]
    if kind in PLAIN:  # one token a pass and all in one differ by the format of the prompt's pass
        ids = backend.step(seen[3])
        assert ids is not None
        assert ((ids >= CONFIG.actions.first) & (ids < CONFIG.actions.top)).all()


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
@pytest.mark.parametrize('name', BACKENDS)
def test_half_precision_runs_and_stays_near(dtype: str, name: str,
                                            hundred: tuple[Any, Any]) -> None:
    seen, wanted = hundred
    model = model_of(CONFIG).to(getattr(torch, dtype))
    backend = make_backend(name, model, {'bfloat16': 'bf16', 'float16': 'fp16'}[dtype],
                           BackendOptions(buckets=BUCKETS))
    plain = Baseline(model_of(CONFIG)).teacher_logits(seen[2], wanted[2])
    found = backend.teacher_logits(seen[2], wanted[2])
    assert found.dtype == np.float32
    assert np.abs(found - plain).max() < (0.3 if dtype == 'bfloat16' else 0.05)
    answers = [backend.step(frame) for frame in seen[:9]]
    assert answers[-1] is not None


def test_shipped_and_tiny_sizes_fit_the_usual_buckets() -> None:
    for config, most in ((small(), 512), (tiny(), 128)):
        assert config.llama.positions == most
        assert config.prefix_tokens(64) + config.actions.tokens <= most
