"""The async executor: one worker thread that runs the engine, so that nothing waits for it."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.executor_state import Request
from vla_ros.core.inference_loop import Timing
from vla_ros.engines.contract import Engine


@dataclass(frozen=True)
class Outcome:
    """What became of a request: actions and timing, or the failure and its traceback."""

    request: Request
    actions: NDArray[np.floating[Any]] | None
    timing: Timing
    failure: str = ''
    traceback: str = ''


class AsyncExecutor:
    """Runs requests one after the other on its own thread.

    `clock` gives nanoseconds and is called from the worker; `notify` is called from the worker
    each time that an outcome can be taken. All other methods belong to one owner thread. The
    thread is a daemon: an engine that hangs cannot keep the process alive.
    """

    def __init__(self, engine: Engine, clock: Callable[[], int],
                 notify: Callable[[], None]) -> None:
        self._engine = engine
        self._clock = clock
        self._notify = notify
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name='engine', daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Hand a request to the worker; there is at most one at a time (`ExecutorState`)."""
        self._requests.put(request)

    def take(self) -> Outcome | None:
        """The next outcome, or None."""
        try:
            return self._outcomes.get_nowait()
        except queue.Empty:
            return None

    def stop(self, timeout_s: float) -> bool:
        """Ask the worker to end and wait; returns whether it did."""
        self._requests.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            request = self._requests.get()
            if request is None:
                return
            self._outcomes.put(self._infer(request))
            self._notify()

    def _infer(self, request: Request) -> Outcome:
        preprocessed_ns = self._clock()
        try:
            if request.reset:
                self._engine.reset()
            inputs = self._engine.preprocess(request.observation)
            preprocessed_ns = self._clock()
            actions = np.asarray(self._engine.infer(inputs))
        except Exception as error:  # whatever an engine raises must not end the worker
            timing = Timing(preprocessed_ns, self._clock())
            line = ' '.join(f'{type(error).__name__}: {error}'.split())
            return Outcome(request, None, timing, line, traceback.format_exc())
        return Outcome(request, actions, Timing(preprocessed_ns, self._clock()))


def warm_up(engine: Engine, count: int, clock: Callable[[], int],
            malformed: Callable[[Any], str]) -> list[int]:
    """Run an example observation `count` times; returns the durations in nanoseconds.

    The first run compiles, allocates and fills caches; it is not among the durations.
    """
    durations = []
    example = engine.example()
    for i in range(count + 1):
        begin_ns = clock()
        actions = engine.infer(engine.preprocess(example))
        if i:
            durations.append(clock() - begin_ns)
        problem = malformed(np.asarray(actions))
        if problem:
            raise ValueError(f'warm-up: {problem}')
    engine.reset()
    return durations
