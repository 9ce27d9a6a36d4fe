"""The same recording with the same policy gives the same commands, bit for bit."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import output_bytes

from vla_ros.core.control_config import Tick
from vla_ros.core.control_loop import ControlLoop
from vla_ros.core.executor_state import Request
from vla_ros.core.runtime import Event, Output, Runtime
from vla_ros.core.types import NS_PER_S
from vla_ros.engines.registry import make_engine
from vla_ros.policies.knn import checkpoint
from vla_ros.profiles.binding import bind
from vla_ros.profiles.engine import load_engine
from vla_ros.profiles.loops import control_loop, inference_loop
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.replay.bag_events import BagEvents
from vla_ros.replay.bags import Bag
from vla_ros.tools.build_knn import Topics, build

BAGS = Path(__file__).parents[1] / 'data' / 'bridge_v2'
IMAGE_TOPIC = '/camera/image_raw/compressed'
AFTER_S = 2  # s that the runtime goes on after the last message


@dataclass(frozen=True)
class Replay:
    """What a run over a recording gave; times of `ticks` in seconds from its first message."""

    outputs: list[Output]
    control: ControlLoop
    start_ns: int

    @property
    def digest(self) -> str:
        return hashlib.sha256(output_bytes(self.outputs)).hexdigest()

    @property
    def ticks(self) -> list[tuple[float, Tick]]:
        return [((o.time_ns - self.start_ns) / NS_PER_S, o.payload) for o in self.outputs
                if isinstance(o.payload, Tick)]


def seeded(seed: int = 7) -> Callable[[Request], int]:
    """An engine that takes 20 to 60 ms."""
    random = np.random.default_rng(seed)
    return lambda request: int(random.integers(20_000_000, 60_000_000))


def as_they_are(events: Iterable[Event]) -> Iterator[Event]:
    return iter(events)


def replay(model: Path, delay: Callable[[Request], int] | None = None,
           change: Callable[[Iterable[Event]], Iterator[Event]] = as_they_are,
           seconds: float | None = None) -> Replay:
    """Bag 3 in the runtime; with `seconds` only its beginning."""
    robot, policy = load_robot('widowx_bridge'), load_policy('knn_bridge', str(model))
    binding = bind(policy, robot)
    engine = make_engine(policy, load_engine('cpu'))
    engine.load()
    control = control_loop(robot, policy, binding, enable_on_start=True)
    runtime = Runtime(
        inference_loop(robot, policy, binding), control,
        lambda observation: engine.infer(engine.preprocess(observation)), delay or seeded(),
        engine.reset)
    with Bag(BAGS / 'bridge_3') as bag:
        end_ns = bag.end_ns + AFTER_S * NS_PER_S
        if seconds is not None:
            end_ns = bag.start_ns + round(seconds * NS_PER_S)
        outputs = list(runtime.run(change(BagEvents(bag, robot, policy)), bag.start_ns, end_ns))
        return Replay(outputs, control, bag.start_ns)


def build_model(folder: Path) -> Path:
    """knn, built from the other three bags."""
    path = folder / 'knn.npz'
    bags = [BAGS / f'bridge_{i}' for i in range(3)]
    checkpoint.save(build(bags, load_policy('knn_bridge'), Topics(IMAGE_TOPIC), 'squash'), path)
    return path


@pytest.fixture(scope='module')
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp('knn'))


@pytest.fixture(scope='module')
def whole(model: Path) -> Replay:
    return replay(model)


def test_same_bag_twice_gives_identical_commands(model: Path, whole: Replay) -> None:
    again = replay(model)
    assert output_bytes(again.outputs) == output_bytes(whole.outputs)
    moving = [t for _, t in whole.ticks if t.command is not None and t.command.velocities.any()]
    assert len(moving) > 400, 'commands that move'


def test_other_delays_give_other_commands(model: Path, whole: Replay) -> None:
    assert replay(model, seeded(8)).digest != whole.digest


def test_fresh_process_with_another_hash_seed_gives_identical_commands(
        model: Path, whole: Replay) -> None:
    code = ('import sys; from pathlib import Path; from test_determinism import replay; '
            'print(replay(Path(sys.argv[1])).digest)')
    seed = '1' if os.environ.get('PYTHONHASHSEED') != '1' else '2'
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get('PYTHONPATH', '')])
    done = subprocess.run(
        [sys.executable, '-c', code, str(model)], capture_output=True, text=True, check=False,
        env={**os.environ, 'PYTHONHASHSEED': seed, 'PYTHONPATH': path})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == whole.digest


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32 - 1))
def test_order_of_topics_at_one_time_does_not_matter(model: Path, seed: int) -> None:
    """Receive times are made coarse, so that many messages share one."""
    random = np.random.default_rng(seed)

    def coarse(events: Iterable[Event]) -> Iterator[Event]:
        step_ns = NS_PER_S // 5
        return (replace(e, time_ns=-(-e.time_ns // step_ns) * step_ns) for e in events)

    def permuted(events: Iterable[Event]) -> Iterator[Event]:
        for _, group in groupby(coarse(events), key=lambda e: e.time_ns):
            by_topic: dict[str, list[Event]] = {}
            for event in group:
                by_topic.setdefault(event.topic, []).append(event)
            topics = sorted(by_topic)
            assert len(topics) > 1
            for i in random.permutation(len(topics)):
                yield from by_topic[topics[i]]

    assert replay(model, change=permuted, seconds=1.5).digest == replay(
        model, change=coarse, seconds=1.5).digest


def test_gaps_between_clips_are_held_and_named(whole: Replay) -> None:
    """Clips begin every 4 s and last 1.8 s; the state is the first to be missed, then all else."""
    states = [(time, tick.state.value) for time, tick in whole.ticks]
    assert whole.control.holds == {'no fresh state': 5}
    for clip in range(5):
        begin = 4.0 * clip
        assert {s for t, s in states if begin + 0.3 < t < begin + 1.9} == {'active'}
        assert {s for t, s in states if begin + 2.5 < t < begin + 3.9} == {'holding'}
    at_rest = [tick.command.velocities for time, tick in whole.ticks if 2.7 < time < 3.9
               and tick.command is not None]
    assert len(at_rest) == 60, 'a hold keeps publishing'
    assert not np.any(at_rest)


def test_all_stamps_are_of_the_recording(whole: Replay) -> None:
    """No wall clock in any command."""
    stamps = {t.command.stamp_ns for _, t in whole.ticks if t.command is not None}
    assert min(stamps) >= whole.start_ns
    assert max(stamps) < whole.start_ns + 30 * NS_PER_S
