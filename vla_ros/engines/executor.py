"""The async executor: one worker thread that runs the engine, so that nothing waits for it."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vla_ros.core.executor_state import Request
from vla_ros.core.inference_loop import Timing, result_of
from vla_ros.core.types import Answer, Result
from vla_ros.engines.contract import Engine


@dataclass(frozen=True)
class Outcome:
    """What became of a request: its result, or the line of its failure and the traceback."""

    request: Request
    result: Result
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
            result = result_of(self._engine.infer(inputs))
        except Exception as error:  # whatever an engine raises must not end the worker
            timing = Timing(preprocessed_ns, self._clock())
            line = ' '.join(f'{type(error).__name__}: {error}'.split())
            return Outcome(request, None, timing, line, traceback.format_exc())
        return Outcome(request, result, Timing(preprocessed_ns, self._clock()))


def warm_up(engine: Engine, count: int, clock: Callable[[], int],
            malformed: Callable[[Any], str]) -> list[int]:
    """Run an example observation until `count` runs are timed; returns their times in nanoseconds.

    The first run compiles, allocates and fills caches, and `engine.lag` more fill a pipeline; they
    are not among the timed ones. The engine is reset at the end: nothing of the example stays in
    it. Raises ValueError with one line where an answer is malformed or missing.
    """
    durations = []
    example = engine.example()
    for i in range(1 + engine.lag + count):
        begin_ns = clock()
        result = result_of(engine.infer(engine.preprocess(example)))
        if i > engine.lag:
            durations.append(clock() - begin_ns)
        if result is None:
            problem = '' if i < engine.lag else (
                f'engine gave no action chunk in {i + 1} inferences; its lag is {engine.lag}')
        elif isinstance(result, Answer):
            problem = malformed(result.actions) if result.observation is example else (
                'engine answered an observation that it was not given')
        else:
            problem = malformed(result)
        if problem:
            raise ValueError(f'warm-up: {problem}')
    engine.reset()
    return durations
