"""The core's loops, built from profiles: the one place that both the nodes and replay use."""

from __future__ import annotations

from vla_ros.core.assembler import Assembler, CameraStream, OnViolation
from vla_ros.core.chunk_buffer import ChunkBuffer
from vla_ros.core.control_config import ControlConfig
from vla_ros.core.control_loop import ControlLoop
from vla_ros.core.executor_state import ExecutorState, Trigger
from vla_ros.core.inference_loop import InferenceConfig, InferenceLoop
from vla_ros.core.types import NS_PER_S, Start
from vla_ros.core.watchdog import Layer
from vla_ros.profiles.binding import Binding
from vla_ros.profiles.policy import PolicyProfile
from vla_ros.profiles.robot import RobotProfile


def control_loop(robot: RobotProfile, policy: PolicyProfile, binding: Binding,
                 shadow: bool = False, enable_on_start: bool = False) -> ControlLoop:
    """The control loop of a policy on a robot."""
    return ControlLoop(ControlConfig(
        spec=binding.planned, limits=binding.limits, tolerance=binding.activation_tolerance,
        policy_period_ns=policy.period_ns, watchdog=robot.watchdog,
        period_ns=robot.control_period_ns, grippers=binding.grippers,
        state_age_ns=robot.state_age_ns, command_latency_ns=robot.command_latency_ns,
        rollout_steps=robot.rollout_steps, shadow=shadow, enable_on_start=enable_on_start,
        estop_required=robot.estop_required))


def inference_loop(robot: RobotProfile, policy: PolicyProfile, binding: Binding) -> InferenceLoop:
    """The inference loop of a policy on a robot."""
    cameras = [CameraStream(name, size.width, size.height, robot.cameras[name].period_ns,
                            robot.skew_limit_ns(name))
               for name, size in policy.cameras.items()]
    assembler = Assembler(cameras, policy.state_names, robot.state_age_ns,
                          robot.watchdog[Layer.OBSERVATION_AGE].limit_ns,
                          OnViolation(robot.on_violation))
    rate_period_ns = round(NS_PER_S / policy.trigger_rate) if policy.trigger_rate else 0
    executor = ExecutorState(
        Trigger(policy.trigger), rate_period_ns=rate_period_ns,
        threshold_ns=round(policy.threshold * policy.horizon * policy.period_ns))
    config = InferenceConfig(
        spec=binding.spec, absolute=binding.absolute, horizon=policy.horizon,
        period_ns=policy.period_ns, interval_ns=max(cameras[0].period_ns, rate_period_ns),
        deadline_ns=robot.watchdog[Layer.INFERENCE_DEADLINE].limit_ns,
        instruction_grace_ns=robot.instruction_grace_ns, state_age_ns=robot.state_age_ns,
        arrival=policy.start is Start.ARRIVAL, pad_short_chunks=policy.pad_short_chunks)
    return InferenceLoop(config, assembler, executor,
                         ChunkBuffer(binding.planned, policy.merge, policy.fade_steps))
