"""`config.json` of an OpenVLA checkpoint: that of the published ones, and of ours.

A published file tells the towers by name, the language model by `text_config` with the defaults of
Llama 2, and the statistics by `norm_stats`. What such a file cannot say, other sizes above all,
stands under one more key, `vla_ros`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from vla_ros.policies.openvla.config import (
    HALF,
    TEMPLATE,
    Actions,
    Llama,
    OpenVlaConfig,
    Prompt,
    Statistics,
    Tower,
    Vision,
    published,
)
from vla_ros.policies.openvla.hf_files import CONFIG, STATISTICS, read_json, write_bytes
from vla_ros.policies.openvla.prompt import template_for
from vla_ros.profiles.reader import Section

FUSED = 'dinosiglip-vit-so-224px'
OTHER = 'vla_ros'  # towers that have no published name
_MOST, _MOST_LAYERS, _MOST_LISTED = 1 << 24, 1000, 1024
_TOWERS = ('vit_large_patch14_reg4_dinov2.lvd142m', 'vit_so400m_patch14_siglip_224')
# What the family cannot do otherwise, by key; a key that is absent means the same.
_TEXT_ONLY = {'model_type': 'llama', 'hidden_act': 'silu', 'attention_bias': False,
              'mlp_bias': False, 'tie_word_embeddings': False}
_ONLY = {'arch_specifier': 'no-align+fused-gelu-mlp', 'use_fused_vision_backbone': True}
_LLAMA_KEYS = {'vocabulary': 'vocab_size', 'width': 'hidden_size', 'hidden': 'intermediate_size',
               'layers': 'num_hidden_layers', 'heads': 'num_attention_heads',
               'kv_heads': 'num_key_value_heads', 'positions': 'max_position_embeddings',
               'epsilon': 'rms_norm_eps', 'theta': 'rope_theta'}


class _Json(Section):
    """A mapping of a JSON file; lists of numbers and flags too."""

    def without_nulls(self) -> _Json:
        """The same, where null counts as absent, as it does for Hugging Face."""
        given = {key: value for key, value in self._values.items() if value is not None}
        return _Json(self.file, given, self.path)

    def is_null(self, key: str) -> bool:
        return key in self._values and self._values[key] is None

    def section(self, key: str, rule: str = 'a mapping of keys to values') -> _Json:
        return cast('_Json', super().section(key, rule))

    def sections(self, key: str) -> dict[str, _Json]:
        """A mapping of names to mappings, empty where missing."""
        inner = self.section(key)
        return {name: inner.section(name) for name in inner.keys()}

    def numbers(self, key: str, default: tuple[float, ...] | None = None, *, count: int = 0,
                above: float | None = None) -> tuple[float, ...]:
        """A list of finite numbers > above, `count` of them where given."""
        rule = 'a list of finite numbers' + ('' if above is None else f' above {above:g}')
        values = self._counted(key, default, rule, count)
        for i, value in enumerate(values):
            self._check_number(f'{key}[{i}]', value, 'a number')
            if above is not None and value <= above:
                self.fail(f'{key}[{i}]', f'a number above {above:g}', value)
        return tuple(map(float, values))

    def flags(self, key: str, default: tuple[bool, ...], *, count: int) -> tuple[bool, ...]:
        """A list of `count` times true or false."""
        values = self._counted(key, default, 'a list of true and false', count)
        for i, value in enumerate(values):
            if not isinstance(value, bool):
                self.fail(f'{key}[{i}]', 'true or false', value)
        return tuple(values)

    def only(self, allowed: Mapping[str, Any]) -> None:
        """Refuse keys with other values than these."""
        for key, value in allowed.items():
            if self.has(key) and self._values[key] != value:
                self.fail(key, f'{json.dumps(value)}: this family can do no other')

    def _counted(self, key: str, default: tuple[Any, ...] | None, rule: str,
                 count: int) -> list[Any]:
        values = self._list(key, default, rule, 0)
        if (count and len(values) != count) or len(values) > _MOST_LISTED:
            raise ValueError(f'{self.file}: {self._at(key)}: {len(values)} entries: {rule}; '
                             f'{count or f"at most {_MOST_LISTED}"} of them')
        return values

    def _child(self, key: str, value: Any, rule: str) -> _Json:
        if not isinstance(value, dict):
            self.fail(key, rule, value)
        return _Json(self.file, value, self._at(key))


def read_config(folder: Path, key: str | None = None, bounds: bool = False) -> OpenVlaConfig:
    """The config of a checkpoint. Raises ValueError with one line: file, key, value, allowed.

    `key`: the dataset that tells the number of action dimensions; else all must agree. `bounds`:
    the policy was trained on the range min to max, not on the quantiles 0.01 to 0.99. The
    statistics of dataset_statistics.json, which fine-tuning writes, count before norm_stats.
    """
    file = folder / CONFIG
    top = _Json(file, read_json(file)).without_nulls()
    try:
        return _config(top, folder, key, bounds)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith(str(folder)) else f'{file}: {text}') from None


def write_config(folder: Path, config: OpenVlaConfig, dtype: str = 'bfloat16') -> None:
    """Write config.json at once. Raises ValueError with one line."""
    write_bytes(folder / CONFIG, to_json(config, dtype).encode())


def to_json(config: OpenVlaConfig, dtype: str = 'bfloat16') -> str:
    """The text of config.json, equal for equal configs. `dtype`: of the weights, as torch says."""
    prompt, usual = config.prompt, published().vision
    named = replace(config.vision, images=1, center_crop=1.0) == usual
    values: dict[str, Any] = {
        'architectures': ['OpenVLAForActionPrediction'], 'model_type': 'openvla', **_ONLY,
        'image_resize_strategy': 'resize-naive', 'image_sizes': [config.vision.image] * 2,
        'vision_backbone_id': FUSED if named else OTHER,
        'n_action_bins': config.actions.bins, 'torch_dtype': dtype,
        'pad_to_multiple_of': config.llama.vocabulary - config.actions.top,
        'pad_token_id': prompt.pad,
        'text_config': {**{hf: getattr(config.llama, name) for name, hf in _LLAMA_KEYS.items()},
                        **_TEXT_ONLY, 'torch_dtype': dtype, 'pad_token_id': prompt.pad,
                        'bos_token_id': prompt.bos, 'eos_token_id': prompt.eos},
        'norm_stats': {name: _norm_stats(found) for name, found in config.statistics.items()},
    }
    if named:
        values['timm_model_ids'] = list(_TOWERS)
    if not _is_plain(config):
        values['vla_ros'] = {
            'vision': asdict(config.vision), 'projector': config.projector,
            'prompt': {'template': prompt.template, 'last': prompt.last},
            'actions': {'dimensions': config.actions.dimensions,
                        'horizon': config.actions.horizon, 'names': list(config.actions.names)},
            'state': config.state, 'parallel': config.parallel,
        }
    return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + '\n'


def _is_plain(config: OpenVlaConfig) -> bool:
    """Whether a published file could say it."""
    usual, sizes = published(), {len(found.low) for found in config.statistics.values()}
    found, actions = config.prompt, config.actions
    dimensions = sizes.pop() if len(sizes) == 1 else usual.actions.dimensions
    return (config.vision, config.projector, config.state, config.parallel) == (
        usual.vision, usual.projector, 0, False) and (
        found.template, found.last) == (TEMPLATE, Prompt.last) and (
        actions.dimensions, actions.horizon, actions.names) == (dimensions, 1, ())


def _config(top: _Json, folder: Path, key: str | None, bounds: bool) -> OpenVlaConfig:
    if top.text('model_type', 'openvla') != 'openvla':
        top.fail('model_type', 'openvla; give the folder of an OpenVLA checkpoint')
    top.only(_ONLY)
    ours = top.section('vla_ros')
    vision = _vision(top, ours)
    text = top.section('text_config').without_nulls()
    llama = _llama(text)
    said = ours.section('prompt')
    pad = top.integer('pad_token_id', 32_000, low=0, high=_MOST)
    last = Prompt.last
    if said.has('last'):
        last = None if said.is_null('last') else said.integer('last', low=0, high=_MOST)
    prompt = Prompt(said.text('template', template_for(folder.name)),
                    text.integer('bos_token_id', 1, low=0, high=_MOST),
                    text.integer('eos_token_id', 2, low=0, high=_MOST), pad, last)
    said.done()
    statistics = _statistics(top, folder, bounds)
    said = ours.section('actions')
    padding = top.integer('pad_to_multiple_of', 64, low=0, high=llama.vocabulary)
    actions = Actions(
        said.integer('dimensions', _dimensions(top, statistics, key), low=1, high=_MOST_LISTED),
        said.integer('horizon', 1, low=1, high=_MOST_LISTED),
        top.integer('n_action_bins', 256, low=2, high=_MOST), llama.vocabulary - padding,
        said.texts('names', ()))
    said.done()
    projector = ours.integer('projector', 4 * vision.width, low=1, high=_MOST)
    state = ours.integer('state', 0, low=0, high=_MOST_LISTED)
    parallel = ours.flag('parallel', False)
    ours.done()
    return OpenVlaConfig(vision, llama, projector, prompt, actions, state, parallel, statistics)


def _vision(top: _Json, ours: _Json) -> Vision:
    usual, said = published().vision, ours.section('vision')
    named = top.text('vision_backbone_id', choices=(FUSED, OTHER)) == FUSED
    if not named and not ours.is_mapping('vision'):
        ours.fail('vision', f'the sizes of the towers, as vision_backbone_id is {OTHER}')
    if top.text('image_resize_strategy', 'letterbox') != 'resize-naive':
        top.fail('image_resize_strategy', 'resize-naive: this family can do no other')
    vision = Vision(
        said.integer('image', usual.image, low=1, high=4096),
        said.integer('patch', usual.patch, low=1, high=4096),
        _tower(said, 'dino', usual.dino), _tower(said, 'siglip', usual.siglip),
        said.integer('images', 1, low=1, high=64), said.number('center_crop', 1.0))
    said.done()
    if named and replace(vision, images=1, center_crop=1.0) != usual:
        top.fail('vision_backbone_id', f'{OTHER}, as vla_ros.vision tells other sizes')
    top.only({'image_sizes': [vision.image] * 2})
    return vision


def _tower(vision: _Json, name: str, usual: Tower) -> Tower:
    if not vision.has(name):
        return usual
    said = vision.section(name)
    tower = Tower(
        said.integer('width', low=1, high=_MOST), said.integer('depth', low=1, high=_MOST_LAYERS),
        said.integer('heads', low=1, high=_MOST), said.integer('hidden', low=1, high=_MOST),
        said.integer('registers', 0, low=0, high=_MOST_LAYERS),
        said.flag('class_token', False), said.flag('layer_scale', False),
        said.numbers('mean', HALF, count=3), said.numbers('std', HALF, count=3, above=0.0),
        said.number('epsilon', 1e-6, above=0.0))
    said.done()
    return tower


def _llama(text: _Json) -> Llama:
    text.only({**_TEXT_ONLY, 'rope_scaling': None})
    rope = text.section('rope_parameters')  # where newer versions of transformers write it
    rope.only({'rope_type': 'default'})
    width = text.integer('hidden_size', 4096, low=1, high=_MOST)
    heads = text.integer('num_attention_heads', 32, low=1, high=_MOST)
    llama = Llama(
        text.integer('vocab_size', 32_000, low=2, high=_MOST), width,
        text.integer('intermediate_size', 11_008, low=1, high=_MOST),
        text.integer('num_hidden_layers', 32, low=1, high=_MOST_LAYERS), heads,
        text.integer('num_key_value_heads', heads, low=1, high=_MOST),
        text.integer('max_position_embeddings', 2048, low=1, high=_MOST),
        text.number('rms_norm_eps', 1e-6, above=0.0),
        (rope if rope.has('rope_theta') else text).number('rope_theta', 10_000.0, above=0.0))
    text.only({'head_dim': llama.head})
    return llama


def _statistics(top: _Json, folder: Path, bounds: bool) -> dict[str, Statistics]:
    file = folder / STATISTICS
    if file.exists():
        found = _Json(file, {'': read_json(file)}).sections('')
    else:
        found = top.sections('norm_stats')
    low, high = ('min', 'max') if bounds else ('q01', 'q99')
    statistics = {}
    for name, said in found.items():
        action = said.section('action').without_nulls()
        lowest = action.numbers(low)
        size = len(lowest)
        state = said.section('proprio').without_nulls()
        state_lowest = state.numbers(low, () if not state.keys() else None)
        try:
            statistics[name] = Statistics(
                lowest, action.numbers(high, count=size),
                action.flags('mask', (True,) * size, count=size), state_lowest,
                state.numbers(high, () if not state.keys() else None, count=len(state_lowest)),
                state.flags('mask', (), count=len(state_lowest) if state.has('mask') else 0))
        except ValueError as error:
            line = str(error)
            raise ValueError(line if line.startswith(str(said.file)) else
                             f'{said.file}: {said.path}: {line}') from None
    return statistics


def _dimensions(top: _Json, statistics: Mapping[str, Statistics], key: str | None) -> int:
    """Of the action."""
    counts = {name: len(found.low) for name, found in statistics.items()}
    if key in counts:
        return counts[key]
    if len(set(counts.values())) > 1:
        raise ValueError('unnorm_key: missing: the datasets of the checkpoint have actions of '
                         f'different sizes ({_counts(counts)}); name one of them')
    return next(iter(counts.values()), Actions.dimensions)


def _counts(counts: Mapping[str, int]) -> str:
    return ', '.join(f'{name} {count}' for name, count in list(counts.items())[:40])


def _norm_stats(found: Statistics) -> dict[str, Any]:
    values: dict[str, Any] = {'action': _range(found.low, found.high, found.mask)}
    if found.state_low:
        values['proprio'] = _range(found.state_low, found.state_high, found.state_mask)
    return values


def _range(low: tuple[float, ...], high: tuple[float, ...],
           mask: tuple[bool, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {'q01': list(map(float, low)), 'q99': list(map(float, high))}
    return {**values, 'mask': list(map(bool, mask))} if mask else values
