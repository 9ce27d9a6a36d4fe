"""One trial in process: the core's own loops around the simulated world, by discrete events.

Nothing waits: an inference takes the simulated time that `LoopSettings` says, however long it
really takes, so that the same trial gives the same commands on any machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.chunk_buffer import Seam
from vla_ros.core.control_config import Tick
from vla_ros.core.control_loop import ControlLoop
from vla_ros.core.executor_state import Request
from vla_ros.core.inference_loop import InferenceLoop
from vla_ros.core.runtime import Enable, Event, Instruction, Output, Payload, Runtime
from vla_ros.core.types import NS_PER_S, Frame, Observation, Plan, Result, StateSample
from vla_ros.engines.contract import Engine
from vla_ros.profiles.binding import bind
from vla_ros.profiles.loops import control_loop
from vla_ros.profiles.policy import PolicyProfile
from vla_ros.profiles.robot import RobotProfile
from vla_ros.sim.arm import STATE_NAMES
from vla_ros.sim.baselines import arranged, method_loop
from vla_ros.sim.controllers import CommandRouter
from vla_ros.sim.task_log import TaskLog
from vla_ros.sim.trial import Trial
from vla_ros.sim.trial_record import TrialRecord, TrialResult
from vla_ros.sim.world import World

ORIGIN_NS = 1_000 * NS_PER_S     # ROS time of the start; 0 would mean that there is no stamp
STATE_NS = NS_PER_S // 100       # between two measurements
FRAME_NS = NS_PER_S // 10        # between two images of a camera, and of `Watch`
ENABLE_NS = NS_PER_S // 10       # between two attempts to enable
GREY = 128

Delay = int | Callable[[Request], int | None]
"""Nanoseconds that an inference takes, fixed or by request; None where it never ends."""
Watch = Callable[[NDArray[np.uint8], float, str, bool], None]
"""Takes an image of camera `view`, its time in s, the sentence, whether the task is done."""


@dataclass(frozen=True)
class LoopSettings:
    """How a trial is run.

    `delay`: of an inference; `injected_ns` comes on top. `camera_ns`: from the capture of an image
    to its arrival; `frame_ns`: between two images of a camera, whatever the robot profile says;
    both multiples of STATE_NS. `method`: a merge policy or a baseline, '' for that of the policy
    profile. `tail_s`: how long to go on after the success. `images`: False gives grey ones, for
    engines that do not look.
    """

    delay: Delay = 40 * NS_PER_S // 1000
    injected_ns: int = 0
    camera_ns: int = 2 * STATE_NS
    frame_ns: int = FRAME_NS
    method: str = ''
    tail_s: float = 0.0
    images: bool = True

    def __post_init__(self) -> None:
        if self.camera_ns < 0 or self.camera_ns % STATE_NS:
            raise ValueError(f'camera_ns: {self.camera_ns}: allowed are multiples of {STATE_NS}')
        if self.frame_ns < STATE_NS or self.frame_ns % STATE_NS:
            raise ValueError(f'frame_ns: {self.frame_ns}: allowed are multiples of {STATE_NS}')


def run_trial(trial: Trial, world: World, engine: Engine, robot: RobotProfile,
              policy: PolicyProfile, settings: LoopSettings = LoopSettings(),  # noqa: B008 (frozen)
              watch: Watch | None = None) -> TrialResult:
    """Play a trial to its success or its end; `engine` has been loaded.

    `world` has the cameras of the policy at their sizes, and `view` where there is a `watch`.
    Raises ValueError with one line where policy and robot do not fit.
    """
    return _Play(trial, world, engine, robot, policy, settings, watch).result()


class _Play:
    """One trial."""

    def __init__(self, trial: Trial, world: World, engine: Engine, robot: RobotProfile,
                 policy: PolicyProfile, settings: LoopSettings, watch: Watch | None) -> None:
        policy, robot = arranged(policy, _paced(robot, settings.frame_ns), settings.method)
        binding = bind(policy, robot)
        self._trial, self._world, self._settings = trial, world, settings
        self._engine, self._watch = engine, watch
        self._cameras = dict(policy.cameras)
        self._inference: InferenceLoop = method_loop(robot, policy, binding, settings.method)
        self._inference.lag = engine.lag
        self._control: ControlLoop = control_loop(robot, policy, binding)
        self._router = CommandRouter(robot, binding.planned, world)
        self._record = TrialRecord(binding.planned)
        self._period_s = robot.control_period_ns / NS_PER_S
        self._runtime = Runtime(self._inference, self._control, self._infer, self._delay,
                                engine.reset)
        self._tasks = TaskLog()
        self._took: list[float] = []
        self._arriving: list[tuple[int, Frame]] = []
        self._seam: Seam | None = None
        self._enabled = False

    def result(self) -> TrialResult:
        """Play, and say what it came to."""
        success_ns = self._play()
        trial, record, control = self._trial, self._record, self._control
        clips = {f'{limit} {name}': int(count) for limit, counts in control.clips.items()
                 for name, count in zip(control.config.spec.names, counts, strict=True) if count}
        counts = control.counts + self._inference.counts + self._inference.executor.counts
        return TrialResult(
            name=trial.name, seed=trial.seed, sentence=trial.said[-1].sentence,
            success=success_ns is not None,
            success_s=float('nan') if success_ns is None else success_ns / NS_PER_S,
            seconds=self._world.time_ns / NS_PER_S, control_period_s=self._period_s,
            joints=record.joints, commands=record.commands, seams=record.seams,
            offered=record.offered, delays_s=record.delays_s,
            inferences_s=np.array(self._took), holds=dict(control.holds), clips=clips,
            drops=dict(counts))

    def _play(self) -> int | None:
        """Time of the success since the start, None where there is none."""
        self._world.reset(self._trial.scene)
        self._tasks.reset(self._world.snapshot(), self._trial.seed)
        self._runtime.begin(ORIGIN_NS)
        said = list(self._trial.said)
        tail_ns, success_ns = round(self._settings.tail_s * NS_PER_S), None
        for now_ns in range(0, round(self._trial.limit_s * NS_PER_S) + 1, STATE_NS):
            self._take(self._runtime.advance(ORIGIN_NS + now_ns))
            self._world.step_to(now_ns)
            while said and said[0].time_s * NS_PER_S <= now_ns:
                self._say(said.pop(0).sentence, now_ns)
            self._tasks.update(self._world.snapshot())
            if success_ns is None and not said and self._tasks.success:
                success_ns = now_ns
            self._sense(now_ns)
            if success_ns is not None and now_ns >= success_ns + tail_ns:
                break
        return success_ns

    def _say(self, sentence: str, now_ns: int) -> None:
        self._sentence = sentence
        self._tasks.tell(sentence, self._world.snapshot())
        self._deliver(now_ns, 'instruction', Instruction(sentence))

    def _sense(self, now_ns: int) -> None:
        """What the robot measures and sees now, and the operator's hand."""
        stamp_ns = ORIGIN_NS + now_ns
        self._deliver(now_ns, 'joint_states',
                      StateSample(stamp_ns, stamp_ns, STATE_NAMES, self._world.positions()))
        if now_ns % self._settings.frame_ns == 0:
            due_ns = now_ns + self._settings.camera_ns
            # The primary camera last: its image completes the observation.
            for camera in reversed(self._cameras):
                frame = Frame(camera, stamp_ns, stamp_ns, self._image(camera))
                self._arriving.append((due_ns, frame))
        if self._watch is not None and now_ns % FRAME_NS == 0:
            self._watch(self._world.render('view'), now_ns / NS_PER_S, self._sentence,
                        self._tasks.success)
        while self._arriving and self._arriving[0][0] <= now_ns:
            _, frame = self._arriving.pop(0)
            self._deliver(now_ns, f'observation/{frame.camera}/image', frame)
        if not self._enabled and now_ns % ENABLE_NS == 0:
            self._deliver(now_ns, 'service', Enable())
            self._enabled = not self._runtime.answers[-1]

    def _image(self, camera: str) -> NDArray[np.uint8]:
        if self._settings.images:
            return self._world.render(camera)
        size = self._cameras[camera]
        return np.full((size.height, size.width, 3), GREY, dtype=np.uint8)

    def _deliver(self, now_ns: int, topic: str, payload: Payload) -> None:
        self._take(self._runtime.deliver(Event(ORIGIN_NS + now_ns, topic, payload)))

    def _take(self, outputs: Iterable[Output]) -> None:
        """Let commands act at their times."""
        for output in outputs:
            if isinstance(output.payload, Tick):
                command = output.payload.command
                self._record.on_command(None if command is None else command.values)
                if command is not None:
                    self._world.step_to(output.time_ns - ORIGIN_NS)
                    self._router.send(command)
            elif isinstance(output.payload, Plan):
                # The loop keeps the last seam where there is no new one.
                before, self._seam = self._seam, self._inference.seam
                offered = None if self._seam is None or self._seam is before else (
                    self._seam.offered)
                self._record.on_plan(output.payload, output.time_ns, offered)

    # --- the engine ----------------------------------------------------------------------------

    def _infer(self, observation: Observation) -> Result:
        begin = time.perf_counter()
        result = self._engine.infer(self._engine.preprocess(observation))
        self._took.append(time.perf_counter() - begin)
        return result

    def _delay(self, request: Request) -> int | None:
        delay = self._settings.delay
        delay_ns = delay if isinstance(delay, int) else delay(request)
        return None if delay_ns is None else delay_ns + self._settings.injected_ns


def _paced(robot: RobotProfile, frame_ns: int) -> RobotProfile:
    """The robot with cameras that give an image this often."""
    cameras = {name: replace(camera, rate=NS_PER_S / frame_ns)
               for name, camera in robot.cameras.items()}
    return replace(robot, cameras=cameras)
