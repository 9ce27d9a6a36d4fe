"""Evaluation in process: the trials of all tasks, shared out among worker processes.

Every trial depends on its seed alone, so the number of workers changes nothing but the time.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.types import ImageSize
from vla_ros.engines.contract import Engine
from vla_ros.engines.executor import warm_up
from vla_ros.engines.registry import make_engine
from vla_ros.profiles.binding import bind
from vla_ros.profiles.engine import load_engine
from vla_ros.profiles.loops import inference_loop
from vla_ros.profiles.policy import PolicyProfile, load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.sim.closed_loop import run_trial
from vla_ros.sim.oracle import Oracle
from vla_ros.sim.trial import make_trial
from vla_ros.sim.trial_record import TrialResult
from vla_ros.sim.world import World
from vla_ros.tools.eval_settings import EvalSettings
from vla_ros.tools.film import FilmFrame

VIEW = ImageSize(400, 300)  # of a film
TAIL_S = 0.8                # after a success, in a film
POLL_S = 0.2


@dataclass(frozen=True)
class _Job:
    """A trial to play; `order` is its place in the evaluation, `filmed` whether to keep images."""

    order: int
    task: str
    seed: int
    filmed: bool


@dataclass(frozen=True)
class Played:
    """A trial that has been played, and its film."""

    order: int
    result: TrialResult
    film: tuple[FilmFrame, ...]


def play_all(settings: EvalSettings, workers: int, filmed: int,
             report: Callable[[TrialResult], None]) -> list[Played]:
    """Play every trial; in order of tasks and seeds. `filmed`: first trials of each task.

    `report` is called as trials end. Raises ValueError with one line where a worker fails.
    """
    jobs = [_Job(order, task, seed, index < filmed) for order, (task, index, seed) in enumerate(
        (task, index, seed) for task in settings.tasks
        for index, seed in enumerate(settings.seeds()))]
    played = []
    for each in _shared_out(settings, jobs, min(workers, len(jobs))):
        report(each.result)
        played.append(each)
    return sorted(played, key=lambda each: each.order)


def _shared_out(settings: EvalSettings, jobs: list[_Job], workers: int) -> Iterator[Played]:
    # A worker's libraries would each take all cores, and wait for one another.
    for name in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS'):
        os.environ.setdefault(name, '1')
    context = multiprocessing.get_context('spawn')  # a graphics context does not survive a fork
    waiting: Any = context.Queue()
    done: Any = context.Queue()
    for job in (*jobs, *[None] * workers):
        waiting.put(job)
    filming = any(job.filmed for job in jobs)
    processes = [context.Process(target=_work, args=(settings, filming, waiting, done), daemon=True)
                 for _ in range(workers)]
    for process in processes:
        process.start()
    try:
        for _ in jobs:
            answer = _next(done, processes)
            if isinstance(answer, str):
                raise ValueError(answer)
            yield answer
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        for each in (waiting, done):
            each.cancel_join_thread()
            each.close()


def _next(done: Any, processes: list[Any]) -> Played | str:
    while True:
        try:
            answer: Played | str = done.get(timeout=POLL_S)
            return answer
        except queue.Empty:
            for process in processes:
                if process.exitcode:
                    return f'eval: a worker ended with status {process.exitcode}'


def _work(settings: EvalSettings, filming: bool, waiting: Any, done: Any) -> None:
    """Play trials until there are no more. What goes wrong is handed over as one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    try:
        policy = load_policy(settings.policy, settings.model)
        cameras = {} if settings.expert else dict(policy.cameras)
        world = World({**cameras, 'view': VIEW} if filming else cameras)
        robot = load_robot(settings.robot)
        engine = _engine(settings, policy, world)
        while (job := waiting.get()) is not None:
            film: list[FilmFrame] = []
            result = run_trial(
                make_trial(job.task, job.seed), world, engine, robot, policy,
                settings.loop(TAIL_S if job.filmed else 0.0), _camera(film) if job.filmed else None)
            done.put(Played(job.order, result, _ended(film)))
    except (ValueError, OSError, ImportError) as error:
        done.put(' '.join(str(error).split()))
    except Exception as error:
        traceback.print_exc()
        done.put(' '.join(f'eval: {type(error).__name__}: {error}'.split()))


def _engine(settings: EvalSettings, policy: PolicyProfile, world: World) -> Engine:
    if settings.expert:
        engine: Engine = Oracle(policy, world)
        engine.load()
        return engine
    profile, robot = load_engine(settings.engine), load_robot(settings.robot)
    engine = make_engine(policy, profile)
    engine.load()
    loop = inference_loop(robot, policy, bind(engine.contract, robot))
    warm_up(engine, profile.warm_up, time.monotonic_ns, loop.malformed)
    return engine


def _camera(film: list[FilmFrame]) -> Callable[[NDArray[np.uint8], float, str, bool], None]:
    return lambda pixels, _, sentence, done: film.append(FilmFrame(pixels, sentence, done))


def _ended(film: list[FilmFrame]) -> tuple[FilmFrame, ...]:
    if not film:
        return ()
    last = film[-1]
    return (*film[:-1], FilmFrame(last.pixels, last.caption, last.done, last=True))
