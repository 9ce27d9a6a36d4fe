"""Evaluation through the whole graph, in real time: the nodes and topics that a robot has."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import yaml

from vla_ros.bringup.graph import Graph, Process, describe
from vla_ros.core.types import NS_PER_S
from vla_ros.profiles.binding import Binding, bind
from vla_ros.profiles.policy import PolicyProfile, load_policy
from vla_ros.profiles.robot import RobotProfile, load_robot
from vla_ros.sim.trial import Trial, make_trial
from vla_ros.sim.trial_record import TrialRecord, TrialResult
from vla_ros.tools.eval_settings import EvalSettings
from vla_ros.tools.logged_processes import LoggedProcesses, ProcessEnded
from vla_ros.tools.private_graph import private_additions
from vla_ros.tools.sim_operator import SimOperator

START_S = 60.0     # the longest that loading may take
# Longer than a last command counts as where the robot is: the arm is put elsewhere meanwhile.
SILENCE_S = 1.1
ENABLE_S = 0.1     # between two attempts
HOLD, BY_US = 'hold: ', ('disabled', 'no instruction')


def play_all(settings: EvalSettings, out: Path,
             report: Callable[[TrialResult], None]) -> list[TrialResult]:
    """Play every trial in one graph; logs go to `out`/logs.

    Raises ValueError with one line where the graph does not come up or answers no more.
    """
    logs = out / 'logs'
    logs.mkdir(parents=True, exist_ok=True)
    os.environ.update(private_additions(os.environ, logs))
    policy = load_policy(_policy_file(settings, out), settings.model)
    robot = load_robot(settings.robot)
    graph = sim_graph(settings, str(policy.file))
    results = []
    with LoggedProcesses(logs) as processes:
        processes.start(graph)
        with _operating(robot, policy, processes) as operator:
            operator.ready([process.name for process in graph.processes], START_S)
            operator.rest(SILENCE_S)
            binding = bind(policy, robot)
            for task in settings.tasks:
                for seed in settings.seeds():
                    results.append(_Play(operator, binding, robot, make_trial(task, seed)).result())
                    report(results[-1])
    return results


def sim_graph(settings: EvalSettings, policy: str) -> Graph:
    """The simulator and the nodes that drive it. Raises ValueError with one line."""
    graph = describe({
        'robot': settings.robot, 'policy': policy, 'model': settings.model,
        'engine': settings.engine, 'publish_latency': 'true'})
    simulator = Process('sim_robot', 'sim_robot', '', {})
    return Graph((simulator, *graph.processes), graph.notes)


@contextmanager
def _operating(robot: RobotProfile, policy: PolicyProfile,
               processes: LoggedProcesses) -> Iterator[SimOperator]:
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    def check() -> None:
        try:
            processes.check()
        except ProcessEnded as ended:
            last = next((line for line in reversed(ended.tail) if line.strip()), '')
            raise ValueError(f'eval: {ended} {last.strip()}') from None

    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    try:
        operator = SimOperator(robot, bind(policy, robot).planned, policy.period_ns, check)
        try:
            yield operator
        finally:
            operator.close()
    finally:
        rclpy.try_shutdown()


class _Play:
    """One trial."""

    def __init__(self, operator: SimOperator, binding: Binding, robot: RobotProfile,
                 trial: Trial) -> None:
        self._operator, self._trial = operator, trial
        self._record = TrialRecord(binding.planned)
        self._period_s = robot.control_period_ns / NS_PER_S

    def result(self) -> TrialResult:
        """Play, and say what it came to."""
        operator, trial, record = self._operator, self._trial, self._record
        holds = _holds(operator)
        operator.lay_out(trial.name, trial.seed)
        operator.record, operator.inferences_s = record, []
        seconds, success = self._play()
        operator.record = None
        operator.rest(SILENCE_S)
        return TrialResult(
            name=trial.name, seed=trial.seed, sentence=trial.said[-1].sentence, success=success,
            success_s=seconds if success else float('nan'), seconds=seconds,
            control_period_s=self._period_s, joints=record.joints, commands=record.commands,
            seams=record.seams, offered=record.offered, delays_s=record.delays_s,
            inferences_s=np.array(operator.inferences_s),
            holds=_holds(operator) - holds)

    def _play(self) -> tuple[float, bool]:
        """Seconds from the first sentence to the success or the end, and whether it is one."""
        operator, said = self._operator, list(self._trial.said)
        begin = time.monotonic()
        ask = 0.0
        enabled = False
        while (now := time.monotonic() - begin) < self._trial.limit_s:
            if said and now >= said[0].time_s:
                operator.say(said.pop(0).sentence)
            if not enabled and now >= ask:
                enabled, ask = not operator.enable(), now + ENABLE_S
            if not said and operator.done():
                return now, True
            operator.spin(ENABLE_S)
        return self._trial.limit_s, False


def _holds(operator: SimOperator) -> Counter[str]:
    """How often something but us has ended motion so far, by cause, as action_publisher says."""
    found = Counter[str]()
    for name, status in operator.statuses.items():
        if name.endswith('action_publisher'):
            found.update({pair.key.removeprefix(HOLD): int(pair.value) for pair in status.values
                          if pair.key.startswith(HOLD)})
    return Counter({cause: n for cause, n in found.items() if not cause.startswith(BY_US)})


def _policy_file(settings: EvalSettings, out: Path) -> str:
    """The policy profile, as a copy with another merge policy where one is asked for."""
    if not settings.method:
        return settings.policy
    policy = load_policy(settings.policy)
    values = yaml.safe_load(policy.file.read_text())
    values['merge'] = settings.method
    if settings.method != 'crossfade':
        values.pop('fade_steps', None)
    if policy.checkpoint is not None:
        values['checkpoint'] = str(policy.checkpoint.resolve())
    file = out / f'{policy.name}_{settings.method}.yaml'
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return str(file.resolve())
