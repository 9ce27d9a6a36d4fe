"""Weights in and out: equal bytes for equal weights, one line for whatever is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip('torch', reason='the loader of the weights needs it')
safetensors = pytest.importorskip('safetensors.torch')

from edgevla_rig import tiny  # noqa: E402

from vla_ros.policies.edgevla import checkpoint  # noqa: E402
from vla_ros.policies.edgevla.config import to_json  # noqa: E402
from vla_ros.policies.edgevla.model import EdgeVla  # noqa: E402

NAME = 'transformer.blocks.0.query.weight'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    checkpoint.save(tmp_path / 'model', EdgeVla(tiny()))
    return tmp_path / 'model'


def refusal(folder: Path) -> str:
    with pytest.raises(ValueError) as caught:
        checkpoint.load(folder)
    text = str(caught.value)
    assert '\n' not in text
    assert text.startswith(str(folder))
    return text


def test_weights_come_back_as_they_were_and_ready_to_act(folder: Path) -> None:
    torch.manual_seed(0)
    expected = EdgeVla(tiny()).state_dict()
    model = checkpoint.load(folder)
    assert not model.training
    assert model.config == tiny()
    assert expected.keys() == model.state_dict().keys()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_equal_weights_make_equal_files(folder: Path, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / 'again', checkpoint.load(folder))
    for file in folder.iterdir():
        assert (tmp_path / 'again' / file.name).read_bytes() == file.read_bytes()


def test_weights_of_half_precision_are_written_in_full(folder: Path, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / 'half', checkpoint.load(folder).bfloat16())
    assert {value.dtype for value in checkpoint.load(tmp_path / 'half').state_dict().values()} == {
        torch.float32}


def renamed(tensors: dict[str, Any]) -> None:
    tensors[NAME.replace('query', 'querry')] = tensors.pop(NAME)


def replaced(change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(tensors: dict[str, Any]) -> None:
        tensors[NAME] = change(tensors[NAME]).contiguous()
    return apply


def infinite(tensor: Any) -> Any:
    return torch.where(torch.arange(tensor.numel()).view(tensor.shape) == 3, torch.inf, tensor)


@pytest.mark.parametrize(('change', 'line'), [
    (lambda tensors: tensors.pop(NAME), f'{NAME}: missing'),
    (renamed, f'{NAME}: missing: config.json beside it asks for it; is '
              f'{NAME.replace("query", "querry")!r} meant'),
    (lambda tensors: tensors.update(extra=torch.zeros(1)), 'extra: unknown tensor'),
    (replaced(lambda tensor: tensor[:, 1:]), f'{NAME}: shape [16, 15]: [16, 16] is needed'),
    (replaced(lambda tensor: tensor.half()), f'{NAME}: float16: float32 is needed'),
    (replaced(infinite), f'{NAME}: it holds numbers that are not finite'),
    (replaced(lambda tensor: tensor * torch.nan), f'{NAME}: it holds numbers that are not'),
])
def test_wrong_tensor_is_refused_with_one_line(change: Callable[[dict[str, Any]], Any], line: str,
                                               folder: Path) -> None:
    file = folder / 'model.safetensors'
    tensors = safetensors.load_file(file)
    change(tensors)
    file.write_bytes(safetensors.save(tensors))
    assert line in refusal(folder)


@pytest.mark.parametrize('content', [
    b'', b'short', b'PK\x03\x04 another kind of file ' * 100, b'\xff' * 64])
def test_another_kind_of_file_is_refused_with_one_line(content: bytes, folder: Path) -> None:
    (folder / 'model.safetensors').write_bytes(content)
    assert 'not a whole safetensors file' in refusal(folder)


@pytest.mark.parametrize('kept', [1, 8, 1000, -1])
def test_truncated_file_is_refused_with_one_line(kept: int, folder: Path) -> None:
    file = folder / 'model.safetensors'
    file.write_bytes(file.read_bytes()[:kept])
    assert 'not a whole safetensors file' in refusal(folder)


def test_missing_file_or_a_folder_in_its_place_is_refused_with_one_line(folder: Path) -> None:
    file = folder / 'model.safetensors'
    file.unlink()
    assert 'a checkpoint of edgevla is a folder with' in refusal(folder)
    file.mkdir()
    assert 'model.safetensors' in refusal(folder)


def test_weights_of_another_size_are_refused_with_one_line(folder: Path) -> None:
    (folder / 'config.json').write_text(to_json(tiny(horizon=3, window=5)))
    checkpoint.load(folder)  # no weight depends on the window
    (folder / 'config.json').write_text(to_json(tiny(action=('elbow', 'grip'), gripper='',
                                                     state=('elbow', 'grip', 'x'))))
    assert 'head.3.weight: shape [9, 32]: [6, 32] is needed' in refusal(folder)


def test_broken_config_is_refused_with_one_line(folder: Path) -> None:
    (folder / 'config.json').write_text('{')
    assert 'not JSON' in refusal(folder)


def test_unwritable_folder_is_refused_with_one_line(folder: Path) -> None:
    with pytest.raises(ValueError, match='cannot be written') as caught:
        checkpoint.save(folder / 'config.json' / 'below', checkpoint.load(folder))
    assert '\n' not in str(caught.value)
