"""Recorded observations in one file: what a check or a warm-up can be run on without a robot."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.types import ImageSize, Observation
from vla_ros.profiles.locate import config_folder

FORMAT = 'vla_ros observations 1'
SHIPPED = 'observations/sim_arm.npz'  # in the folder of models
_MOST = 10_000                        # observations
_MOST_PIXELS = 1 << 26


def shipped() -> Path:
    """The file that comes with the package: frames of the simulated arm. Raises ValueError."""
    file = config_folder().parent / 'models' / SHIPPED
    if not file.is_file():
        raise ValueError(f'{file}: the shipped observations are missing; install the package '
                         'again, or record some: vla-ros check record FILE')
    return file


def save(file: Path, observations: Sequence[Observation]) -> None:
    """Write observations with the same cameras and state names. Images become PNG."""
    import cv2
    names = list(observations[0].images)
    images: list[NDArray[np.uint8]] = []
    for seen in observations:
        for name in names:
            done, png = cv2.imencode('.png', cv2.cvtColor(seen.images[name], cv2.COLOR_RGB2BGR),
                                     [cv2.IMWRITE_PNG_COMPRESSION, 9])
            if not done:
                raise ValueError(f'{file}: an image of {name} cannot be compressed')
            images.append(np.asarray(png, np.uint8).ravel())
    with io.BytesIO() as whole:
        np.savez(whole, format=FORMAT, cameras=names, images=np.concatenate(images),
                 ends=np.cumsum([len(image) for image in images]),
                 state=np.stack([seen.state for seen in observations]).astype(np.float64),
                 state_names=np.array(observations[0].state_names, np.str_),
                 instructions=[seen.instruction for seen in observations])
        file.write_bytes(whole.getvalue())


def load(file: Path) -> tuple[Observation, ...]:
    """The observations of a file. Raises ValueError with one line."""
    import cv2
    try:
        with np.load(file, allow_pickle=False) as arrays:
            if str(arrays['format']) != FORMAT:
                raise ValueError(f'not of the format {FORMAT!r}')
            cameras = [str(name) for name in arrays['cameras']]
            names = tuple(str(name) for name in arrays['state_names'])
            instructions = [str(text) for text in arrays['instructions']]
            state, ends, packed = arrays['state'], arrays['ends'], arrays['images']
        count = len(instructions)
        if not (0 < count <= _MOST and cameras and state.shape == (count, len(names))
                and ends.shape == (count * len(cameras),) and packed.dtype == np.uint8
                and np.isfinite(state).all()):
            raise ValueError('its arrays do not fit together')
        pieces = np.split(packed, ends[:-1])
        pixels = [_decoded(cv2.imdecode(piece, cv2.IMREAD_COLOR)) for piece in pieces]
    except OSError as error:
        raise ValueError(f'{file}: cannot be read: {error.strerror or error}') from None
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile, cv2.error) as error:
        raise ValueError(f'{file}: no recorded observations ({" ".join(str(error).split())}); '
                         'record some: vla-ros check record FILE') from None
    each = len(cameras)
    return tuple(Observation(
        stamp_ns=number, oldest_stamp_ns=number, received_ns=number,
        images=dict(zip(cameras, pixels[number * each:(number + 1) * each], strict=True)),
        state=np.asarray(state[number], np.float64), state_names=names,
        instruction=instructions[number]) for number in range(count))


def fitted(seen: Observation, cameras: Mapping[str, ImageSize], state_names: Sequence[str]
           ) -> Observation:
    """The observation with the cameras and the state that a policy takes.

    A camera of another name stands in for a missing one, in order; images are squashed to size.
    State entries that were not recorded are 0: enough to compare backends, not to act.
    """
    import cv2
    others = list(seen.images)
    images = {}
    for number, (name, size) in enumerate(cameras.items()):
        pixels = seen.images.get(name, seen.images[others[number % len(others)]])
        if pixels.shape[:2] != (size.height, size.width):
            pixels = np.asarray(cv2.resize(pixels, (size.width, size.height),
                                           interpolation=cv2.INTER_AREA), np.uint8)
        images[name] = pixels
    known = dict(zip(seen.state_names, seen.state, strict=True))
    state = np.array([known.get(name, 0.0) for name in state_names], np.float64)
    return Observation(seen.stamp_ns, seen.oldest_stamp_ns, seen.received_ns, images, state,
                       tuple(state_names), seen.instruction)


def _decoded(image: Any) -> NDArray[np.uint8]:
    import cv2
    if image is None or image.size > _MOST_PIXELS:
        raise ValueError('an image cannot be decoded')
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)
