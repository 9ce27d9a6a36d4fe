"""Many replays: each in a process of its own, or on a Ray cluster; what is done stays done."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from vla_ros.replay.job import Done, Job, already_done, load_done, run_job

ERROR = 'error.txt'
POLL_S = 0.02
RETRIES = 2  # of a job whose Ray worker was killed; a job that raises is not tried again


@dataclass(frozen=True)
class Task:
    """A job with its place: `variant` and the folder that gets its results."""

    variant: str
    job: Job
    folder: Path

    @property
    def name(self) -> str:
        """For people."""
        bag = Path(self.job.bag).name
        return f'{self.variant}/{bag}' if self.variant else bag


@dataclass(frozen=True)
class Outcome:
    """What became of a task: `done`, or why not in one line. `kept`: it had been done before."""

    task: Task
    done: Done | None
    error: str = ''
    kept: bool = False


def plan(base: Job, bags: Sequence[str], variants: Mapping[str, Mapping[str, Any]],
         out: Path) -> list[Task]:
    """All tasks: every variant of every bag. Raises ValueError where two would share a folder."""
    tasks = []
    single = len(bags) == 1 and not variants
    for variant, changes in (variants or {'': {}}).items():
        for bag in bags:
            folder = out if single else out / variant / Path(bag).name
            tasks.append(Task(variant, replace(base, bag=bag, **changes), folder))
    seen: dict[Path, Task] = {}
    for task in tasks:
        other = seen.setdefault(task.folder, task)
        if other is not task:
            raise ValueError(f'replay: {other.job.bag} and {task.job.bag} have the same name '
                             f'{task.folder.name!r}; rename one, or replay them apart')
    return tasks


def load_variants(file: Path) -> dict[str, dict[str, Any]]:
    """Variants from YAML: by name, what differs from the command line. Raises ValueError."""
    try:
        given = yaml.safe_load(file.read_text())
    except OSError as error:
        raise ValueError(f'variants {file}: {error.strerror}; give a YAML file') from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f'variants {file}: no YAML: {" ".join(str(error).split())}') from error
    if not isinstance(given, dict) or not given:
        raise ValueError(f'variants {file}: allowed is a mapping such as "slow: {{delay: 200}}"')
    allowed = {f.name: f for f in fields(Job) if f.name != 'bag'}
    found = {}
    for name, changes in given.items():
        if not isinstance(name, str) or not name or '/' in name or name.startswith('.'):
            raise ValueError(f'variants {file}: {name!r}: allowed are names of folders')
        if not isinstance(changes, dict | None):
            raise ValueError(f'variants {file}: {name}: {changes!r}; allowed is a mapping')
        found[name] = {key: _value(file, name, key, value, allowed)
                       for key, value in (changes or {}).items()}
    return found


def run_all(tasks: Sequence[Task], workers: int, again: bool = False,
            ray_address: str | None = None) -> Iterator[Outcome]:
    """Run the tasks, as many at a time as there are workers; outcomes as they come.

    A task that was done before with the same words on the same files is taken as it is, unless
    `again`. With `ray_address` ('' starts or finds a local Ray) the tasks go to that cluster,
    which must see the same folders. Nothing that a task raises ends the others.
    """
    left = []
    for task in tasks:
        done = None if again else already_done(task.job, task.folder)
        if done is not None:
            yield Outcome(task, done, kept=True)
        else:
            left.append(task)
    if not left:
        return
    yield from _on_ray(left, ray_address) if ray_address is not None else _here(left, workers)


def attempt(job: Job, folder: Path) -> str:
    """Run a job; returns why it failed in one line, or ''."""
    try:
        run_job(job, folder)
    except Exception as error:
        line = ' '.join(str(error).split())
        return line if isinstance(error, ValueError | OSError) else (
            f'{type(error).__name__}: {line}')
    return ''


def _here(tasks: Sequence[Task], workers: int) -> Iterator[Outcome]:
    """A process each: one that is killed takes nothing with it."""
    context = multiprocessing.get_context('spawn')
    waiting = list(reversed(tasks))
    running: dict[Any, Task] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                task = waiting.pop()
                task.folder.mkdir(parents=True, exist_ok=True)
                process = context.Process(target=_work, args=(task.job, task.folder), daemon=True)
                process.start()
                running[process] = task
            for process in [p for p in running if not p.is_alive()]:
                process.join()
                yield _ended(running.pop(process), process.exitcode)
            time.sleep(POLL_S)
    finally:
        for process in running:
            process.terminate()


def _work(job: Job, folder: Path) -> None:
    (folder / ERROR).unlink(missing_ok=True)
    line = attempt(job, folder)
    if line:
        (folder / ERROR).write_text(line + '\n')
        raise SystemExit(1)


def _ended(task: Task, code: int | None) -> Outcome:
    if code == 0:
        return Outcome(task, load_done(task.folder))
    file = task.folder / ERROR
    if code == 1 and file.exists():
        return Outcome(task, None, file.read_text().strip())
    ended = f'killed by signal {-code}' if code is not None and code < 0 else f'status {code}'
    return Outcome(task, None, f'its process ended with {ended}')


def _on_ray(tasks: Sequence[Task], address: str | None) -> Iterator[Outcome]:
    ray = _ray()
    if not ray.is_initialized():
        ray.init(address=address or None, log_to_driver=False, include_dashboard=False)
    remote = ray.remote(max_retries=RETRIES, num_cpus=1)(attempt)
    pending = {remote.remote(task.job, task.folder.resolve()): task for task in tasks}
    while pending:
        ready, _ = ray.wait(list(pending), num_returns=1)
        for reference in ready:
            task = pending.pop(reference)
            try:
                line = ray.get(reference)
            except ray.exceptions.RayError as error:
                line = f'on Ray: {" ".join(str(error).split())[:300]}'
            done = None if line else load_done(task.folder)
            if done is None and not line:
                line = (f'{task.folder} is empty here: a Ray cluster needs a folder that all '
                        'machines share')
            yield Outcome(task, done, line)


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ValueError(f'replay: --ray needs the Python package {error.name!r}; install it '
                         "with: pip install 'vla_ros[ray]'") from error
    return ray


def _value(file: Path, variant: str, key: Any, value: Any, allowed: Mapping[str, Any]) -> Any:
    place = f'variants {file}: {variant}: {key}'
    if key not in allowed:
        near = get_close_matches(str(key), allowed, 1)
        hint = f'did you mean {near[0]}?' if near else f'allowed are {", ".join(allowed)}'
        raise ValueError(f'{place}: unknown; {hint}')
    if key == 'faults':
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ValueError(f'{place}: {value!r}; allowed is a list of words such as '
                             'engine_stall@3+2')
        return tuple(value)
    if key == 'remaps':
        if not isinstance(value, dict):
            raise ValueError(f'{place}: {value!r}; allowed is a mapping of topics')
        return {str(k): str(v) for k, v in value.items()}
    if key == 'delay':
        return str(value)
    default = allowed[key].default
    wanted = (float, int) if key in ('start', 'seconds') else type(default)
    if not isinstance(default, type(value)) and not isinstance(value, wanted):
        raise ValueError(f'{place}: {value!r}; allowed is a value like {default!r}')
    return value
