"""The async executor's policy: a one-slot mailbox, three triggers, one inference at a time.

The thread that runs the engine lives in `engines.executor`; this decides what it runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from vla_ros.core.types import Observation


class Trigger(str, Enum):
    """When an inference is started, provided that a new observation waits."""

    CONTINUOUS = 'continuous'  # as soon as the last one ended
    THRESHOLD = 'threshold'    # when the plan has less than a share of the horizon left
    RATE = 'rate'              # at a fixed rate at most


@dataclass(frozen=True)
class Request:
    """One inference: what it is about, and for which epoch. `reset`: forget earlier ones first."""

    sequence: int
    observation: Observation
    epoch_ns: int
    started_ns: int
    reset: bool


class ExecutorState:
    """Decides which observation is inferred and which results count. Not thread-safe.

    `threshold_ns`: remaining plan below which `Trigger.THRESHOLD` starts; `rate_period_ns`: least
    time between two starts of `Trigger.RATE`.
    """

    def __init__(self, trigger: Trigger = Trigger.CONTINUOUS, threshold_ns: int = 0,
                 rate_period_ns: int = 0) -> None:
        self._trigger = trigger
        self._threshold_ns = threshold_ns
        self._rate_period_ns = rate_period_ns
        self._waiting: Observation | None = None
        self._last_start_ns: int | None = None
        self._sequence = 0
        self._must_reset = True
        self._discarded = 0  # sequence of the last request that the mailbox was emptied after
        self.running: Request | None = None
        self.epoch_ns = 0
        self.failure = ''
        self.counts: Counter[str] = Counter()

    def offer(self, observation: Observation) -> None:
        """Put an observation into the mailbox; one that waits there is replaced and counted."""
        if self._waiting is not None:
            self.counts['observation replaced by a newer one'] += 1
        self._waiting = observation

    def discard(self) -> None:
        """Empty the mailbox: the instruction changed, what was started for it does not count."""
        self._waiting = None
        self._discarded = self._sequence

    def poll(self, now_ns: int, remaining_ns: int) -> Request | None:
        """The inference to start now, if any. `remaining_ns`: how long the plan will last."""
        if self._waiting is None or self.running is not None or self.failure:
            return None
        if self._trigger is Trigger.THRESHOLD and remaining_ns > self._threshold_ns:
            return None
        if (self._trigger is Trigger.RATE and self._last_start_ns is not None
                and now_ns - self._last_start_ns < self._rate_period_ns):
            return None
        self._sequence += 1
        self._last_start_ns = now_ns
        self.running = Request(self._sequence, self._waiting, self.epoch_ns, now_ns,
                               self._must_reset)
        self._waiting, self._must_reset = None, False
        return self.running

    def finish(self) -> None:
        """The inference that was running ended."""
        self.running = None

    def refusal(self, request: Request, instruction: str) -> str:
        """Why a result about this request does not count, which is counted; or ''.

        One that was started before the instruction changed does not, even if it has changed back.
        """
        if request.epoch_ns != self.epoch_ns:
            return self._drop('result from before the last reset')
        if request.observation.instruction != instruction or request.sequence <= self._discarded:
            return self._drop('result for an earlier instruction')
        return ''

    def fail(self, request: Request, cause: str) -> None:
        """An inference raised or gave nonsense: latched, unless a reset came between."""
        self.running = None
        self.counts['failure'] += 1
        if request.epoch_ns == self.epoch_ns:
            self.failure = cause

    def reset(self, epoch_ns: int) -> None:
        """Begin a new epoch: earlier observations, results and failures do not count any more."""
        self.epoch_ns = epoch_ns
        self.failure = ''
        self._must_reset = True
        self._waiting = None
        self._last_start_ns = None

    def busy_ns(self, now_ns: int) -> int:
        """How long the running inference has taken so far; 0 while idle."""
        return now_ns - self.running.started_ns if self.running is not None else 0

    def _drop(self, reason: str) -> str:
        self.counts[f'dropped: {reason}'] += 1
        return reason
