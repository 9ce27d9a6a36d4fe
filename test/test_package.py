"""What is installed, by pip and by colcon, and what the package says about itself."""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXECUTABLES = {'vla-ros', 'camera_node', 'inference_node', 'action_publisher', 'bag_player',
               'sim_robot'}
SHARED = ('launch', 'config', 'models')
PYTHON = f'python{sys.version_info[0]}.{sys.version_info[1]}'


def _run(
    command: list[str], cwd: Path, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    if check:
        assert result.returncode == 0, result.stdout + result.stderr
    return result


def _copy_of_checkout(folder: Path) -> Path:
    """What is committed of the package, so that no build leaves anything in the checkout."""
    left_out = shutil.ignore_patterns('__pycache__', '*.pyc', '*.egg-info')
    names = 'package.xml setup.py setup.cfg pyproject.toml MANIFEST.in README.md LICENSE'.split()
    for name in [*names, *SHARED, 'resource', 'vla_ros', 'scripts', 'requirements']:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=left_out)
        elif source.exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
    return folder


def _files_below(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob('*')
        if path.is_file() and '__pycache__' not in path.parts
    }


@pytest.fixture(scope='module')
def pip_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = _copy_of_checkout(tmp_path_factory.mktemp('source') / 'vla_ros')
    prefix = tmp_path_factory.mktemp('with space') / 'prefix'
    options = ['--no-deps', '--no-build-isolation', '--no-index', '--ignore-installed', '--prefix']
    _run([sys.executable, '-m', 'pip', 'install', *options, str(prefix), '.'], source)
    return prefix


def _colcon_prefix(workspace: Path, *options: str) -> Path:
    pytest.importorskip('colcon_core', reason='colcon is not installed')
    pytest.importorskip('colcon_ros', reason='colcon-ros is not installed')
    _copy_of_checkout(workspace / 'src/vla_ros')
    colcon = 'import sys; from colcon_core.command import main; sys.exit(main())'
    _run(
        [sys.executable, '-c', colcon, 'build', *options],
        workspace,
        COLCON_HOME=str(workspace / 'colcon'),
    )
    return workspace / 'install/vla_ros'


@pytest.fixture(scope='module')
def colcon_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _colcon_prefix(tmp_path_factory.mktemp('colcon'))


@pytest.fixture(scope='module')
def symlinked_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _colcon_prefix(tmp_path_factory.mktemp('symlinked'), '--symlink-install')


@pytest.fixture(params=['pip_prefix', 'colcon_prefix', 'symlinked_prefix'])
def prefix(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def _environment_of(prefix: Path) -> dict[str, str]:
    """The variables that a sourced installation in `prefix` brings, in front of all others."""
    code = [prefix / 'lib' / PYTHON / 'site-packages', prefix.parents[1] / 'build/vla_ros']
    old = os.environ.get('PYTHONPATH', '')
    return {
        'PYTHONPATH': os.pathsep.join([*(str(path) for path in code if path.is_dir()), old]),
        'AMENT_PREFIX_PATH': f'{prefix}{os.pathsep}{os.environ.get("AMENT_PREFIX_PATH", "")}',
    }


@functools.cache
def _entry_points() -> dict[str, str]:
    """The arguments of setup() that name code, from a run of setup.py itself."""
    program = (
        'import setuptools\n'
        'setuptools.setup = lambda **options: print(repr(options["entry_points"]))\n'
        'exec(open("setup.py").read(), {"__name__": "__main__"})\n'
    )
    groups = ast.literal_eval(_run([sys.executable, '-c', program], ROOT).stdout)
    return dict(tuple(line.split(' = ')) for lines in groups.values() for line in lines)


# -- what the package says about itself


def test_package_xml_is_valid_format_3() -> None:
    catkin_package = pytest.importorskip('catkin_pkg.package', reason='catkin_pkg is missing')
    warnings: list[str] = []
    package = catkin_package.parse_package(str(ROOT), warnings=warnings)
    package.validate(warnings=warnings)
    assert warnings == []
    assert (package.name, package.package_format) == ('vla_ros', 3)
    assert package.get_build_type() == 'ament_python'


def test_package_xml_names_every_ros_package_that_the_code_imports() -> None:
    catkin_package = pytest.importorskip('catkin_pkg.package', reason='catkin_pkg is missing')
    declared = {d.name for d in catkin_package.parse_package(str(ROOT)).exec_depends}
    imported: set[str] = set()
    for file in [*(ROOT / 'vla_ros').rglob('*.py'), *(ROOT / 'launch').rglob('*.py')]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported.update(alias.name.split('.')[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or '').split('.')[0])
    of_ros = re.compile(r'^(rclpy|launch|cv_bridge|ament_)|_(msgs|srvs|interfaces)$')
    ros = {name for name in imported if of_ros.search(name)}
    assert 'rclpy' in ros
    assert ros <= declared


def test_version_is_the_same_everywhere() -> None:
    package = re.search(r'<version>(.+)</version>', (ROOT / 'package.xml').read_text())
    changelog = re.search(r'^(\d+\.\d+\.\d+)\b', (ROOT / 'CHANGELOG.rst').read_text(), re.M)
    assert package
    assert changelog
    setup = _run([sys.executable, 'setup.py', '--version'], ROOT).stdout.split()[-1]
    assert package[1] == changelog[1] == setup


@pytest.mark.parametrize(('name', 'target'), sorted(_entry_points().items()))
def test_entry_point_leads_to_a_function(name: str, target: str) -> None:
    module, function = target.split(':')
    base = ROOT.joinpath(*module.split('.'))
    file = base.with_suffix('.py') if base.with_suffix('.py').exists() else base / '__init__.py'
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    assert function in names


def test_neither_ros_nor_torch_is_asked_of_pip() -> None:
    required = re.search(r'install_requires=(\[.*?\])', (ROOT / 'setup.py').read_text())
    assert required
    names = {re.split(r'\W', line)[0] for line in ast.literal_eval(required[1])}
    assert names == {'numpy', 'PyYAML'}


@pytest.mark.parametrize('lock', ['all.lock', 'over_ros.lock'])
def test_torch_is_in_no_lock_and_the_simulator_in_all(lock: str) -> None:
    names = set(re.findall(r'^([\w.-]+)==', (ROOT / 'requirements' / lock).read_text(), re.M))
    assert {'mujoco-core', 'onnxruntime', 'safetensors'} <= names
    assert not {'torch', 'onnx', 'triton'} & names


# -- what is installed


@pytest.mark.parametrize('folder', SHARED)
def test_every_launch_config_and_model_file_is_installed(prefix: Path, folder: str) -> None:
    files = _files_below(ROOT / folder)
    assert files
    assert _files_below(prefix / 'share/vla_ros' / folder) == files


def test_the_arm_is_installed_beside_the_code(prefix: Path) -> None:
    program = (
        'from pathlib import Path; import vla_ros.sim as sim\n'
        'print(Path(sim.__file__).resolve().with_name("arm.xml"))'
    )
    found = _run([sys.executable, '-c', program], prefix, **_environment_of(prefix)).stdout
    arm = Path(found.strip())
    assert arm.is_relative_to(prefix.parents[1])
    assert arm.read_bytes() == (ROOT / 'vla_ros/sim/arm.xml').read_bytes()


def test_ament_index_finds_the_package(prefix: Path) -> None:
    pytest.importorskip('ament_index_python', reason='no ROS 2 here')
    program = (
        'from ament_index_python.packages import get_package_share_directory as share\n'
        'print(share("vla_ros"))'
    )
    found = _run([sys.executable, '-c', program], prefix, **_environment_of(prefix)).stdout
    assert Path(found.strip()) == prefix / 'share/vla_ros'
    assert (prefix / 'share/vla_ros/package.xml').is_file()


def test_executables_lie_where_launch_ros_looks(prefix: Path) -> None:
    folder = prefix / 'lib/vla_ros'
    assert {file.name for file in folder.iterdir()} == EXECUTABLES
    assert all(os.access(file, os.X_OK) for file in folder.iterdir())


def test_command_runs_from_there(prefix: Path) -> None:
    command = [str(prefix / 'lib/vla_ros/vla-ros'), '--help']
    assert 'usage' in _run(command, prefix, **_environment_of(prefix)).stdout.lower()


@pytest.mark.parametrize('executable', sorted(EXECUTABLES))
def test_what_an_executable_starts_is_installed_with_it(prefix: Path, executable: str) -> None:
    pytest.importorskip('rclpy', reason='no ROS 2 here')
    module, function = _entry_points()[executable].split(':')
    program = f'import {module} as m; assert callable(m.{function}); print(m.__file__)'
    found = _run([sys.executable, '-c', program], prefix, **_environment_of(prefix)).stdout
    assert Path(found.strip()).is_relative_to(prefix.parents[1])


def test_colcon_executables_run_with_the_python_that_ran_colcon(colcon_prefix: Path) -> None:
    for file in (colcon_prefix / 'lib/vla_ros').iterdir():
        assert file.read_text().splitlines()[0] == f'#!{sys.executable}'


def test_sourced_workspace_wins_over_the_environment(colcon_prefix: Path) -> None:
    pytest.importorskip('ament_index_python', reason='no ROS 2 here')
    program = (
        'import vla_ros; from ament_index_python.packages import get_package_share_directory as s\n'
        'print(vla_ros.__file__); print(s("vla_ros"))'
    )
    script = 'source install/setup.bash && exec "$0" -c "$1"'
    workspace = colcon_prefix.parents[1]
    found = _run(['bash', '-c', script, sys.executable, program], workspace).stdout.split()
    assert all(Path(path).is_relative_to(colcon_prefix) for path in found)


# -- scripts/setup


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return _copy_of_checkout(tmp_path / 'checkout')


@pytest.fixture
def setup(checkout: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        return _run(['scripts/setup'], checkout, check=False, ROS_DISTRO='', **environment)

    return run


def test_setup_without_ros_on_an_arm_machine_says_so_in_one_line(
    setup: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    uname = tmp_path / 'uname'
    uname.write_text('#!/bin/sh\necho aarch64\n')
    uname.chmod(0o755)
    result = setup(PATH=f'{tmp_path}{os.pathsep}{os.environ["PATH"]}')
    assert result.returncode == 1
    assert result.stdout == ''
    assert len(result.stderr.splitlines()) == 1
    assert 'aarch64' in result.stderr
    assert 'source /opt/ros/' in result.stderr


def test_setup_names_an_option_that_it_does_not_know(checkout: Path) -> None:
    result = _run(['scripts/setup', '--trian'], checkout, check=False)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert '--trian' in result.stderr
    assert '--train' in result.stderr.replace('--trian', '')


def test_setup_with_a_python_that_is_not_there_says_so_in_one_line(
    setup: Callable[..., subprocess.CompletedProcess[str]], checkout: Path
) -> None:
    result = setup(PYTHON='/nowhere/python3')
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert '/nowhere/python3' in result.stderr
    assert not (checkout / '.venv').exists()
