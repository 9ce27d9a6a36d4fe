"""What the nodes of a benchmark hear, from a process of its own: state, plans, camera images."""

from __future__ import annotations

import argparse
import math
import struct
import sys
import time
from pathlib import Path

import numpy as np
import rclpy
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import serialize_message
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Image, JointState
from trajectory_msgs.msg import JointTrajectory

from vla_ros.core.action_spec import ActionSpec, Dimension, Kind
from vla_ros.core.types import NS_PER_S, Floats, InferenceStatus, Plan
from vla_ros.profiles.binding import bind
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import RobotProfile, load_robot
from vla_ros.ros.messages import plan_to_message, status_to_message, to_ns, to_time
from vla_ros.ros.pacing import Pacer
from vla_ros.ros.qos import LATCHED, PLAN, STATUS
from vla_ros.tools.children import Stop

STATE_HZ = 100
PLAN_HZ = 10
STATUS_HZ = 10
SWING_HZ = 0.25
SWING = 0.05       # of position dimensions, less than the tolerance at activation
FLOW_SWING = 2e-3  # of deltas and velocities
STAMP_AT = 4       # the stamp of an Image lies behind the 4 bytes that begin every CDR message


class StateFeed:
    """Publishes `joint_states`: a robot that rests in the middle of its limits."""

    def __init__(self, node: Node, robot: RobotProfile, spec: ActionSpec) -> None:
        state = resting_state(robot, spec)
        self._publisher = node.create_publisher(JointState, 'joint_states', 10)
        self._message = JointState(name=list(state), position=list(state.values()))

    def send(self) -> None:
        self._message.header.stamp = to_time(time.time_ns())
        self._publisher.publish(self._message)


class PlanFeed:
    """Publishes `action_chunk` and `inference_status` as inference_node would."""

    def __init__(self, node: Node, robot: RobotProfile, spec: ActionSpec, horizon: int,
                 period_ns: int) -> None:
        self._spec, self._robot = spec, robot
        self._steps, self._period_ns = np.arange(horizon), period_ns
        self._rest = resting_state(robot, spec)
        self._plans = node.create_publisher(JointTrajectory, 'action_chunk', PLAN)
        self._statuses = node.create_publisher(DiagnosticStatus, 'inference_status', STATUS)
        self._name = node.get_fully_qualified_name()
        self._epoch_ns = self._newest_ns = 0
        node.create_subscription(Time, 'reset_stamp', self._on_reset, LATCHED)

    def send(self) -> None:
        self._newest_ns = now_ns = time.time_ns()
        plan = Plan(now_ns, now_ns, self._period_ns, self._values(now_ns))
        self._plans.publish(plan_to_message(plan, self._spec.names, self._robot.frame_id))

    def send_status(self) -> None:
        status = InferenceStatus(self._newest_ns, self._epoch_ns, instruction='bench')
        self._statuses.publish(status_to_message(status, self._name))

    def _values(self, now_ns: int) -> Floats:
        """A slow swing [H, A] about the resting state."""
        turns = (now_ns % (100 * NS_PER_S) + self._steps * self._period_ns) / NS_PER_S * SWING_HZ
        swing = np.sin(2.0 * math.pi * turns)
        values = np.empty((len(swing), self._spec.size))
        for i, dimension in enumerate(self._spec.dimensions):
            if dimension.kind is Kind.GRIPPER:
                values[:, i] = 0.5
            elif dimension.kind is Kind.POSITION:
                values[:, i] = self._rest.get(moved(dimension), 0.0) + SWING * swing
            else:
                values[:, i] = FLOW_SWING * swing
        return values

    def _on_reset(self, message: Time) -> None:
        self._epoch_ns = to_ns(message)


class CameraFeed:
    """Publishes frames as a camera driver does: serialized already, stamped now, best effort."""

    def __init__(self, node: Node, topic: str, width: int, height: int, path: Path) -> None:
        self._publisher = node.create_publisher(Image, topic, qos_profile_sensor_data)
        image = Image(height=height, width=width, encoding='rgb8', step=3 * width)
        image.header.frame_id = 'camera'
        pixels = np.add.outer(np.arange(height), np.arange(3 * width)).astype(np.uint8)
        image.data.frombytes(pixels.tobytes())
        self._bytes = bytearray(serialize_message(image))
        self._stamps: list[int] = []
        self._path = path

    def send(self) -> None:
        stamp_ns = time.time_ns()
        struct.pack_into('<iI', self._bytes, STAMP_AT, *divmod(stamp_ns, NS_PER_S))
        self._publisher.publish(bytes(self._bytes))
        self._stamps.append(stamp_ns)

    def write(self) -> None:
        """Write the stamps of all frames, int64 [n]."""
        with self._path.open('wb') as file:
            np.save(file, np.array(self._stamps, dtype=np.int64))


def moved(dimension: Dimension) -> str:
    """The state entry that a dimension moves."""
    return dimension.state or dimension.name


def resting_state(robot: RobotProfile, spec: ActionSpec) -> dict[str, float]:
    """The middle of the position limits of every state entry, 0 where there are none."""
    state = dict.fromkeys(robot.state_names, 0.0)
    for dimension in spec.dimensions:
        profile = robot.dimensions[dimension.name]
        if moved(dimension) in state and profile.position is not None:
            middle = sum(profile.position) / 2.0
            state[moved(dimension)] = middle if math.isfinite(middle) else 0.0
    return state


def feed(args: argparse.Namespace) -> None:
    """Publish until SIGINT or SIGTERM."""
    stop = Stop()
    rclpy.init(args=['--ros-args', '-r', f'__ns:={args.namespace}'],
               signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node(f'bench_{args.what}')
    if args.what == 'camera':
        camera = CameraFeed(node, args.topic, args.width, args.height, args.stamps)
        pacer = Pacer(round(NS_PER_S / args.rate))
        while not stop.came:
            pacer.wait(time.sleep)
            camera.send()
        camera.write()
    else:
        _feed_slow(node, args, stop)
    node.destroy_node()
    rclpy.try_shutdown()


def _feed_slow(node: Node, args: argparse.Namespace, stop: Stop) -> None:
    robot, policy = load_robot(args.robot), load_policy(args.policy)
    spec = bind(policy, robot).planned
    state = StateFeed(node, robot, spec)
    plans = (PlanFeed(node, robot, spec, policy.horizon, policy.period_ns)
             if args.what == 'plans' else None)
    pacer = Pacer(NS_PER_S // STATE_HZ)
    while not stop.came:
        pacer.wait(lambda seconds: rclpy.spin_once(node, timeout_sec=seconds))
        state.send()
        if plans is None:
            continue
        if pacer.ticks % (STATE_HZ // PLAN_HZ) == 0:
            plans.send()
        if pacer.ticks % (STATE_HZ // STATUS_HZ) == 1:
            plans.send_status()


def main() -> int:
    """Entry point of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument('what', choices=('state', 'plans', 'camera'))
    parser.add_argument('--namespace', required=True)
    parser.add_argument('--robot', help='of state and plans')
    parser.add_argument('--policy', help='of state and plans')
    parser.add_argument('--topic', help='of camera, like all below')
    parser.add_argument('--width', type=int)
    parser.add_argument('--height', type=int)
    parser.add_argument('--rate', type=float)
    parser.add_argument('--stamps', type=Path, help='file (.npy) for the stamps of all frames')
    feed(parser.parse_args())
    return 0


if __name__ == '__main__':
    sys.exit(main())
