"""The inference side without threads: streams in, requests out; results in, plans out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import ActionSpec
from vla_ros.core.anchoring import Anchoring
from vla_ros.core.assembler import Assembler
from vla_ros.core.chunk_buffer import ChunkBuffer, Seam, stretch
from vla_ros.core.counting import Counts
from vla_ros.core.executor_state import ExecutorState, Request
from vla_ros.core.in_progress import Given, InProgress
from vla_ros.core.latency import LatencyAccount, LatencyWindow
from vla_ros.core.padding import pad
from vla_ros.core.state_history import StateHistory
from vla_ros.core.types import (
    NS_PER_S,
    ActionChunk,
    Answer,
    Frame,
    InferenceStatus,
    Plan,
    Result,
    StateSample,
)

# Delays to see before the slow-down and 'inference too slow' trust them.
DELAYS_NEEDED = 5
SLOWEST_RATE = 0.5


@dataclass(frozen=True)
class InferenceConfig:
    """What the inference loop is told. `spec` is the policy's own, `absolute` the anchored deltas.

    `interval_ns`: time between two starts that the trigger and the camera ask for at best;
    `deadline_ns`: an inference that takes longer is named; `arrival`: step 0 begins on arrival.
    """

    spec: ActionSpec
    absolute: frozenset[str]
    horizon: int
    period_ns: int
    interval_ns: int
    deadline_ns: int
    instruction_grace_ns: int = NS_PER_S
    state_age_ns: int = NS_PER_S // 2
    arrival: bool = False
    pad_short_chunks: bool = False


@dataclass(frozen=True)
class Timing:
    """When the stages of one inference ended, in nanoseconds of ROS time."""

    preprocessed_ns: int
    inferred_ns: int


def result_of(given: Any) -> Result:
    """What an engine gave, with its actions as an array. Raises ValueError where they are none."""
    if given is None:
        return None
    if isinstance(given, Answer):
        return Answer(given.observation, np.asarray(given.actions))
    return np.asarray(given)


class InferenceLoop:
    """Not thread-safe: one thread at a time may call.

    `lag`: how many observations the engine is given after the one it answers; 0 unless it is a
    pipeline. `answered`: what the newest plan answers.
    """

    STAGES = ('receive', 'queue', 'preprocess', 'infer', 'merge')

    def __init__(self, config: InferenceConfig, assembler: Assembler, executor: ExecutorState,
                 buffer: ChunkBuffer) -> None:
        self.config = config
        self.assembler = assembler
        self.executor = executor
        self.buffer = buffer
        self.latency = LatencyAccount(self.STAGES)
        self.counts = Counts()
        self.rate = 1.0
        self.lag = 0
        self.answered: Given | None = None
        self.seam: Seam | None = None
        self._anchoring = Anchoring(config.spec, config.absolute)
        self._history = StateHistory(self._anchoring.state_names, config.state_age_ns)
        self._delay = LatencyWindow(100)
        self._busy = LatencyWindow(100)
        self._warm_up_busy_ns = 0.0
        self._in_progress = InProgress()
        self._unanswered = 0  # inferences in a row without an answer that counts
        self._observation_ns = 0
        self._changed_ns: int | None = None

    @property
    def horizon_ns(self) -> int:
        return self.config.horizon * self.config.period_ns

    # --- what comes in -------------------------------------------------------------------------

    def on_frame(self, frame: Frame, now_ns: int) -> str:
        """Take a frame, and assemble an observation where that completes one."""
        reason = self.assembler.on_frame(frame)
        if not reason:
            self._assemble(now_ns)
        return reason

    def on_state(self, sample: StateSample) -> str:
        """Take a measurement; returns why some of it was dropped, or ''."""
        self._history.add(sample)
        return self.assembler.on_state(sample)

    def on_instruction(self, text: str, now_ns: int) -> None:
        """A new sentence: results for the old one are dropped, the old plan plays on for a grace.

        The empty sentence means: come to rest and wait.
        """
        text = text.strip()
        if text == self.assembler.instruction:
            return
        self.assembler.instruction = text
        self.executor.discard()
        if not text:
            self.buffer.clear()
            self._changed_ns = None
            return
        if self.buffer.plan is not None and self._changed_ns is None:
            self._changed_ns = now_ns  # a further change does not prolong the grace
        self.assembler.reuse()
        self._assemble(now_ns)

    def on_reset(self, reset_stamp_ns: int) -> None:
        """A new epoch begins: nothing older than this counts."""
        if reset_stamp_ns == self.executor.epoch_ns:
            return
        self.executor.reset(reset_stamp_ns)
        self.buffer.clear()
        self.assembler.clear()
        self._history.clear()
        self._in_progress.clear()
        self._unanswered = 0
        self._observation_ns = 0
        self._changed_ns = None

    def on_warm_up(self, durations_ns: list[int]) -> str:
        """Durations of warm-up inferences; returns why the policy cannot drive, or ''.

        They stay out of every statistic and only stand in until real delays are known.
        """
        self._warm_up_busy_ns = float(np.percentile(durations_ns, 95)) if durations_ns else 0.0
        if not self.config.arrival and self._delay_ns() > self.horizon_ns:
            return self._too_slow(self._delay_ns())
        return ''

    # --- inference -----------------------------------------------------------------------------

    def poll(self, now_ns: int) -> Request | None:
        """The inference to start now, if any."""
        if not self.assembler.instruction:
            return None
        # A plan for an earlier instruction is no reason to wait.
        remaining_ns = self.buffer.remaining_ns(now_ns) if self._changed_ns is None else 0
        return self.executor.poll(now_ns, remaining_ns)

    def on_result(self, request: Request, result: Result, timing: Timing,
                  now_ns: int) -> Plan | None:
        """Take what an inference gave; returns the new plan, if it makes one.

        Stamp, anchor and delay are those of the observation that is answered, which may be an
        earlier one than that of `request`. A chunk of wrong shape or with a value that is not
        finite latches a failure.
        """
        self.executor.finish()
        given = self._taken(Given(request, timing.preprocessed_ns), result)
        if given is None or result is None:
            return None
        observation = given.request.observation
        actions = np.asarray(result.actions if isinstance(result, Answer) else result)
        problem = self.malformed(actions)
        if problem:
            self.executor.fail(request, problem)
            return None
        self._unanswered = 0
        self._busy.add(timing.inferred_ns - request.started_ns)
        self._delay.add(now_ns - observation.stamp_ns)
        self.rate = self._slow_rate()
        anchor = self._history.at(observation.stamp_ns, self._anchoring.state_names)
        if anchor.problem:
            self.counts[f'dropped: no anchor: {anchor.problem.split(" ")[0]}'] += 1
            return None
        values = pad(actions.astype(np.float64), self.config.horizon, self.config.spec)
        start_ns = now_ns if self.config.arrival else observation.stamp_ns
        chunk = ActionChunk(observation.stamp_ns, start_ns, self.config.period_ns,
                            self._anchoring.apply(values, anchor.values))
        chunk = stretch(chunk, self.rate, self._anchoring.planned)
        changed = self._changed_ns is not None
        if self._grace_over(now_ns):  # the old plan came to rest and is nothing to go on from
            self.buffer.clear()
        merged = self.buffer.merge(chunk, now_ns, fade=changed)
        if merged.plan is None:
            self.counts[f'dropped: chunk: {merged.dropped}'] += 1
            return None
        self._changed_ns = None
        self.answered = given
        self.seam = merged.seam or self.seam
        self.latency.add(
            receive=observation.received_ns - observation.stamp_ns,
            queue=given.request.started_ns - observation.received_ns,
            preprocess=given.preprocessed_ns - given.request.started_ns,
            infer=timing.inferred_ns - given.preprocessed_ns,
            merge=now_ns - timing.inferred_ns)
        return merged.plan

    def on_failure(self, request: Request, cause: str) -> None:
        """The engine raised: latched until reset."""
        self.executor.fail(request, f'engine failed: {cause}')

    def status(self, now_ns: int) -> InferenceStatus:
        """What to tell the control side now."""
        cause, reaction = self._trouble(now_ns)
        return InferenceStatus(self._observation_ns, self.executor.epoch_ns, cause, reaction,
                               self.assembler.instruction)

    # --- inside --------------------------------------------------------------------------------

    def _taken(self, new: Given, result: Result) -> Given | None:
        """What the result of the inference `new` answers; None where nothing that counts is.

        What was given in an earlier epoch is never in progress, so nothing about it gets through.
        """
        given: Given | None = new
        if new.request.epoch_ns == self.executor.epoch_ns:
            self._in_progress.add(new)
            if isinstance(result, Answer):
                given = self._in_progress.take(result.observation)
            elif result is not None:
                self._in_progress.take(new.request.observation)
        if result is None:
            self.counts['inference without an answer'] += 1
        elif given is None:
            self.counts['dropped: answer to what is not in progress'] += 1
        elif not self.executor.refusal(given.request, self.assembler.instruction):
            return given
        if result is None or isinstance(result, Answer):
            self._unanswered += 1
        return None

    def _assemble(self, now_ns: int) -> None:
        observation = self.assembler.assemble(now_ns)
        if observation is None:
            return
        if observation.stamp_ns < self.executor.epoch_ns:
            self.counts['dropped: observation from before the last reset'] += 1
            return
        self._observation_ns = observation.stamp_ns
        if observation.instruction:
            self.executor.offer(observation)

    def malformed(self, actions: NDArray[np.floating[Any]]) -> str:
        """Why these actions are not what the policy promises, in one line, or ''."""
        names, horizon = self.config.spec.names, self.config.horizon
        if actions.dtype.kind not in 'fiu':
            return f'engine gave values of type {actions.dtype}; the policy promises floats'
        shape = actions.shape
        if len(shape) != 2 or shape[1] != len(names):
            return f'engine gave shape {shape}; the policy promises ({horizon}, {len(names)})'
        short = 0 < shape[0] < horizon and self.config.pad_short_chunks
        if shape[0] != horizon and not short:
            return f'engine gave {shape[0]} steps; the policy promises a horizon of {horizon}'
        if not np.isfinite(actions).all():
            step, column = np.argwhere(~np.isfinite(actions))[0]
            return f'engine gave {actions[step, column]} for {names[column]} of step {step}'
        return ''

    def _trouble(self, now_ns: int) -> tuple[str, str]:
        """Cause and reaction: the gravest trouble."""
        if self.executor.failure:
            return self.executor.failure, 'fault'
        if not self.assembler.instruction:
            return 'no instruction; publish one on the topic instruction', 'wait'
        if self._grace_over(now_ns):
            return 'instruction changed, no action chunk for it yet', 'hold'
        delay_ns = self._delay_ns()
        if not self.config.arrival and delay_ns > self.horizon_ns:
            return self._too_slow(delay_ns), 'hold'
        busy_ns = self.executor.busy_ns(now_ns)
        if busy_ns > self._patience_ns():
            return f'engine has not answered for {busy_ns / NS_PER_S:.2f} s', 'none'
        problem = self.assembler.interrupted(now_ns) or self.assembler.problem
        return problem or self._filling(), 'none'

    def _filling(self) -> str:
        """Why the engine's answers keep people waiting, or ''."""
        if not self._unanswered:
            return ''
        if self._unanswered <= self.lag:
            return f'pipeline of the engine fills: {self._unanswered} of {self.lag} inferences'
        takes = f'; its pipeline takes {self.lag}' if self.lag else ''
        return f'engine gives no action chunk: {self._unanswered} inferences without{takes}'

    def _grace_over(self, now_ns: int) -> bool:
        """Whether the plan for an earlier instruction has been played for long enough."""
        return (self._changed_ns is not None
                and now_ns - self._changed_ns > self.config.instruction_grace_ns)

    def _patience_ns(self) -> float:
        """How long an inference may take before it is named, well before the plan is exhausted."""
        known = len(self._busy) >= DELAYS_NEEDED
        usual_ns = self._busy.percentile_ns(95) if known else self._warm_up_busy_ns
        return min(self.config.deadline_ns, max(self.horizon_ns / 2, 2.0 * usual_ns))

    def _too_slow(self, delay_ns: float) -> str:
        return (f'inference too slow: {delay_ns / NS_PER_S:.2f} s (p95) exceeds the horizon of '
                f'{self.horizon_ns / NS_PER_S:g} s')

    def _delay_ns(self) -> float:
        """The p95 delay from observation to plan; before enough are known, as the warm-up says."""
        if len(self._delay) < DELAYS_NEEDED:
            busy_ns = self._warm_up_busy_ns
            return busy_ns + self.lag * max(busy_ns, self.config.interval_ns)
        return self._delay.percentile_ns(95)

    def _slow_rate(self) -> float:
        """The rate of chunk-local time at which plans last until their successors arrive.

        A plan must cover the time to the next start plus the delay of the next result, in whole
        steps: a piece of one is not played.
        """
        if self.config.arrival:
            return 1.0
        known = len(self._delay) >= DELAYS_NEEDED
        busy_ns = self._busy.percentile_ns(95) if known else self._warm_up_busy_ns
        needed_ns = self._delay_ns() + max(busy_ns, float(self.config.interval_ns))
        needed_steps = int(needed_ns // self.config.period_ns) + 1
        return max(SLOWEST_RATE, min(1.0, self.config.horizon / max(1, needed_steps)))


