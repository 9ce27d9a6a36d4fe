"""config.json: published ones and ours, and whatever can be wrong in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vla_ros.policies.openvla.config import (
    Actions,
    OpenVlaConfig,
    Statistics,
    published,
    small,
    tiny,
)
from vla_ros.policies.openvla.hf_config import read_config, to_json, write_config
from vla_ros.policies.openvla.prompt import VICUNA_TEMPLATE

SEVEN = list(range(7))


def real() -> dict[str, Any]:
    """What config.json of the published 7B policy says, with two made-up datasets."""
    action = {'q01': [-float(i) for i in SEVEN], 'q99': [float(i + 1) for i in SEVEN],
              'min': [-9.0] * 7, 'max': [9.0] * 7, 'mean': [0.0] * 7, 'std': [1.0] * 7,
              'mask': [True] * 6 + [False]}
    proprio = {'q01': [-1.0] * 8, 'q99': [1.0] * 8, 'min': [-2.0] * 8, 'max': [2.0] * 8,
               'mean': [0.0] * 8, 'std': [1.0] * 8}
    bare = {key: value for key, value in action.items() if key != 'mask'}
    return {
        'arch_specifier': 'no-align+fused-gelu-mlp',
        'architectures': ['OpenVLAForActionPrediction'],
        'auto_map': {'AutoConfig': 'configuration_prismatic.OpenVLAConfig'},
        'hf_llm_id': 'meta-llama/Llama-2-7b-hf', 'image_resize_strategy': 'resize-naive',
        'image_sizes': [224, 224], 'llm_backbone_id': 'llama2-7b-pure', 'llm_max_length': 2048,
        'model_type': 'openvla', 'n_action_bins': 256,
        'norm_stats': {
            'bridge_orig': {'action': action, 'num_trajectories': 60064,
                            'num_transitions': 2135463, 'proprio': proprio},
            'dlr_edan_shared_control_converted_externally_to_rlds': {'action': bare}},
        'output_projector_states': False, 'pad_to_multiple_of': 64, 'pad_token_id': 32000,
        'text_config': {'model_type': 'llama', 'pad_token_id': 32000, 'torch_dtype': 'bfloat16',
                        'vocab_size': 32064},
        'timm_model_ids': ['vit_large_patch14_reg4_dinov2.lvd142m',
                           'vit_so400m_patch14_siglip_224'],
        'timm_override_act_layers': [None, None], 'torch_dtype': 'bfloat16',
        'transformers_version': '4.40.1', 'use_fused_vision_backbone': True,
        'vision_backbone_id': 'dinosiglip-vit-so-224px',
    }


def written(folder: Path, values: Any, name: str = 'config.json') -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(values if isinstance(values, str) else json.dumps(values))
    return folder


def test_a_published_config_is_the_7b_policy(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, real()))
    assert replace(config, statistics={}) == published()
    assert config.actions.first == 31744
    assert config.actions.top == 32000
    assert config.projector == 8704
    bridge = config.statistics['bridge_orig']
    assert bridge.low == tuple(-float(i) for i in SEVEN)
    assert bridge.high == tuple(float(i + 1) for i in SEVEN)
    assert bridge.mask == (True,) * 6 + (False,)
    assert bridge.state_low == (-1.0,) * 8
    other = config.statistics['dlr_edan_shared_control_converted_externally_to_rlds']
    assert other.mask == (True,) * 7
    assert other.state_low == ()


def test_a_policy_trained_on_the_whole_range_reads_it(tmp_path: Path) -> None:
    bridge = read_config(written(tmp_path, real()), bounds=True).statistics['bridge_orig']
    assert (bridge.low, bridge.high) == ((-9.0,) * 7, (9.0,) * 7)
    assert (bridge.state_low, bridge.state_high) == ((-2.0,) * 8, (2.0,) * 8)


def test_the_statistics_of_a_fine_tuning_count_first(tmp_path: Path) -> None:
    written(tmp_path, real())
    own = {'libero': {'action': {'q01': [0.0] * 7, 'q99': [1.0] * 7}}}
    written(tmp_path, own, 'dataset_statistics.json')
    assert list(read_config(tmp_path).statistics) == ['libero']


def test_datasets_with_other_numbers_of_dimensions_need_a_name(tmp_path: Path) -> None:
    values = real()
    values['norm_stats']['aloha'] = {'action': {'q01': [0.0] * 14, 'q99': [1.0] * 14}}
    written(tmp_path, values)
    assert read_config(tmp_path, key='aloha').actions.dimensions == 14
    assert read_config(tmp_path, key='bridge_orig').actions.dimensions == 7
    with pytest.raises(ValueError, match='unnorm_key: missing: .*bridge_orig 7, .*aloha 14'):
        read_config(tmp_path)


def test_newer_files_and_nulls_are_read_too(tmp_path: Path) -> None:
    values = real()
    values['text_config'] |= {'rope_scaling': None, 'num_key_value_heads': None, 'head_dim': 128,
                              'rope_parameters': {'rope_theta': 5e5, 'rope_type': 'default'}}
    assert read_config(written(tmp_path, values)).llama == replace(published().llama, theta=5e5)


def test_the_folder_of_version_01_gets_its_own_template(tmp_path: Path) -> None:
    config = read_config(written(tmp_path / 'openvla-v01-7b', real()))
    assert config.prompt.template == VICUNA_TEMPLATE


def with_statistics(config: OpenVlaConfig) -> OpenVlaConfig:
    size = config.actions.dimensions
    return replace(config, statistics={
        'b': Statistics((0.1,) * size, (1 / 3,) * size, (True,) * size, (0.0,), (1e-9,), (True,)),
        'a': Statistics((-1.0,) * size, (1.0,) * size, (False,) * size)})


@pytest.mark.parametrize('config', [
    published(), with_statistics(published()), small(names=tuple('abcdefg')), tiny(),
    with_statistics(tiny(parallel=True, images=2, state=1, horizon=8, dimensions=3)),
    replace(published(), vision=replace(published().vision, center_crop=0.9, images=2)),
    replace(published(), actions=Actions(horizon=8))])
def test_a_config_comes_back_as_it_was(config: OpenVlaConfig, tmp_path: Path) -> None:
    write_config(tmp_path / 'new', config)
    assert read_config(tmp_path / 'new') == config
    again = replace(config, statistics=dict(reversed(config.statistics.items())))
    assert to_json(again) == (tmp_path / 'new/config.json').read_text()


def test_a_published_policy_is_written_as_published() -> None:
    values = json.loads(to_json(with_statistics(published())))
    assert 'vla_ros' not in values
    assert values['vision_backbone_id'] == 'dinosiglip-vit-so-224px'
    assert {key: values[key] for key in (
        'model_type', 'arch_specifier', 'image_sizes', 'n_action_bins', 'pad_to_multiple_of',
        'pad_token_id', 'torch_dtype', 'use_fused_vision_backbone', 'image_resize_strategy',
        'timm_model_ids')} == {key: real()[key] for key in (
            'model_type', 'arch_specifier', 'image_sizes', 'n_action_bins', 'pad_to_multiple_of',
            'pad_token_id', 'torch_dtype', 'use_fused_vision_backbone', 'image_resize_strategy',
            'timm_model_ids')}
    assert real()['text_config'].items() <= values['text_config'].items()


def test_other_towers_go_by_another_name() -> None:
    values = json.loads(to_json(tiny()))
    assert values['vision_backbone_id'] == 'vla_ros'
    assert values['vla_ros']['vision']['siglip']['depth'] == 4


# --- hostile files -------------------------------------------------------------------------------


def at(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(values: Any) -> None:
        for key in path[:-1]:
            values = values[key]
        if to is ...:
            del values[path[-1]]
        else:
            values[path[-1]] = to
    return change


ACTION = ('norm_stats', 'bridge_orig', 'action')


@pytest.mark.parametrize(('change', 'line'), [
    (at('model_type', to='llava'), "model_type: 'llava': openvla; give the folder of an OpenVLA"),
    (at('model_type', to=7), 'model_type: 7: text'),
    (at('vision_backbone_id', to=...), 'vision_backbone_id: missing'),
    (at('vision_backbone_id', to='siglip-vit-so400m'),
     "vision_backbone_id: 'siglip-vit-so400m': one of dinosiglip-vit-so-224px, vla_ros"),
    (at('vision_backbone_id', to='vla_ros'), 'vla_ros.vision: nothing: the sizes of the towers'),
    (at('vla_ros', to=[]), r'vla_ros: \[\]: a mapping'),
    (at('vla_ros', to={'visoin': {}}), 'vla_ros.visoin: unknown key: allowed are'),
    (at('vla_ros', to={'vision': {'dino': {'width': 64}}}), 'vla_ros.vision.dino.depth: missing'),
    (at('vla_ros', to={'vision': {'image': 448}}), 'vision_backbone_id: .*: vla_ros, as'),
    (at('vla_ros', to={'vision': {'image': 230}}), 'image: 230: allowed is a multiple of patch'),
    (at('vla_ros', to={'vision': {'center_crop': 1.5}}), 'center_crop: 1.5: allowed is above 0'),
    (at('vla_ros', to={'prompt': {'template': 'no place'}}), 'template: .*{instruction}'),
    (at('vla_ros', to={'actions': {'names': ['a', 'b']}}), 'names: a, b: allowed is 7 names'),
    (at('image_resize_strategy', to='letterbox'), "image_resize_strategy: 'letterbox': resize-na"),
    (at('image_resize_strategy', to=...), 'image_resize_strategy: nothing: resize-naive'),
    (at('image_sizes', to=[384, 384]), r'image_sizes: \[384, 384\]: \[224, 224\]'),
    (at('use_fused_vision_backbone', to=False), 'use_fused_vision_backbone: false: true'),
    (at('n_action_bins', to=40_000), 'bins: 40000: allowed is 2 to 32000'),
    (at('n_action_bins', to='256'), "n_action_bins: '256': a whole number"),
    (at('pad_to_multiple_of', to=-1), 'pad_to_multiple_of: -1: a whole number from 0 to 32064'),
    (at('text_config', 'hidden_size', to=4097), 'width: 4097: allowed is a multiple of heads, 32'),
    (at('text_config', 'hidden_size', to=10**30), 'hidden_size: 1000.*: a whole number from 1'),
    (at('text_config', 'num_hidden_layers', to=10**6), 'num_hidden_layers: 1000000: a whole'),
    (at('text_config', 'num_attention_heads', to=True), 'num_attention_heads: true: a whole'),
    (at('text_config', 'hidden_act', to='gelu'), "text_config.hidden_act: 'gelu': \"silu\""),
    (at('text_config', 'rope_scaling', to={'type': 'linear'}), 'text_config.rope_scaling: '),
    (at('text_config', 'rope_parameters', to={'rope_type': 'yarn'}), 'rope_parameters.rope_type'),
    (at('text_config', 'head_dim', to=64), 'text_config.head_dim: 64: 128'),
    (at('text_config', 'tie_word_embeddings', to=True), 'tie_word_embeddings: true: false'),
    (at('text_config', 'vocab_size', to=20_000), 'prompt: 29871: allowed is ids below the voc'),
    (at('norm_stats', to=[1]), r'norm_stats: \[1\]: a mapping'),
    (at('norm_stats', 'bridge_orig', to=3), 'norm_stats.bridge_orig: 3: a mapping'),
    (at(*ACTION, 'q01', to=...), 'norm_stats.bridge_orig.action.q01: missing'),
    (at(*ACTION, 'q01', to='low'), "action.q01: 'low': a list of finite numbers"),
    (at(*ACTION, 'q01', 3, to=float('nan')), r'action.q01\[3\]: nan: .*finite'),
    (at(*ACTION, 'q99', 0, to=float('inf')), r'action.q99\[0\]: inf: .*finite'),
    (at(*ACTION, 'q99', 0, to=10**400), r'action.q99\[0\]: 1000.*finite'),
    (at(*ACTION, 'q99', to=[1.0] * 6), 'action.q99: 6 entries: a list of finite numbers; 7'),
    (at(*ACTION, 'q99', to=[-99.0] * 7), r'norm_stats.bridge_orig: high\[0\]: -99.0: allowed is'),
    (at(*ACTION, 'mask', to=[1] * 7), r'action.mask\[0\]: 1: true or false'),
    (at(*ACTION, 'mask', to=[True]), 'action.mask: 1 entries'),
    (at(*ACTION, 'q01', to=[0.0] * 100_000), 'action.q01: 100000 entries: .*at most 1024'),
    (at('norm_stats', 'bridge_orig', 'proprio', 'q99', to=...), 'proprio.q99: missing'),
])
def test_what_is_wrong_is_told_in_one_line(change: Callable[[dict[str, Any]], None], line: str,
                                           tmp_path: Path) -> None:
    values = real()
    change(values)
    with pytest.raises(ValueError, match=line) as caught:
        read_config(written(tmp_path, values))
    text = str(caught.value)
    assert text.startswith(f'{tmp_path / "config.json"}: ')
    assert '\n' not in text
    assert len(text) < 600


@pytest.mark.parametrize(('text', 'line'), [
    ('', 'not JSON'), ('{"model_type": "open', 'not JSON'), ('[]', 'a list'), ('3', 'a int'),
    ('[' * 100_000, 'not JSON'), ('version https://git-lfs.github.com/spec/v1\n', 'git lfs pull')])
def test_a_file_that_is_no_config_is_told_in_one_line(text: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        read_config(written(tmp_path, text))
    assert str(caught.value).startswith(str(tmp_path / 'config.json'))
    assert '\n' not in str(caught.value)


def test_a_missing_file_is_named_with_what_a_checkpoint_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'config\.json: cannot be read: No such.*is a folder'):
        read_config(tmp_path)


def test_wrong_statistics_of_a_fine_tuning_name_their_file(tmp_path: Path) -> None:
    written(tmp_path, real())
    written(tmp_path, {'libero': {'action': {'q01': [0.0], 'q99': [-1.0]}}},
            'dataset_statistics.json')
    with pytest.raises(ValueError, match=r'dataset_statistics\.json: libero: high\[0\]: -1.0'):
        read_config(tmp_path)
