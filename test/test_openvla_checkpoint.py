"""Weights in and out in Hugging Face's layout; one line for whatever is wrong."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='the loader of the weights needs it')
safetensors = pytest.importorskip('safetensors.torch')

from vla_ros.policies.openvla import checkpoint  # noqa: E402
from vla_ros.policies.openvla.config import published, tiny  # noqa: E402
from vla_ros.policies.openvla.hf_config import write_config  # noqa: E402

SHARD = 60_000  # bytes: some ten files
NAME = 'language_model.model.layers.1.mlp.up_proj.weight'
SCALE = 'vision_backbone.featurizer.blocks.0.ls1.scale_factor'
ONE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'


@pytest.fixture(scope='module')
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one file and one of several, of the same weights."""
    top = tmp_path_factory.mktemp('openvla')
    model = checkpoint.random_checkpoint(top / 'one', tiny(state=3), seed=1)
    checkpoint.save(top / 'many', model, SHARD)
    return top


@pytest.fixture
def one(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / 'one', tmp_path / 'one'))


@pytest.fixture
def many(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / 'many', tmp_path / 'many'))


def load(folder: Path, **options: Any) -> Any:
    return checkpoint.load(folder, **{'dtype': torch.float32, **options})


def state(folder: Path, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = load(folder, **options).state_dict()
    return found


def rewrite(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = safetensors.load_file(file)
    change(tensors)
    safetensors.save_file(tensors, file)


def refusal(folder: Path, line: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        load(folder, **options)
    text = str(caught.value)
    assert text.startswith(str(folder))
    assert '\n' not in text
    assert len(text) < 700


# --- round trips ---------------------------------------------------------------------------------


def test_the_names_are_those_of_the_published_checkpoint(one: Path) -> None:
    names = set(safetensors.load_file(one / ONE))
    for name in (
            'vision_backbone.featurizer.cls_token', 'vision_backbone.featurizer.reg_token',
            'vision_backbone.featurizer.pos_embed',
            'vision_backbone.featurizer.patch_embed.proj.weight',
            'vision_backbone.featurizer.blocks.1.attn.qkv.bias',
            'vision_backbone.featurizer.blocks.1.ls2.scale_factor',
            'vision_backbone.fused_featurizer.blocks.2.mlp.fc2.weight',
            'projector.fc3.bias', 'language_model.model.embed_tokens.weight',
            'language_model.model.layers.2.self_attn.o_proj.weight',
            'language_model.model.layers.2.post_attention_layernorm.weight',
            'language_model.model.norm.weight', 'language_model.lm_head.weight',
            'proprio_projector.fc2.weight'):
        assert name in names
    assert not any('blocks.2' in name for name in names if '.featurizer' in name)


def test_weights_come_back_as_they_were_from_one_file_and_from_many(one: Path, many: Path) -> None:
    stored = safetensors.load_file(one / ONE)
    assert len(list(many.glob('*.safetensors'))) > 4
    for folder in (one, many):
        model = load(folder)
        assert not model.training
        assert model.config == tiny(state=3)
        found = model.state_dict()
        assert found.keys() == stored.keys()
        assert all(torch.equal(found[name], stored[name]) for name in stored)
        assert all(value.device.type == 'cpu' for value in model.parameters())


def test_the_index_is_that_of_hugging_face(many: Path) -> None:
    index = json.loads((many / INDEX).read_text())
    files = sorted(many.glob('model-*.safetensors'))
    assert [file.name for file in files] == [
        f'model-{i:05}-of-{len(files):05}.safetensors' for i in range(1, len(files) + 1)]
    inside = {name: file.name for file in files for name in safetensors.load_file(file)}
    assert index['weight_map'] == inside
    assert index['metadata']['total_size'] == sum(
        value.nbytes for file in files for value in safetensors.load_file(file).values())
    # 8 bytes of length and a header come before the tensors.
    assert all(len(safetensors.load_file(file)) == 1 or file.stat().st_size < SHARD + 5000
               for file in files)
    with safetensors.safe_open(files[0], framework='pt') as opened:
        assert opened.metadata() == {'format': 'pt'}


@pytest.mark.parametrize('name', ['one', 'many'])
def test_equal_weights_make_equal_files(made: Path, name: str, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / 'again', load(made / name), SHARD if name == 'many' else 10**9)
    names = sorted(file.name for file in (made / name).iterdir())
    assert names == sorted(file.name for file in (tmp_path / 'again').iterdir())
    for file in (made / name).iterdir():
        if file.name != 'config.json':
            assert (tmp_path / 'again' / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16', 'float32'])
def test_weights_can_be_stored_and_loaded_in_each_precision(one: Path, dtype: str,
                                                            tmp_path: Path) -> None:
    kind, full = getattr(torch, dtype), state(one)
    checkpoint.save(tmp_path / 'new', load(one), SHARD, dtype=kind)
    stored = [value for file in (tmp_path / 'new').glob('*.safetensors')
              for value in safetensors.load_file(file).values()]
    assert {value.dtype for value in stored} == {kind}
    assert json.loads((tmp_path / 'new/config.json').read_text())['torch_dtype'] == dtype
    wide = state(tmp_path / 'new')
    assert all(torch.equal(wide[name], full[name].to(kind).float()) for name in full)
    narrow = state(one, dtype=kind)
    assert {value.dtype for value in narrow.values()} == {kind}
    assert all(torch.equal(narrow[name], full[name].to(kind)) for name in full)


def test_a_new_checkpoint_leaves_nothing_of_the_old_weights(many: Path) -> None:
    (many / 'tokenizer.json').write_text('{}')
    model = load(many)
    checkpoint.save(many, model)
    assert sorted(file.name for file in many.iterdir()) == [
        'config.json', ONE, 'tokenizer.json']
    checkpoint.save(many, model, SHARD)
    assert not (many / ONE).exists()
    assert load(many).config == model.config


def test_a_checkpoint_that_was_not_written_to_its_end_is_refused(
        many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(many)

    def full(*_: object) -> None:
        raise ValueError('disk full')
    monkeypatch.setattr(checkpoint, 'write_config', full)
    with pytest.raises(ValueError, match='disk full'):
        checkpoint.save(many, model, 2 * SHARD)
    refusal(many, r'config\.json: cannot be read')


def test_a_loaded_policy_does_not_need_its_files_any_more(one: Path) -> None:
    model = load(one)
    before = model.state_dict()[NAME].clone()
    with (one / ONE).open('r+b') as file:
        file.truncate(100)
    assert torch.equal(model.state_dict()[NAME], before)


def test_what_can_be_stored_is_only_floating(one: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='dtype: int8: allowed are float32, float16, bfloat16'):
        checkpoint.save(tmp_path / 'new', load(one), dtype=torch.int8)


# --- what published checkpoints have besides -----------------------------------------------------


def test_tensors_that_no_pass_needs_are_skipped(one: Path) -> None:
    last = {'featurizer': 2, 'fused_featurizer': 3}
    dead = {f'vision_backbone.{tower}.{name}': torch.full((3,), torch.nan)
            for tower, block in last.items()
            for name in ('norm.weight', 'norm.bias', f'blocks.{block}.attn.qkv.weight',
                         f'blocks.{block}.norm1.bias', f'blocks.{block}.ls1.scale_factor')}
    dead |= {f'vision_backbone.fused_featurizer.attn_pool.{name}': torch.ones(2)
             for name in ('latent', 'q.weight', 'kv.bias', 'mlp.fc1.weight', 'norm.weight')}
    dead['language_model.model.layers.0.self_attn.rotary_emb.inv_freq'] = torch.ones(16)
    before = state(one)
    rewrite(one / ONE, lambda tensors: tensors.update(dead))
    after = state(one)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_block_beyond_the_last_is_not_taken_for_it(one: Path) -> None:
    extra = 'vision_backbone.featurizer.blocks.3.norm1.bias'
    rewrite(one / ONE, lambda tensors: tensors.update({extra: torch.ones(32)}))
    refusal(one, f'{extra}: unknown tensor')


def test_the_scales_of_timm_go_by_their_own_name(one: Path) -> None:
    before = state(one)
    rewrite(one / ONE, lambda tensors: tensors.update(
        {SCALE.replace('scale_factor', 'gamma'): tensors.pop(SCALE)}))
    assert torch.equal(state(one)[SCALE], before[SCALE])
    rewrite(one / ONE, lambda tensors: tensors.update({SCALE: before[SCALE].clone()}))
    refusal(one, f'{SCALE} is there too|gamma: .*is there too')


def test_parts_that_other_files_hold_stay_empty(one: Path) -> None:
    rewrite(one / ONE, lambda tensors: [
        tensors.pop(name) for name in list(tensors) if name.startswith('proprio_projector.')])
    refusal(one, r'proprio_projector\.fc1\.weight: missing')
    model = load(one, elsewhere=('proprio_projector.',))
    assert {name for name, value in model.named_parameters() if value.is_meta} == {
        f'proprio_projector.{layer}.{kind}' for layer in ('fc1', 'fc2')
        for kind in ('weight', 'bias')}


# --- hostile files -------------------------------------------------------------------------------


def infinite(tensor: Any) -> Any:
    return torch.where(torch.arange(tensor.numel()).view(tensor.shape) == 3, torch.inf, tensor)


def renamed(tensors: dict[str, Any]) -> None:
    tensors[NAME.replace('up_proj', 'upproj')] = tensors.pop(NAME)


def replaced(change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(tensors: dict[str, Any]) -> None:
        tensors[NAME] = change(tensors[NAME]).contiguous()
    return apply


@pytest.mark.parametrize(('change', 'line'), [
    (lambda tensors: tensors.pop(NAME), f'{NAME}: missing: config.json asks for it; copy'),
    (renamed, f"{NAME}: missing: .*; is '{NAME.replace('up_proj', 'upproj')}' meant to be it"),
    (lambda tensors: tensors.update(extra=torch.zeros(1)), 'extra: unknown tensor: config.json'),
    (lambda tensors: tensors.update({'x' * 500 + str(i): torch.zeros(1) for i in range(3)}),
     r'xxx: unknown tensor \(3 such tensors\)'),
    (replaced(lambda tensor: tensor[:, 1:]), rf'{NAME}: shape \[96, 63\]: \[96, 64\] is needed'),
    (replaced(lambda tensor: tensor.to(torch.int32)), f'{NAME}: I32: allowed are F32, F16, BF16'),
    (replaced(lambda tensor: tensor.to(torch.int8)), f'{NAME}: I8: .*quantized when it is loaded'),
    (replaced(infinite), f'{NAME}: it holds numbers that are not finite in float32'),
])
def test_what_is_wrong_with_a_tensor_is_told_in_one_line(
        change: Callable[[dict[str, Any]], object], line: str, one: Path) -> None:
    rewrite(one / ONE, change)
    refusal(one, line)


def test_numbers_that_are_not_finite_pass_where_nobody_asks(one: Path) -> None:
    rewrite(one / ONE, replaced(infinite))
    assert torch.isinf(state(one, check_finite=False)[NAME]).sum() == 1


def test_numbers_too_large_for_the_precision_are_refused(one: Path) -> None:
    rewrite(one / ONE, replaced(lambda tensor: tensor + 1e6))
    refusal(one, f'{NAME}: it holds numbers that are not finite in float16.*bf16 or fp32',
            dtype=torch.float16)


def test_a_missing_file_is_named_with_who_asks_for_it(many: Path) -> None:
    next(iter(sorted(many.glob('*.safetensors')))).unlink()
    refusal(many, r'model-00001-of-\d+.safetensors: no such file; .*index.json names it')


@pytest.mark.parametrize(('name', 'line'), [
    ('../one/model.safetensors', 'allowed is the name of a safetensors file in the same folder'),
    ('/etc/passwd', 'allowed is the name of'), (3, 'weight_map.*: 3: allowed is the name'),
    ('model.bin', 'allowed is the name of'), ('other.safetensors', 'other.safetensors: no such')])
def test_an_index_that_points_elsewhere_is_refused(many: Path, name: Any, line: str) -> None:
    index = json.loads((many / INDEX).read_text())
    index['weight_map'][NAME] = name
    (many / INDEX).write_text(json.dumps(index))
    refusal(many, line)


@pytest.mark.parametrize(('text', 'line'), [
    ('{', 'not JSON'), ('{}', 'weight_map: a mapping'), ('{"weight_map": []}', 'weight_map: a map'),
    ('[1]', 'must hold a mapping')])
def test_an_index_that_is_none_is_refused(many: Path, text: str, line: str) -> None:
    (many / INDEX).write_text(text)
    refusal(many, f'index.json: .*{line}')


def test_a_tensor_in_two_files_is_refused(many: Path) -> None:
    files = sorted(many.glob('*.safetensors'))
    name = next(iter(safetensors.load_file(files[0])))
    rewrite(files[1], lambda tensors: tensors.update({name: torch.zeros(1)}))
    refusal(many, f'{name}: it is in model-00001')


@pytest.mark.parametrize(('content', 'line'), [
    (b'', 'not a whole safetensors file'), (b'\x10\0\0\0\0\0\0\0{}', 'not a whole safetensors'),
    (b'\xff' * 64, 'the header goes beyond its end'),
    (struct.pack('<Q', 2) + b'[]', 'the header is no mapping'),
    (struct.pack('<Q', 4) + b'\xff\xfe\xfd\xfc', 'not a whole safetensors file'),
    (struct.pack('<Q', 8) + b'{"a": 3}', 'a: its entry in the header makes no sense'),
    (b'version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n', 'run git lfs pull'),
    (None, 'no such file; a checkpoint of openvla has model.safetensors, or')])
def test_a_file_that_is_no_safetensors_is_refused(one: Path, content: bytes | None, line: str
                                                  ) -> None:
    (one / ONE).unlink()
    if content is not None:
        (one / ONE).write_bytes(content)
    refusal(one, line)


@pytest.mark.parametrize('entry', [
    {'dtype': 'F32', 'shape': [-1], 'data_offsets': [0, 4]},
    {'dtype': 'F32', 'shape': [2], 'data_offsets': [4, 0]},
    {'dtype': 'F32', 'shape': [1 << 40, 1 << 40], 'data_offsets': [0, 8]},
    {'dtype': 'F32', 'shape': [True], 'data_offsets': [0, 4]},
    {'dtype': 3, 'shape': [1], 'data_offsets': [0, 4]},
    {'dtype': 'F32', 'shape': 1, 'data_offsets': [0, 4]},
    {'dtype': 'F32', 'shape': [1]}])
def test_a_header_that_lies_is_refused(one: Path, entry: dict[str, Any]) -> None:
    header = json.dumps({'a': entry}).encode()
    (one / ONE).write_bytes(struct.pack('<Q', len(header)) + header + b'\0' * 64)
    refusal(one, 'a: its entry in the header makes no sense')


@pytest.mark.parametrize('cut', [1, 1000, 20_000])
def test_a_truncated_file_is_refused_before_anything_is_loaded(many: Path, cut: int) -> None:
    file = max(many.glob('*.safetensors'), key=lambda found: found.stat().st_size)
    with file.open('r+b') as opened:
        opened.truncate(file.stat().st_size - cut)
    refusal(many, f'{file.name}: not a whole safetensors file')


def test_a_checkpoint_of_pickles_is_refused_with_the_fix(one: Path) -> None:
    (one / ONE).rename(one / 'pytorch_model.bin')
    refusal(one, r'no such file; pytorch_model\.bin is not read: save the policy as safetensors')


def test_another_policy_s_config_is_refused(one: Path, made: Path) -> None:
    write_config(one, tiny())
    refusal(one, r'proprio_projector\.\S+: unknown tensor \(4 such tensors\)')


# --- numbers -------------------------------------------------------------------------------------


def test_the_need_of_memory_is_the_size_of_the_weights(many: Path) -> None:
    stored = sum(value.numel() for value in state(many).values())
    found = checkpoint.needed(many, torch.bfloat16, text=20)
    assert found.weights == 2 * stored
    # BOS and 20 - 1 words, 4 patches, the state, 7 tokens; keys and values of 3 layers of 64.
    assert found.cache == 2 * 3 * 64 * (20 + 4 + 1 + 7) * 2
    assert found.host == max(file.stat().st_size for file in many.glob('*.safetensors'))
    assert found.device == found.weights + found.cache


def test_the_need_of_the_7b_policy_is_the_published_size() -> None:
    found = checkpoint.needed(published(), torch.bfloat16)
    # 7,541,237,184 parameters as published, less what never runs: two blocks, the norms behind
    # them, and the pooling of SigLIP, with its 4304 wide MLP.
    dino = 12 * 1024**2 + (3 + 1 + 4 + 1) * 1024 + 6 * 1024
    siglip = 4 * 1152**2 + 4 * 1152 + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152
    pool = 1152 + 4 * 1152**2 + 4 * 1152 + 2 * 1152 * 4304 + 4304 + 1152 + 2 * 1152
    norms = 2 * 1024 + 2 * 1152
    assert found.weights == 2 * (7_541_237_184 - dino - siglip - pool - norms)
    assert found.cache == 2 * 32 * 4096 * (256 + 64 + 7) * 2
    assert found.host == 0


def test_the_id_of_weights_does_not_depend_on_their_files(one: Path, many: Path) -> None:
    shutil.copy(one / 'config.json', many / 'config.json')
    assert checkpoint.weights_id(one) == checkpoint.weights_id(many)
    assert len(checkpoint.weights_id(one)) == 16


def first(tensors: dict[str, Any]) -> None:
    tensors[NAME][0, 0] += 1


def last(tensors: dict[str, Any]) -> None:
    tensors[NAME][-1, -1] += 1


def slightly(tensors: dict[str, Any]) -> None:
    tensors['language_model.lm_head.weight'] *= 1.001


def half(tensors: dict[str, Any]) -> None:
    tensors[NAME] = tensors[NAME].half()


@pytest.mark.parametrize('change', [first, last, slightly, half, renamed])
def test_other_weights_have_another_id(one: Path, change: Callable[[dict[str, Any]], None]
                                       ) -> None:
    before = checkpoint.weights_id(one)
    rewrite(one / ONE, change)
    assert checkpoint.weights_id(one) != before


def test_another_config_and_other_extras_have_another_id(one: Path) -> None:
    seen = {checkpoint.weights_id(one)}
    (one / 'action_head--1_checkpoint.pt').write_bytes(bytes(5000))
    seen.add(checkpoint.weights_id(one))
    (one / 'action_head--1_checkpoint.pt').write_bytes(bytes(4999) + b'1')
    seen.add(checkpoint.weights_id(one))
    (one / 'config.json').write_text((one / 'config.json').read_text() + ' ')
    seen.add(checkpoint.weights_id(one))
    assert len(seen) == 4


PEAK = """
import sys
from pathlib import Path
import torch
from vla_ros.policies.openvla import checkpoint
torch.set_num_threads(1)

def status(key):
    text = Path('/proc/self/status').read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(key))

folder = Path(sys.argv[1])
checkpoint.load(Path(sys.argv[2]), 'cpu', torch.bfloat16)  # brings in what is imported late
Path('/proc/self/clear_refs').write_text('5')  # the peak begins anew
before = status('VmRSS')
model = checkpoint.load(folder, 'cpu', torch.bfloat16)
print(status('VmHWM') - before, sum(value.nbytes for value in model.state_dict().values()))
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='reads the peak of memory from /proc')
def test_loading_holds_no_more_than_a_shard_besides_the_policy(made: Path, tmp_path: Path) -> None:
    """196 MB in float32 in files of 16 MB: all of them at once would be seen at once."""
    config = tiny()
    config = replace(config, llama=replace(config.llama, width=512, hidden=2048, layers=10))
    checkpoint.random_checkpoint(tmp_path / 'large', config, shard_bytes=16_000_000)
    files = [file.stat().st_size for file in (tmp_path / 'large').glob('*.safetensors')]
    assert len(files) > 8
    assert sum(files) > 150_000_000
    done = subprocess.run([sys.executable, '-c', PEAK, str(tmp_path / 'large'), str(made / 'one')],
                          capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    peak, weights = map(int, done.stdout.split())
    assert weights <= sum(files) / 2
    besides = peak - weights
    assert besides <= 1.2 * max(files) + 4_000_000, (besides, max(files))


def test_drawn_checkpoints_are_those_of_their_seed(one: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        checkpoint.random_checkpoint(tmp_path / str(seed), tiny(state=3), seed)
    content = (one / ONE).read_bytes()
    assert (tmp_path / '1' / ONE).read_bytes() == content
    assert (tmp_path / '2' / ONE).read_bytes() != content
    assert np.isfinite(state(one)[NAME].numpy()).all()
