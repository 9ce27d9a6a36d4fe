"""OpenGL without a screen: chosen and tried before MuJoCo is imported, which then keeps to it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

# What helps where one does not work: packages of Debian and Ubuntu, those of scripts/setup first.
_FIX = {'egl': "'apt-get install libegl1 libgl1-mesa-dri libopengl0'",
        'osmesa': "'apt-get install libosmesa6'", 'glfw': 'unset MUJOCO_GL'}
# From EGL/egl.h and eglext.h
_NONE = 0x3038
_PLATFORM_DEVICE = 0x313F
_OPENGL_API = 0x30A2
# The same as mujoco.egl asks for: 8 bits of red, green, blue and alpha, 24 of depth, 8 of stencil,
# colours as RGB, drawn to a buffer, with OpenGL.
_WANTED = (0x3024, 8, 0x3023, 8, 0x3022, 8, 0x3021, 8, 0x3025, 24, 0x3026, 8,
           0x303F, 0x308E, 0x3033, 0x0001, 0x3040, 0x0008, _NONE)
_OSMESA_RGBA = 0x1908


def import_mujoco() -> Any:
    """The module mujoco, able to render. Raises ValueError with one line.

    Contexts belong to the process and the thread that make them: call it after a fork.
    """
    loaded = 'mujoco' in sys.modules
    if not loaded and importlib.util.find_spec('mujoco') is None:
        raise ValueError("mujoco: not installed, the simulator needs it: run scripts/setup, or "
                         "'pip install mujoco'")
    gl = choose_gl()
    try:
        import mujoco
    except ImportError as error:
        raise ValueError(f'mujoco: {str(error).splitlines()[0]}: install it anew with '
                         f"'pip install --force-reinstall mujoco'") from error
    if loaded and (used := mujoco.GLContext.__module__) != f'mujoco.{gl}':
        raise ValueError(f'mujoco: imported before the choice of OpenGL, it keeps to {used}: '
                         f'set MUJOCO_GL={gl}, or call import_mujoco() first')
    return mujoco


def choose_gl(environment: MutableMapping[str, str] = os.environ) -> str:
    """What MuJoCo shall render with: 'egl', 'osmesa' or 'glfw', set in `environment` too.

    MUJOCO_GL is kept to where somebody set it; else the first of egl and osmesa that can make a
    context. Raises ValueError with one line where none can.
    """
    # Mesa's software rasterizer in the calling thread: handing small images to other threads
    # costs more than they save, and cores are few.
    environment.setdefault('LP_NUM_THREADS', '0')
    _load_triton()
    named = environment.get('MUJOCO_GL', '').strip().lower()
    if named and named not in _FIX:
        raise ValueError(f'MUJOCO_GL {named!r}: allowed are {", ".join(_FIX)}; unset it to have '
                         f'one chosen')
    names = (named,) if named else ('egl', 'osmesa')
    tried = []
    for name in names:
        problem = _problem(name, environment)
        if not problem:
            environment['MUJOCO_GL'] = name
            if name != 'glfw':
                environment['PYOPENGL_PLATFORM'] = name
            return name
        tried.append(f'{name} ({problem})')
    raise ValueError(f'rendering: no OpenGL that works here, tried {" and ".join(tried)}: '
                     f'{" or ".join(_FIX[name] for name in names)}')


def _load_triton() -> None:
    """Load triton's LLVM before that of Mesa, where triton is installed.

    Mesa's driver gives its symbols to all that is loaded later, and triton, which torch imports
    in its own time, dies of them. The other way round both work.
    """
    if importlib.util.find_spec('triton') is not None:
        with contextlib.suppress(Exception):  # one that does not work is not needed here
            importlib.import_module('triton')


def _problem(name: str, environment: Mapping[str, str]) -> str:
    """Why `name` cannot render here, '' where it can."""
    if name == 'glfw':
        screen = environment.get('DISPLAY') or environment.get('WAYLAND_DISPLAY')
        return '' if screen else 'no DISPLAY'
    platform = environment.get('PYOPENGL_PLATFORM', '').strip().lower()
    if platform not in ('', name):
        return f'PYOPENGL_PLATFORM is {platform}'
    try:
        return egl_problem(environment) if name == 'egl' else osmesa_problem()
    except OSError as error:
        return str(error)


def osmesa_problem() -> str:
    """Why OSMesa cannot make a context, '' where it can. Raises OSError without its library."""
    mesa = _library('libOSMesa.so.8')
    mesa.OSMesaCreateContextExt.restype = ctypes.c_void_p
    context = mesa.OSMesaCreateContextExt(_OSMESA_RGBA, 24, 8, 0, None)
    if not context:
        return 'no context'
    mesa.OSMesaDestroyContext(ctypes.c_void_p(context))
    return ''


def egl_problem(environment: Mapping[str, str] = os.environ) -> str:
    """Why EGL cannot make a context, '' where it can: the steps of mujoco.egl, without PyOpenGL,
    which cannot change its mind later. Raises OSError without the libraries.
    """
    egl = _library('libEGL.so.1')
    _library('libOpenGL.so.0', 'libGL.so.1')
    handle = ctypes.c_void_p
    egl.eglGetProcAddress.restype = handle
    egl.eglCreateContext.restype = handle
    query, display_of = (egl.eglGetProcAddress(name)
                         for name in (b'eglQueryDevicesEXT', b'eglGetPlatformDisplayEXT'))
    if not query or not display_of:
        return 'libEGL.so.1 cannot list devices'
    integer = ctypes.POINTER(ctypes.c_int)
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.POINTER(handle), integer)(query)
    display_of = ctypes.CFUNCTYPE(handle, ctypes.c_uint, handle, integer)(display_of)

    devices, count = (handle * 16)(), ctypes.c_int()
    if not query(len(devices), devices, ctypes.byref(count)) or not count.value:
        return 'no driver'
    usable = devices[:count.value]
    chosen = environment.get('MUJOCO_EGL_DEVICE_ID', '')
    if chosen:
        if not chosen.isdigit() or int(chosen) >= len(usable):
            return f'MUJOCO_EGL_DEVICE_ID is {chosen!r}, allowed are 0 to {len(usable) - 1}'
        usable = [usable[int(chosen)]]
    for device in usable:
        display = handle(display_of(_PLATFORM_DEVICE, device, None))
        if display and egl.eglInitialize(display, None, None):
            break
    else:
        return 'no driver that starts'

    # The display stays open: closing it would take the contexts that others have on it.
    wanted = (ctypes.c_int * len(_WANTED))(*_WANTED)
    config = handle()
    if not egl.eglChooseConfig(display, wanted, ctypes.byref(config), 1, ctypes.byref(count)) \
            or not count.value:
        return 'no format for images'
    if not egl.eglBindAPI(_OPENGL_API):
        return 'OpenGL ES only'
    context = egl.eglCreateContext(display, config, None, None)
    if not context:
        return 'no context'
    egl.eglDestroyContext(display, handle(context))
    return ''


def _library(*names: str) -> ctypes.CDLL:
    """The first of these shared libraries that loads. Raises OSError."""
    problem = ''
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            missing = 'No such file' in str(error)
            problem = problem or (f'{name} is missing' if missing else str(error))
    raise OSError(problem)
