"""One replay as a job: plain words in, a folder with everything about the run out."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vla_ros.engines.registry import make_engine
from vla_ros.profiles.engine import load_engine
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.replay.bag_events import find_topics
from vla_ros.replay.bags import Bag
from vla_ros.replay.delays import read_delays
from vla_ros.replay.faults import parse_fault
from vla_ros.replay.figures import figures
from vla_ros.replay.gates import judge, load_gates
from vla_ros.replay.hearer import Hearer
from vla_ros.replay.live_topics import LATCHED, LiveTopics
from vla_ros.replay.messages import Messages
from vla_ros.replay.moments import Moments
from vla_ros.replay.out_bag import OutBag
from vla_ros.replay.session import Session, Settings, Setup
from vla_ros.replay.trace import Trace, TraceRecorder

RESULT, TRACE, BAG, PICTURES = 'replay.json', 'trace.npz', 'bag', 'pictures'
FORMAT = 1


@dataclass(frozen=True)
class Job:
    """What to replay, and how; every word as on the command line of `vla-ros replay`."""

    bag: str
    robot: str
    policy: str
    engine: str = 'cpu'
    model: str = ''
    delay: str = ''
    seed: int = 0
    faults: tuple[str, ...] = ()
    gates: str = ''
    remaps: Mapping[str, str] = field(default_factory=dict)
    instruction: str = ''
    start: float = 0.0
    seconds: float | None = None
    enable: bool = True
    write_bag: bool = True
    observations: bool = False


@dataclass(frozen=True)
class Done:
    """What a job came to; `result` is what stands in replay.json."""

    folder: Path
    result: dict[str, Any]

    @property
    def failures(self) -> list[str]:
        """The gates that failed, a line each."""
        return [gate['line'] for gate in self.result['gates'] if not gate['passed']]


def run_job(job: Job, folder: Path) -> Done:
    """Replay, and write replay.json (last), trace.npz, bag/ and pictures/ into the folder.

    Raises ValueError or OSError with one line; a folder without replay.json is not done.
    """
    gates = load_gates(Path(job.gates)) if job.gates else ()
    robot, policy = load_robot(job.robot), load_policy(job.policy, job.model)
    profile = load_engine(job.engine)
    faults = tuple(parse_fault(word) for word in job.faults)
    delays = read_delays(job.delay, job.seed, profile.inference_time_ns)
    settings = Settings(delays, faults, job.seed, job.instruction, job.start, job.seconds,
                        job.enable)
    (folder / RESULT).unlink(missing_ok=True)
    with Bag(job.bag) as bag:
        topics = find_topics(bag, robot, policy, job.remaps)
        engine = make_engine(policy, profile)
        engine.load()
        try:
            recorder, moments = TraceRecorder(), Moments()
            session = Session(bag, topics, Setup(robot, policy, engine), settings, hearers := [
                recorder, moments])
            begin = time.perf_counter(), time.process_time()
            _run(session, hearers, job, folder)
            took = time.perf_counter() - begin[0], time.process_time() - begin[1]
        finally:
            engine.close()
    trace = recorder.trace
    assert trace is not None, 'the run has ended'
    trace.save(folder / TRACE)
    shutil.rmtree(folder / PICTURES, ignore_errors=True)
    moments.save(folder / PICTURES)
    values = figures(trace)
    judged = judge(gates, values)
    result = {
        'format': FORMAT, 'job': asdict(job), 'files': stamps_of(job), 'about': trace.about,
        'figures': values,
        'gates': [each.as_json() | {'line': str(each)} for each in judged],
        'passed': all(each.passed for each in judged),
        'machine': _machine(trace, session, *took)}
    part = folder / f'{RESULT}.part'
    part.write_text(json.dumps(result, indent=1) + '\n')
    part.replace(folder / RESULT)
    return Done(folder, result)


def load_done(folder: Path) -> Done | None:
    """What a job left that was done before; None where it was not, or by another version."""
    try:
        result = json.loads((folder / RESULT).read_text())
    except (OSError, ValueError):
        return None
    return Done(folder, result) if result.get('format') == FORMAT else None


def already_done(job: Job, folder: Path) -> Done | None:
    """What this very job left, on files that have not changed since; None where it did not."""
    done = load_done(folder)
    if done is None:
        return None
    words = json.loads(json.dumps(asdict(job)))  # tuples become lists, as in the file
    same = done.result.get('job') == words and done.result.get('files') == stamps_of(job)
    return done if same else None


def stamps_of(job: Job) -> dict[str, list[int]]:
    """Size and time of change of every file that a job names; what is no file is left out."""
    found: dict[str, list[int]] = {}
    for word in (job.bag, job.robot, job.policy, job.engine, job.model, job.delay, job.gates):
        path = Path(word)
        files = sorted(path.iterdir()) if word and path.is_dir() else [path]
        for file in files:
            if word and file.is_file():
                stat = file.stat()
                found[str(file)] = [stat.st_size, stat.st_mtime_ns]
    return found


def _run(session: Session, hearers: list[Hearer], job: Job, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not job.write_bag:
        session.run()
        return
    messages = Messages()
    with OutBag(folder / BAG, messages, LATCHED) as bag:
        hearers.append(LiveTopics(bag, messages, job.observations))
        session.run()


def _machine(trace: Trace, session: Session, wall_s: float, cpu_s: float) -> dict[str, Any]:
    """What depends on the machine, apart from all that is repeatable."""
    took_ms = [round(s * 1e3, 3) for s in session.took_s]
    return {'seconds': round(wall_s, 3), 'cpu_seconds': round(cpu_s, 3),
            'times_real_time': round(trace.length_ns / 1e9 / max(wall_s, 1e-9), 2),
            'processor': platform.processor() or platform.machine(), 'cores': os.cpu_count(),
            'inference_ms': took_ms[:10_000]}
