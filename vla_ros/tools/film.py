"""A film of episodes, as an animated GIF with the sentence below the image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BAR, MARGIN = 36, 12     # px, of the caption
SIZE = 16                # px, of its letters
LONGEST = 200            # characters of it that are looked at
MARK = 9                 # px, radius of the mark before it
FINER = 4                # times, in which marks are drawn before they are made smaller
COLOURS = 255            # of a palette, the same for an episode, so that little changes
PERIOD_MS = 100
LAST_MS = 900            # for which the end of an episode stays
SAMPLES = 12             # frames that the palette is made of, at most
PAPER, TEXT, FAINT = (28, 30, 34), (235, 235, 235), (120, 124, 132)
DONE, FAILED = (92, 208, 110), (232, 96, 84)
LAST_EUROPEAN = '\u024f'
OURS, BAND = (PAPER, TEXT, FAINT, DONE, FAILED), 8


@dataclass(frozen=True)
class FilmFrame:
    """`pixels` uint8 [h, w, 3]; what was being said; whether it was done, or given up.

    `note`: a few characters at the right. `ms`: for how long it is shown, unless it is the `last`
    one of an episode.
    """

    pixels: NDArray[np.uint8]
    caption: str
    done: bool
    last: bool = False
    failed: bool = False
    note: str = ''
    ms: int = PERIOD_MS


def write_film(frames: Iterable[FilmFrame], file: Path) -> None:
    """Write the frames, which are gone through twice.

    Raises ValueError without any, OSError where the file cannot be made.
    """
    times = [LAST_MS if frame.last else frame.ms for frame in frames]
    if not times:
        raise ValueError(f'{file}: no frames to write')
    pages = _pages(frames, [_palette(samples) for samples in _samples(frames)])
    next(pages).save(file, save_all=True, append_images=pages, loop=0, optimize=False,
                     duration=times)


def _samples(frames: Iterable[FilmFrame]) -> Iterator[list[Any]]:
    """Of each episode some frames, of half the size."""
    from PIL import Image

    samples: list[Any] = []
    index, step = 0, 1
    for frame in frames:
        if index % step == 0:
            image = _captioned(frame)
            samples.append(image.resize((image.width // 2, image.height // 2),
                                        Image.Resampling.NEAREST))
        if len(samples) > SAMPLES:
            samples, step = samples[::2], 2 * step
        index += 1
        if frame.last:
            yield samples
            samples, index, step = [], 0, 1
    if samples:
        yield samples


def _palette(samples: Sequence[Any]) -> Any:
    """An image with the colours that an episode needs: small things keep theirs."""
    from PIL import Image

    width, height = samples[0].size
    sheet = Image.new('RGB', (width, height * len(samples) + BAND * len(OURS)))
    for i, image in enumerate(samples):
        sheet.paste(image, (0, i * height))
    for i, colour in enumerate(OURS):  # they are few, and must not look like something else
        top = height * len(samples) + BAND * i
        sheet.paste(colour, (0, top, width, top + BAND))
    return sheet.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, kmeans=1,
                          dither=Image.Dither.NONE)


def _pages(frames: Iterable[FilmFrame], palettes: Sequence[Any]) -> Iterator[Any]:
    from PIL import Image

    left = iter(palettes)
    palette = None
    for frame in frames:
        palette = palette or next(left)
        yield _captioned(frame).quantize(palette=palette, dither=Image.Dither.NONE)
        if frame.last:
            palette = None


def _captioned(frame: FilmFrame) -> Any:
    from PIL import Image, ImageDraw

    height, width = frame.pixels.shape[:2]
    middle = height + BAR // 2
    page = Image.new('RGB', (width, height + BAR), PAPER)
    page.paste(Image.fromarray(frame.pixels), (0, 0))
    page.paste(_mark(frame.done, frame.failed), (MARGIN, middle - MARK))
    draw, font = ImageDraw.Draw(page), _font(frame.caption)
    left, right = MARGIN + 2 * MARK + 8, width - MARGIN
    draw.text((right, middle), frame.note, fill=FAINT, font=font, anchor='rm')
    room = right - left - (draw.textlength(frame.note, font) + MARGIN if frame.note else 0)
    draw.text((left, middle), _fitted(frame.caption, draw, font, room),
              fill=DONE if frame.done else TEXT, font=font, anchor='lm')
    return page


def _fitted(text: str, draw: Any, font: Any, room: float) -> str:
    """The text, cut where it would be wider than `room` pixels."""
    if len(text) <= LONGEST and draw.textlength(text, font) <= room:
        return text
    text = text[:LONGEST]
    while text and draw.textlength(f'{text}…', font) > room:
        text = text[:-1]
    return f'{text.rstrip()}…'


def _mark(done: bool, failed: bool) -> Any:
    """A tick, a cross, or a ring while neither is known."""
    from PIL import Image, ImageDraw

    size = 2 * MARK * FINER
    mark = Image.new('RGB', (size, size), PAPER)
    draw = ImageDraw.Draw(mark)
    if not (done or failed):
        draw.ellipse((FINER, FINER, size - FINER, size - FINER), outline=FAINT, width=2 * FINER)
    else:
        draw.ellipse((0, 0, size - 1, size - 1), fill=DONE if done else FAILED)
        strokes = [((0.27, 0.53), (0.43, 0.69), (0.73, 0.34))] if done else [
            ((0.33, 0.33), (0.67, 0.67)), ((0.67, 0.33), (0.33, 0.67))]
        for stroke in strokes:
            draw.line([(x * size, y * size) for x, y in stroke], fill=PAPER, width=2 * FINER,
                      joint='curve')
    return mark.resize((2 * MARK, 2 * MARK), Image.Resampling.LANCZOS)


@cache
def _font(text: str) -> Any:
    """A font for a text; Pillow's own knows European letters only."""
    from PIL import ImageFont

    if max(text, default='') > LAST_EUROPEAN:
        try:
            import matplotlib
        except ImportError:
            pass
        else:
            file = Path(matplotlib.get_data_path(), 'fonts', 'ttf', 'DejaVuSans.ttf')
            return ImageFont.truetype(file, SIZE - 1)
    return ImageFont.load_default(SIZE)
