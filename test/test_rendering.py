"""Which OpenGL MuJoCo gets, and what is said where there is none."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vla_ros.sim import rendering

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What shall work on this machine; tests add to it."""
    found: set[str] = set()
    monkeypatch.setattr(rendering, 'egl_problem', lambda _: '' if 'egl' in found else 'no driver')

    def osmesa_problem() -> str:
        if 'osmesa' not in found:
            raise OSError('libOSMesa.so.8 is missing')
        return ''

    monkeypatch.setattr(rendering, 'osmesa_problem', osmesa_problem)
    return found


def refused(environment: dict[str, str]) -> str:
    """The one line with which a choice is refused; the choice is not written then."""
    before = environment.get('MUJOCO_GL')
    with pytest.raises(ValueError, match='.') as caught:
        rendering.choose_gl(environment)
    assert environment.get('MUJOCO_GL') == before
    assert 'PYOPENGL_PLATFORM' not in environment
    line = str(caught.value)
    assert '\n' not in line
    return line


@pytest.mark.parametrize(('there', 'chosen'), [
    (('egl',), 'egl'), (('osmesa',), 'osmesa'), (('egl', 'osmesa'), 'egl')])
def test_first_one_that_works_is_chosen(works: set[str], there: tuple[str, ...],
                                        chosen: str) -> None:
    works.update(there)
    environment: dict[str, str] = {}
    assert rendering.choose_gl(environment) == chosen
    assert environment['MUJOCO_GL'] == environment['PYOPENGL_PLATFORM'] == chosen
    assert rendering.choose_gl(environment) == chosen


@pytest.mark.parametrize('written', ['osmesa', ' OSMesa '])
def test_choice_of_the_user_is_kept(works: set[str], written: str) -> None:
    works.update({'egl', 'osmesa'})
    assert rendering.choose_gl({'MUJOCO_GL': written}) == 'osmesa'


def test_nothing_that_works_names_what_was_tried_and_what_to_install(works: set[str]) -> None:
    line = refused({})
    assert 'egl (no driver)' in line
    assert 'osmesa (libOSMesa.so.8 is missing)' in line
    assert 'apt-get install libegl1 libgl1-mesa-dri libopengl0' in line
    assert 'apt-get install libosmesa6' in line


@pytest.mark.parametrize(('named', 'other', 'package'), [
    ('egl', 'osmesa', 'libegl1'), ('osmesa', 'egl', 'libosmesa6')])
def test_choice_of_the_user_is_not_replaced_where_it_does_not_work(
        works: set[str], named: str, other: str, package: str) -> None:
    works.add(other)
    line = refused({'MUJOCO_GL': named})
    assert f'tried {named}' in line
    assert other not in line
    assert package in line


@pytest.mark.parametrize('named', ['wgl', 'off', 'egl,osmesa'])
def test_unknown_choice_is_refused_with_those_that_are_allowed(works: set[str], named: str) -> None:
    works.add('egl')
    line = refused({'MUJOCO_GL': named})
    assert repr(named) in line
    assert 'egl, osmesa, glfw' in line


def test_window_system_is_left_to_the_user_and_needs_a_screen() -> None:
    assert rendering.choose_gl({'MUJOCO_GL': 'glfw', 'DISPLAY': ':0'}) == 'glfw'
    assert 'unset MUJOCO_GL' in refused({'MUJOCO_GL': 'glfw'})


def test_platform_of_pyopengl_that_is_set_decides_too(works: set[str]) -> None:
    works.update({'egl', 'osmesa'})
    assert rendering.choose_gl({'PYOPENGL_PLATFORM': 'osmesa'}) == 'osmesa'
    with pytest.raises(ValueError, match=r'egl \(PYOPENGL_PLATFORM is glx\)'):
        rendering.choose_gl({'PYOPENGL_PLATFORM': 'glx'})


def test_threads_of_the_software_renderer_are_set_only_where_nobody_did(works: set[str]) -> None:
    works.add('egl')
    unset: dict[str, str] = {}
    rendering.choose_gl(unset)
    assert unset['LP_NUM_THREADS'] == '0'
    chosen = {'LP_NUM_THREADS': '2'}
    rendering.choose_gl(chosen)
    assert chosen['LP_NUM_THREADS'] == '2'


def test_setup_installs_what_the_line_names() -> None:
    packages = re.search(r'packages=\((lib.+)\)', (ROOT / 'scripts/setup').read_text())
    assert packages
    assert f"'apt-get install {packages[1]}'" in (ROOT / 'vla_ros/sim/rendering.py').read_text()


# -- in a process of its own, since a choice lasts as long as the process


def _python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items()
            if name not in ('MUJOCO_GL', 'PYOPENGL_PLATFORM', 'LP_NUM_THREADS')}
    return subprocess.run([sys.executable, '-c', program], env=kept | environment, cwd=ROOT,
                          capture_output=True, text=True, timeout=60, check=False)


def test_machine_without_a_driver_gets_the_line_and_no_crash() -> None:
    """With EGL's list of drivers empty, for real."""
    done = _python('from vla_ros.sim.rendering import choose_gl\n'
                   'try: choose_gl()\n'
                   'except ValueError as error: print(error)',
                   MUJOCO_GL='egl', __EGL_VENDOR_LIBRARY_FILENAMES=os.devnull)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('rendering: no OpenGL that works here, tried egl (')
    assert len(done.stdout.splitlines()) == 1


def test_missing_mujoco_is_named_with_the_command_that_brings_it() -> None:
    done = _python('import sys; from vla_ros.sim import rendering\n'
                   'rendering.importlib.util.find_spec = lambda name: None\n'
                   'try: rendering.import_mujoco()\n'
                   'except ValueError as error: print(error)')
    assert done.returncode == 0, done.stderr
    assert 'pip install mujoco' in done.stdout
    assert len(done.stdout.splitlines()) == 1


# Draws a red sphere into `image`; says why in JSON, and ends, where there is no OpenGL.
_DRAW = '''
import json
from vla_ros.sim.rendering import choose_gl, import_mujoco
try:
    mujoco = import_mujoco()
except ValueError as error:
    print(json.dumps(str(error)))
    raise SystemExit
model = mujoco.MjModel.from_xml_string("""<mujoco><worldbody>
  <light pos="0 0 2"/><geom type="sphere" size="0.2" rgba="1 0 0 1"/>
  <camera name="front" pos="0 -1 0" xyaxes="1 0 0 0 0 1"/></worldbody></mujoco>""")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 32, 48) as renderer:
    renderer.update_scene(data, 'front')
    image = renderer.render()
    choose_gl()  # takes nothing from a renderer
    assert (renderer.render() == image).all()
'''


def _drawn(program: str) -> list[Any]:
    """What a program prints in JSON that begins with `_DRAW`."""
    pytest.importorskip('mujoco', reason='mujoco is not installed')
    done = _python(_DRAW + program)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    if isinstance(found, str):
        pytest.skip(found)
    assert isinstance(found, list)
    return found


def test_what_was_chosen_draws() -> None:
    shape, middle, corner = _drawn(
        'print(json.dumps([image.shape, image[16, 24].tolist(), image[0, 0].tolist()]))')
    assert shape == [32, 48, 3]
    assert middle[0] > 50
    assert middle[0] > 1.5 * max(middle[1:])
    assert corner == [0, 0, 0]


@pytest.mark.skipif(importlib.util.find_spec('triton') is None, reason='triton is not installed')
def test_triton_can_be_imported_after_something_was_drawn() -> None:
    """As torch does in its own time. With Mesa's LLVM there first, the process would crash."""
    brightest, found = _drawn('import triton.language\n'
                              'print(json.dumps([int(image.max()), hasattr(triton, "jit")]))')
    assert brightest > 50
    assert found is True


def test_choice_that_comes_too_late_is_refused() -> None:
    pytest.importorskip('mujoco', reason='mujoco is not installed')
    done = _python('import mujoco; from vla_ros.sim import rendering\n'
                   'rendering.choose_gl = lambda: "egl"\n'
                   'try: rendering.import_mujoco()\n'
                   'except ValueError as error: print(error)')
    assert done.returncode == 0, done.stderr
    assert 'imported before' in done.stdout
    assert len(done.stdout.splitlines()) == 1
