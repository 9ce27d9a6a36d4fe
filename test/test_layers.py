"""Imports point only downwards, and the light layers stay light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import vla_ros

ROOT = Path(vla_ros.__file__).parent
# The higher number may import the lower one; the same number is only one's own package.
RANK = {'core': 0, 'profiles': 1, 'engines': 2, 'policies': 2, 'ros': 3, 'sim': 3, 'nodes': 4,
        'replay': 4, 'training': 4, 'bringup': 5, 'tools': 6}
ACROSS = {('policies', f'vla_ros.engines.{name}') for name in (
    'contract', 'driver', 'rules', 'verdict')}
HEAVY = ('rclpy', 'torch', 'cv2', 'onnxruntime', 'tensorrt', 'mujoco', 'onnx', 'safetensors',
         'tokenizers', 'transformers', 'triton')
LIGHT = ('core', 'profiles', 'engines', 'policies', 'sim')
# What is written in torch. Whoever imports one of these does so inside a function, or is one.
IN_TORCH = {f'vla_ros.policies.edgevla.{name}' for name in (
    'checkpoint', 'export', 'model', 'torch_runner', 'transformer', 'vision')}
IN_TORCH |= {f'vla_ros.policies.openvla.{name}' for name in (
    'actionflow', 'backend', 'backends', 'baseline', 'captured', 'checkpoint', 'determinism',
    'graph', 'jacobi', 'kernels.ops', 'kernels.triton_kernels', 'llama', 'memory', 'model', 'oft',
    'oft_backend', 'oft_checkpoint', 'quantize', 'staging', 'static', 'static_backend',
    'transforms', 'vision')}
IN_TORCH |= {f'vla_ros.training.{name}' for name in (
    'edgevla_trainer', 'openvla_trainer', 'trainer')}
NOT_IN_CORE = {'time', 'threading', 'asyncio', 'datetime', 'random', 'multiprocessing',
               'concurrent', 'socket', 'subprocess', 'queue', 'sched', 'signal'}
NUMPY_ONLY = {'numpy', 'vla_ros'}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def modules(layer: str) -> list[Path]:
    return sorted((ROOT / layer).rglob('*.py'))


def imports(path: Path, anywhere: bool = True) -> list[str]:
    """The modules a file imports, inside functions too unless told otherwise."""
    tree = ast.parse(path.read_text(encoding='utf-8'))
    found = []
    for node in ast.walk(tree) if anywhere else tree.body:
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{path}: relative import'
            found.append(node.module or '')
            if node.module == 'vla_ros':
                found += [f'vla_ros.{name.name}' for name in node.names]
    return found


@pytest.mark.parametrize('layer', RANK)
def test_imports_point_only_downwards(layer: str) -> None:
    wrong = []
    for path in modules(layer):
        for name in imports(path):
            parts = name.split('.')
            if parts[0] != 'vla_ros' or len(parts) < 2 or parts[1] == layer:
                continue
            allowed = RANK.get(parts[1], 99) < RANK[layer] or (layer, name) in ACROSS
            if not allowed:
                wrong.append(f'{module_of(path)} imports {name}')
    assert wrong == []


def test_every_package_has_its_place_among_the_layers() -> None:
    packages = {path.parent.name for path in ROOT.glob('*/__init__.py')}
    assert packages <= set(RANK)


def test_core_reads_no_clock_and_has_no_threads_and_needs_numpy_only() -> None:
    wrong = []
    for path in modules('core'):
        for name in imports(path):
            top = name.split('.')[0]
            if top in NOT_IN_CORE or (
                    top not in NUMPY_ONLY and top not in sys.stdlib_module_names):
                wrong.append(f'{module_of(path)} imports {name}')
    assert wrong == []


@cache
def heavy_after_import(module: str) -> tuple[str, ...]:
    """Which heavy packages the import of a module alone brings into a fresh interpreter."""
    code = (f'import json, sys, {module}\n'
            f'print(json.dumps([n for n in {HEAVY!r} if n in sys.modules]))')
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                          timeout=60, cwd=ROOT.parent, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize('layer', LIGHT)
def test_light_layers_import_without_ros_and_frameworks(layer: str) -> None:
    """All modules of a layer in one interpreter; alone, if that brings something in."""
    names = [name for path in modules(layer) if (name := module_of(path)) not in IN_TORCH]
    assert names
    allowed = {'cv2'} if layer == 'policies' else set()
    if set(heavy_after_import(', '.join(names))) <= allowed:
        return
    culprits = {name: heavy_after_import(name) for name in names}
    assert {name: found for name, found in culprits.items() if set(found) - allowed} == {}


def test_what_is_written_in_torch_is_imported_inside_functions() -> None:
    wrong = []
    for path in ROOT.rglob('*.py'):
        if module_of(path) in IN_TORCH:
            continue
        for name in imports(path, anywhere=False):
            if name in IN_TORCH or name.split('.')[0] in (
                    'torch', 'onnx', 'safetensors', 'tokenizers', 'transformers', 'triton'):
                wrong.append(f'{module_of(path)} imports {name}')
    assert wrong == []


def test_the_control_process_has_neither_torch_nor_cv2() -> None:
    pytest.importorskip('rclpy', reason='no ROS on this machine')
    found = heavy_after_import('vla_ros.nodes.action_publisher')
    assert set(found) <= {'rclpy'}
