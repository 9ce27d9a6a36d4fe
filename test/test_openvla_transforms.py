"""What the policy sees, against Pillow and against sums done by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

torch = pytest.importorskip('torch', reason='the transforms need it')

from vla_ros.policies.openvla.config import Vision, published, tiny  # noqa: E402
from vla_ros.policies.openvla.transforms import Transform, resize_table  # noqa: E402

MEAN = np.array([0.485, 0.456, 0.406, 0.5, 0.5, 0.5])
STD = np.array([0.229, 0.224, 0.225, 0.5, 0.5, 0.5])


def pictures(n: int, height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), np.uint8)


def normalized(images: NDArray[Any]) -> NDArray[Any]:
    """[n, S, S, 3] grey levels to [1, 6n, S, S], in float64."""
    n, height, width, _ = images.shape
    six = np.concatenate([images, images], 3) / 255.0
    return ((six - MEAN) / STD).transpose(0, 3, 1, 2).reshape(1, 6 * n, height, width)


def seen(vision: Vision, images: NDArray[np.uint8], **options: Any) -> NDArray[np.float32]:
    made: NDArray[np.float32] = Transform(vision, 'cpu', torch.float32, **options)(
        torch.from_numpy(images)).numpy()
    return made


def pillow(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Along the rows first: Pillow 13 itself begins with the columns where an image is tall."""
    wide = Image.fromarray(image).resize((size, len(image)), Image.BICUBIC)
    return np.array(wide.resize((size, size), Image.BICUBIC))


def test_black_and_white_are_the_published_numbers() -> None:
    vision = tiny().vision
    black = seen(vision, np.zeros((1, 28, 28, 3), np.uint8))[0, :, 5, 6]
    white = seen(vision, np.full((1, 28, 28, 3), 255, np.uint8))[0, :, 5, 6]
    np.testing.assert_allclose(black, [-2.1179039, -2.0357143, -1.8044444, -1, -1, -1], rtol=1e-6)
    np.testing.assert_allclose(white, [2.2489083, 2.4285714, 2.64, 1, 1, 1], rtol=1e-6)


def test_images_of_the_right_size_are_only_normalized() -> None:
    images = pictures(3, 28, 28)
    found = seen(replace(tiny().vision, images=3), images)
    assert found.shape == (1, 18, 28, 28)
    np.testing.assert_allclose(found, normalized(images), atol=1e-6)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_every_grey_level_is_that_of_the_published_processor(dtype: str) -> None:
    """In the type that the policy runs in there is no difference, not one bit."""
    levels = np.arange(28 * 28).astype(np.uint8).reshape(1, 28, 28, 1).repeat(3, 3)
    found = Transform(tiny().vision, 'cpu', getattr(torch, dtype))(torch.from_numpy(levels))
    by_division = levels.astype(np.float32)[0].transpose(2, 0, 1) / np.float32(255.0)
    wanted = [(by_division[c % 3] - np.float32(MEAN[c])) / np.float32(STD[c]) for c in range(6)]
    assert torch.equal(found[0], torch.from_numpy(np.stack(wanted)).to(getattr(torch, dtype)))


@pytest.mark.parametrize(('height', 'width'), [
    (480, 640), (640, 480), (224, 640), (300, 224), (100, 130), (3, 7), (1, 1), (225, 223)])
def test_other_sizes_are_squashed_as_pillow_does_to_the_last_bit(height: int, width: int) -> None:
    image = pictures(1, height, width)
    image[:, :height // 2] = image[:, :height // 2] // 128 * 255  # hard edges overshoot
    wanted = pillow(image[0], 224)
    found = seen(published().vision, image)
    levels = found[0, 3:].transpose(1, 2, 0) * 127.5 + 127.5
    np.testing.assert_array_equal(np.rint(levels), wanted)
    np.testing.assert_allclose(found, normalized(wanted[None]), atol=1e-6)


def test_lanczos_rounds_once_at_the_end() -> None:
    image = pictures(1, 40, 61)
    found = seen(tiny().vision, image, resampling='lanczos')

    def along(values: NDArray[Any], axis: int) -> NDArray[Any]:
        length = values.shape[axis]
        step = length / 28
        matrix = np.zeros((28, length))
        for place in range(28):
            x = (np.arange(length) + 0.5 - (place + 0.5) * step) / max(step, 1.0)
            safe = np.where(x == 0, 1.0, x) * np.pi
            row = np.where(x == 0, 1.0, 3 * np.sin(safe) * np.sin(safe / 3) / safe**2)
            row[np.abs(x) >= 3] = 0.0
            matrix[place] = row / row.sum()
        return np.moveaxis(np.tensordot(matrix, values, (1, axis)), 0, axis)

    exact = along(along(image[0].astype(np.float64), 0), 1)
    wanted = np.clip(np.rint(exact), 0, 255)
    levels = np.rint(found[0, 3:].transpose(1, 2, 0) * 127.5 + 127.5)
    unsure = np.abs(exact - np.floor(exact) - 0.5) < 1e-3  # float32 may round either way
    np.testing.assert_array_equal(levels[~unsure], wanted[~unsure])
    assert unsure.mean() < 0.01


def test_the_crop_shows_the_centre_corner_on_corner() -> None:
    """A ramp stays a ramp under bilinear sampling, so the answer can be worked out by hand."""
    vision = replace(published().vision, center_crop=0.9)
    ramp = np.zeros((1, 224, 224, 3), np.uint8)
    ramp[..., 0] = np.arange(224)[None, :, None].repeat(224, 2)
    ramp[..., 1] = np.arange(224)[None, None, :]
    levels = seen(vision, ramp)[0, 3:] * 127.5 + 127.5
    side = 0.9486832980505138  # the root of 0.9
    at = 223 * ((1 - side) / 2 + side * np.arange(224) / 223)
    wanted = np.floor(at / 255 * 255.5)  # from 5.7 to 217.3
    assert (wanted[0], wanted[-1]) == (5, 217)
    np.testing.assert_array_equal(np.rint(levels[0]), wanted[:, None].repeat(224, 1))
    np.testing.assert_array_equal(np.rint(levels[1]), wanted[None].repeat(224, 0))


def test_the_crop_weighs_four_neighbours() -> None:
    vision = replace(tiny().vision, center_crop=0.25)
    image = pictures(1, 28, 28, seed=3)
    levels = np.rint(seen(vision, image)[0, 3:].transpose(1, 2, 0) * 127.5 + 127.5)
    at = 27 * (0.25 + 0.5 * np.arange(28) / 27)
    low = np.floor(at).astype(int)
    part = at - low
    bright = image[0] / 255.0
    for y, x in ((0, 0), (3, 20), (13, 14), (27, 27)):
        square = bright[low[y]:low[y] + 2, low[x]:low[x] + 2]
        weights = np.outer([1 - part[y], part[y]], [1 - part[x], part[x]])
        exact = np.tensordot(weights, square) * 255.5
        assert np.abs(levels[y, x] - np.floor(exact)).max() == 0, (y, x, exact)


def test_a_crop_of_everything_changes_nothing() -> None:
    image = pictures(1, 28, 28)
    np.testing.assert_array_equal(seen(replace(tiny().vision, center_crop=1.0), image),
                                  seen(tiny().vision, image))


def test_other_sizes_are_squashed_before_the_crop() -> None:
    vision = replace(tiny().vision, center_crop=0.9)
    image = pictures(1, 50, 40)
    squashed = pillow(image[0], 28)[None]
    np.testing.assert_array_equal(seen(vision, image), seen(vision, squashed))


def test_the_answer_goes_into_the_buffer_that_is_given() -> None:
    transform = Transform(tiny(images=2).vision, 'cpu', torch.bfloat16)
    image = torch.from_numpy(pictures(2, 28, 28))
    out = torch.zeros(1, 12, 28, 28, dtype=torch.bfloat16)
    assert transform(image, out) is out
    assert torch.equal(out, transform(image))


@pytest.mark.parametrize(('images', 'line'), [
    (np.zeros((1, 28, 28, 3), np.float32), 'images: .* float32: needed are uint8'),
    (np.zeros((28, 28, 3), np.uint8), r'images: \[28, 28, 3\] uint8: needed are'),
    (np.zeros((1, 28, 28, 4), np.uint8), 'needed are uint8'),
    (np.zeros((2, 28, 28, 3), np.uint8), 'images: 2: the policy takes 1')])
def test_other_images_are_refused(images: NDArray[Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Transform(tiny().vision, 'cpu', torch.float32)(torch.from_numpy(images))


def test_an_unknown_resampling_is_refused() -> None:
    with pytest.raises(ValueError, match='resampling: nearest: allowed are bicubic, lanczos'):
        Transform(tiny().vision, 'cpu', torch.float32, resampling='nearest')


@pytest.mark.parametrize('resampling', ['bicubic', 'lanczos'])
@pytest.mark.parametrize('length', [1, 5, 28, 333])
def test_the_weights_of_a_place_add_up_to_one(length: int, resampling: str) -> None:
    index, weights = resize_table(length, 28, resampling)
    np.testing.assert_allclose(weights.sum(1), 1.0)
    assert index.min() >= 0
    assert index.max() < length
