"""The config of an EdgeVLA checkpoint: what it holds, and one line for whatever is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from edgevla_rig import tiny

from vla_ros.policies.edgevla.config import (
    FORMAT,
    Compressor,
    EdgeVlaConfig,
    published,
    read_config,
    small,
    to_json,
)


@pytest.mark.parametrize('config', [
    tiny(), small(('pick', 'красный')), published(), tiny(compressor=Compressor('none'))])
def test_config_comes_back_as_it_was_written(config: EdgeVlaConfig, tmp_path: Path) -> None:
    file = tmp_path / 'config.json'
    file.write_text(to_json(config), encoding='utf-8')
    assert read_config(file) == config
    assert to_json(read_config(file)) == to_json(config)


def test_optional_keys_may_be_left_out(tmp_path: Path) -> None:
    values = json.loads(to_json(tiny()))
    del values['text']['size'], values['cameras']['fuse'], values['semantic']['kind']
    values['semantic']['kind'] = 'vit'
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(values))
    assert read_config(file) == tiny()


def put(*path: Any) -> Callable[[Any], None]:
    """Sets the entry at all but the last of `path` to the last."""
    def change(values: Any) -> None:
        *way, key, value = path
        for step in way:
            values = values[step]
        values[key] = value
    return change


def drop(*path: Any) -> Callable[[Any], None]:
    def change(values: Any) -> None:
        for step in path[:-1]:
            values = values[step]
        del values[path[-1]]
    return change


@pytest.mark.parametrize(('change', 'line'), [
    (put('format', 'other 2'), f"format: 'other 2': {FORMAT!r}"),
    (drop('horizon'), 'horizon: missing: '),
    (drop('transformer', 'heads'), 'transformer.heads: missing: '),
    (put('horizont', 3), 'horizont: unknown key: '),
    (put('transformer', 'layer', 3), "did you mean 'layers'?"),
    (put('window', 0), 'window: 0: a whole number from 1 to '),
    (put('window', True), 'window: True: a whole number'),
    (put('window', 4.0), 'window: 4.0: a whole number'),
    (put('window', 10**9), 'window: 1000000000: a whole number'),
    (put('period', 'fast'), "period: 'fast': a finite number"),
    (put('period', float('nan')), 'period: nan: a finite number'),
    (put('period', 0.0), 'period: 0.0: above 0'),
    (put('state', 'shoulder'), "state: 'shoulder': a list"),
    (put('state', 1, 7), 'state[1]: 7: text'),
    (put('state', 1, 'shoulder'), "state: 'shoulder': named twice"),
    (put('cameras', 'fuse', 'none'), "cameras.fuse: 'none': one of tokens, channels"),
    (put('cameras', 'names', []), 'cameras.names: '),
    (put('cameras', 'height', 40), 'semantic: height: 40: a multiple of patch times shuffle (16)'),
    (put('cameras', []), 'cameras: []: a mapping'),
    (put('spatial', 'kind', 'cnn'), "spatial.kind: 'cnn': one of conv, vit"),
    (put('spatial', 'kernels', [3, 2]), 'spatial.kernels: (3, 2): odd'),
    (put('spatial', 'strides', [4]), 'spatial.channels: '),
    (put('spatial', 'groups', 3), 'spatial.channels: 8: a multiple of groups (3)'),
    (put('spatial', 'patch', 4), 'spatial.patch: unknown key'),
    (put('semantic', 'heads', 3), 'semantic.width: 8: a multiple of heads (3)'),
    (put('semantic', 'patch', 2), 'semantic: a grid of 8x4 cells: it must divide the 4x2'),
    (put('compressor', 'kind', 'mean'), "compressor.kind: 'mean': one of learned_query"),
    (put('compressor', 'keep', 0), 'compressor.keep: 0: at least 1'),
    (put('compressor', 'keep', 17), 'compressor.keep: 17: at most 16'),
    (put('compressor', 'heads', 3), 'compressor: transformer.width: 16: a multiple of heads (3)'),
    (put('text', 'words', 2, 'up'), "text.words: 'up': named twice"),
    (put('text', 'size', 6), 'text.size: 6: at least 7'),
    (put('transformer', 'heads', 3), 'transformer.width: 16: a multiple of heads (3)'),
    (put('transformer', 'kv_heads', 3), 'transformer.heads: 4: a multiple of kv_heads (3)'),
    (put('transformer', 'heads', 16), 'transformer.width: 16: width / heads must be even'),
    (put('transformer', 'epsilon', 0), 'transformer.epsilon: 0.0: a number above 0'),
    (put('action', 0, 'wrist'), "action: 'wrist': the measured state has shoulder"),
    (put('gripper', 'claw'), "gripper: 'claw': one of elbow, grip, shoulder"),
    (put('normalization', 'state_std', 0, 0.0), 'normalization.state_std: 0.0: numbers above 0'),
    (put('normalization', 'state_mean', [1.0]), 'normalization.state_mean: 1 entries: 3 are'),
    (put('normalization', 'offset_scale', 1, [1.0]), 'offset_scale: a row of 1: 2 are needed'),
    (put('normalization', 'offset_scale', 1, 1.0), 'normalization.offset_scale[1]: 1.0: a list'),
    (put('normalization', 'offset_scale', 1, 1, 'x'), 'normalization.offset_scale[1][1]: '),
])
def test_wrong_config_is_refused_with_one_line(change: Callable[[Any], None], line: str,
                                               tmp_path: Path) -> None:
    values = json.loads(to_json(tiny()))
    change(values)
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(values))
    with pytest.raises(ValueError) as caught:
        read_config(file)
    text = str(caught.value)
    assert text.startswith(f'{file}: ')
    assert line in text
    assert '\n' not in text


@pytest.mark.parametrize(('content', 'line'), [
    (b'', 'not JSON'), (b'{"format": ', 'not JSON'), (b'\xff\xfe', 'not text in UTF-8'),
    (b'[1]', '[1]: a config is a mapping'), (b'[' * 100_000, 'not JSON')])
def test_broken_file_is_refused_with_one_line(content: bytes, line: str, tmp_path: Path) -> None:
    file = tmp_path / 'config.json'
    file.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read_config(file)
    assert str(caught.value).startswith(f'{file}: {line}')
    assert '\n' not in str(caught.value)


def test_missing_file_is_refused_with_what_a_checkpoint_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='a checkpoint of edgevla is a folder with config.json'):
        read_config(tmp_path / 'config.json')


def test_built_in_configs_have_the_sizes_that_the_docs_say() -> None:
    config = small()
    assert config.ring_shape() == (4, 2, 1, 8, 38, 1, 32)
    assert (config.grid, config.grid_tokens, config.visual_tokens) == ((16, 16), 512, 24)
    config = published()
    assert (config.cameras.height, config.grid, config.grid_tokens) == (448, (16, 16), 256)
    assert (config.visual_tokens, config.horizon, len(config.action)) == (64, 30, 80)
    assert asdict(config.transformer)['hidden'] == 8960
