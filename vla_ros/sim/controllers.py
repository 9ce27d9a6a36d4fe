"""The forward controllers of the simulated arm: they take numbers from a topic, and hold them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import ActionSpec
from vla_ros.core.types import Command
from vla_ros.profiles.robot import RobotProfile
from vla_ros.profiles.sink import SinkNumbers, SinkType
from vla_ros.sim.arm import JOINTS
from vla_ros.sim.world import World

ARM_TOPIC = 'forward_position_controller/commands'
GRIPPER_TOPIC = 'gripper_controller/commands'
SIZES = {ARM_TOPIC: len(JOINTS), GRIPPER_TOPIC: 1}  # numbers of a command


class Controllers:
    """What `world` does with the numbers of a command topic: rad, and m for the gripper."""

    def __init__(self, world: World) -> None:
        self._world = world

    def take(self, topic: str, numbers: Sequence[float] | NDArray[np.float64]) -> str:
        """Make these the targets; returns why not, in one line, or ''."""
        values = np.asarray(numbers, dtype=np.float64)
        if len(values) != SIZES[topic]:
            return f'{topic}: {len(values)} numbers; {SIZES[topic]} are needed'
        if not np.isfinite(values).all():
            return f'{topic}: {values[~np.isfinite(values)][0]}; all numbers must be finite'
        if topic == ARM_TOPIC:
            self._world.command(arm=values)
        else:
            self._world.command(gripper=float(values[0]))
        return ''


class CommandRouter:
    """Brings commands to the controllers without messages, as the sinks of a robot would.

    Raises ValueError with one line where the profile's sinks are not those of the simulated arm.
    """

    def __init__(self, robot: RobotProfile, spec: ActionSpec, world: World) -> None:
        self._controllers = Controllers(world)
        self._routes = [(sink.topic, SinkNumbers(sink, spec)) for sink in robot.sinks]
        for sink in robot.sinks:
            known = sink.topic in SIZES and sink.type is SinkType.FLOAT64_MULTI_ARRAY
            if not known or len(sink.dimensions) != SIZES[sink.topic]:
                raise ValueError(
                    f'{robot.file}: sinks: {sink.topic}: the simulated arm takes '
                    f'float64_multi_array on {" and ".join(SIZES)}; use robot sim_arm')

    def send(self, command: Command) -> None:
        """Apply a command now."""
        for topic, numbers in self._routes:
            problem = self._controllers.take(topic, numbers(command))
            assert not problem, problem  # no command that leaves the control loop is like that
