"""Pictures of a run at chosen moments: what the policy saw when something changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2

from vla_ros.core.control_config import Tick
from vla_ros.core.runtime import Event, Instruction, Output
from vla_ros.core.types import NS_PER_S, Frame
from vla_ros.replay.hearer import Hearer
from vla_ros.replay.session import Session

MOST, EVENLY = 36, 12
LARGEST = 192  # pixels of the longer side
QUALITY = 70


@dataclass(frozen=True)
class Moment:
    """A picture, a JPEG, of the primary camera; time in nanoseconds from the start of the run."""

    time_ns: int
    why: str
    instruction: str
    jpeg: bytes


class Moments(Hearer):
    """Keeps at most 36 pictures: some spread evenly, the others where state or sentence change."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self._frame: Frame | None = None
        self._said = ''
        self._why: list[str] = []
        self._state = ''

    def on_begin(self, session: Session) -> None:
        self._start_ns = session.start_ns
        self._camera = next(iter(session.setup.policy.cameras))
        self._every_ns = max(NS_PER_S // 5, (session.end_ns - session.start_ns) // EVENLY)
        self._next_ns = session.start_ns

    def on_event(self, event: Event) -> None:
        payload = event.payload
        if isinstance(payload, Instruction) and payload.text != self._said:
            self._said = payload.text
            self._why.append('instruction')
        elif isinstance(payload, Frame) and payload.camera == self._camera:
            self._frame = payload
            if event.time_ns >= self._next_ns:
                self._next_ns = event.time_ns + self._every_ns
                self._keep(event.time_ns, 'evenly')
            elif self._why:
                self._keep(event.time_ns, self._why[-1])
            self._why.clear()

    def on_output(self, output: Output) -> None:
        if isinstance(output.payload, Tick) and output.payload.state.value != self._state:
            self._state = output.payload.state.value
            if self._frame is not None:
                self._keep(output.time_ns, self._state)

    def _keep(self, time_ns: int, why: str) -> None:
        # Changes must not take the place of what is spread evenly, which comes to the end.
        evenly = sum(moment.why == 'evenly' for moment in self.moments)
        room = MOST if why == 'evenly' else MOST - EVENLY - 1
        if (len(self.moments) if why == 'evenly' else len(self.moments) - evenly) >= room:
            return
        assert self._frame is not None, 'kept only with a frame'
        pixels = self._frame.pixels
        scale = LARGEST / max(pixels.shape[:2])
        if scale < 1.0:
            pixels = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        _, jpeg = cv2.imencode('.jpg', cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR),
                               [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
        self.moments.append(Moment(time_ns - self._start_ns, why, self._said, jpeg.tobytes()))

    def save(self, folder: Path) -> None:
        """Write the pictures, the time and reason in their names."""
        folder.mkdir(parents=True, exist_ok=True)
        for moment in self.moments:
            (folder / f'{moment.time_ns // 1_000_000:09d}_{moment.why}.jpg').write_bytes(
                moment.jpeg)
