"""From streams to observations: one primary image, the others nearest to it, state at its stamp."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from vla_ros.core.counting import Counts
from vla_ros.core.state_history import StateHistory, clock_mismatch, dropped_as
from vla_ros.core.types import NS_PER_S, Frame, Observation, StateSample

KEPT_FRAMES = 8
# A stream is named as interrupted after this many of its periods.
MISSED_PERIODS = 2.5
MISSED_LEAST_NS = 3 * NS_PER_S // 10


class OnViolation(str, Enum):
    """What happens to an observation whose members do not fit together."""

    REJECT = 'reject'
    DEGRADE = 'degrade'


@dataclass(frozen=True)
class CameraStream:
    """A camera of the policy: image size in pixels, expected period and allowed skew."""

    name: str
    width: int
    height: int
    period_ns: int
    skew_ns: int


class Assembler:
    """Builds at most one observation per primary frame. Not thread-safe.

    The primary camera is the first of `cameras`. `age_limit_ns` bounds the age of the oldest
    member. After a call, `problem` names the stream that is in the way, or is ''.
    """

    def __init__(self, cameras: Sequence[CameraStream], state_names: Sequence[str],
                 state_age_ns: int, age_limit_ns: int,
                 on_violation: OnViolation = OnViolation.REJECT) -> None:
        if not cameras:
            raise ValueError('cameras: none; at least the primary one is needed')
        self._cameras = {camera.name: camera for camera in cameras}
        self._primary = cameras[0]
        self._frames: dict[str, deque[Frame]] = {
            c.name: deque(maxlen=KEPT_FRAMES) for c in cameras}
        self._history = StateHistory(state_names, state_age_ns)
        self._age_limit_ns = age_limit_ns
        self._on_violation = on_violation
        self._used_ns: int | None = None
        self._refused: dict[str, tuple[int, str]] = {}  # when and why, by camera
        self._state_refused = ''
        self.instruction = ''
        self.problem = ''
        self.counts = Counts()

    def on_frame(self, frame: Frame) -> str:
        """Take a frame; returns why it was dropped, or ''."""
        reason = self._refusal(frame)
        if reason:
            self._refused[frame.camera] = frame.received_ns, reason
            return self._drop(reason)
        self._frames[frame.camera].append(frame)
        return ''

    def on_state(self, sample: StateSample) -> str:
        """Take a measurement; returns why some of it was dropped, or ''."""
        reason = self._history.add(sample)
        if reason:
            self.counts[dropped_as(reason)] += 1
        self._state_refused = reason.partition(': ')[2]
        return reason

    def reuse(self) -> None:
        """Let the newest primary frame be used once more, for another instruction."""
        self._used_ns = None

    def clear(self) -> None:
        """Forget frames and state, for example after the clock jumped."""
        for frames in self._frames.values():
            frames.clear()
        self._history.clear()
        self._refused.clear()
        self._used_ns = None

    def assemble(self, now_ns: int) -> Observation | None:
        """The observation of the newest primary frame, once it is complete; else None."""
        frames = self._frames[self._primary.name]
        if not frames:
            self.problem = self.problem or f'{self._primary.name}: no frame yet'
            return None
        primary = frames[-1]
        if primary.stamp_ns == self._used_ns:
            return None
        degraded: list[str] = []
        members = self._members(primary, degraded)
        if members is None:
            return None
        state = self._history.at(
            primary.stamp_ns, anyway=self._on_violation is OnViolation.DEGRADE)
        because = f' ({self._state_refused})' if self._state_refused else ''
        if state.problem and not self._tolerated(f'joint state: {state.problem}{because}',
                                                 'joint state', degraded, state.complete):
            return None
        oldest_ns = min(state.oldest_ns, *(frame.stamp_ns for frame in members.values()))
        age_ns = now_ns - oldest_ns
        if age_ns > self._age_limit_ns:
            self._violated(f'observation: {age_ns / NS_PER_S:.2f} s old '
                           f'(limit {self._age_limit_ns / NS_PER_S:g} s)')
            return None
        self._used_ns = primary.stamp_ns
        self.problem = ''
        return Observation(
            stamp_ns=primary.stamp_ns, oldest_stamp_ns=oldest_ns,
            received_ns=max(state.received_ns, *(f.received_ns for f in members.values())),
            images={name: frame.pixels for name, frame in members.items()},
            state=state.values, state_names=self._history.names,
            instruction=self.instruction, degraded=tuple(degraded))

    def interrupted(self, now_ns: int) -> str:
        """The first camera without a usable frame for too long, and why none came; or ''."""
        for name, frames in self._frames.items():
            limit_ns = max(int(MISSED_PERIODS * self._cameras[name].period_ns), MISSED_LEAST_NS)
            if frames and now_ns - frames[-1].received_ns <= limit_ns:
                continue
            refused_ns, reason = self._refused.get(name, (0, ''))
            if reason and now_ns - refused_ns <= limit_ns:
                return reason
            if not frames:
                return f'{name}: no frame yet'
            silent_s = (now_ns - frames[-1].received_ns) / NS_PER_S
            return (f'{name}: no frame for {silent_s:.2f} s '
                    f'(one is due every {self._cameras[name].period_ns / NS_PER_S:.3g} s)')
        return ''

    def _refusal(self, frame: Frame) -> str:
        camera = self._cameras.get(frame.camera)
        if camera is None:
            return f'{frame.camera}: not a camera of this policy'
        height, width = frame.pixels.shape[:2]
        if (width, height) != (camera.width, camera.height):
            return (f'{frame.camera}: image is {width}x{height}, the policy takes '
                    f'{camera.width}x{camera.height}')
        mismatch = clock_mismatch(frame.stamp_ns, frame.received_ns)
        if mismatch:
            return f'{frame.camera}: {mismatch}'
        frames = self._frames[frame.camera]
        if frames and frame.stamp_ns == frames[-1].stamp_ns:
            return f'{frame.camera}: stamp repeated'
        if frames and frame.stamp_ns < frames[-1].stamp_ns:
            return f'{frame.camera}: stamp goes back'
        return ''

    def _members(self, primary: Frame, degraded: list[str]) -> dict[str, Frame] | None:
        members = {primary.camera: primary}
        for name, frames in self._frames.items():
            if name == primary.camera:
                continue
            if not frames:
                self._violated(f'{name}: no frame yet')
                return None
            nearest = min(frames, key=lambda frame: abs(frame.stamp_ns - primary.stamp_ns))
            apart_ns = abs(nearest.stamp_ns - primary.stamp_ns)
            if apart_ns > self._cameras[name].skew_ns and not self._tolerated(
                    f'{name}: {apart_ns / NS_PER_S:.3f} s apart from {primary.camera} '
                    f'(limit {self._cameras[name].skew_ns / NS_PER_S:g} s)', name, degraded, True):
                return None
            members[name] = nearest
        return members

    def _tolerated(self, problem: str, stream: str, degraded: list[str], usable: bool) -> bool:
        self._violated(problem)
        if self._on_violation is OnViolation.DEGRADE and usable:
            degraded.append(stream)
            return True
        return False

    def _violated(self, problem: str) -> None:
        self.problem = problem
        self.counts[problem.split(':')[0] + ': rejected or degraded'] += 1

    def _drop(self, reason: str) -> str:
        self.problem = reason
        self.counts[reason.split('; ')[0] if 'clock' not in reason else
                    f'{reason.split(":")[0]}: clock mismatch'] += 1
        return reason
