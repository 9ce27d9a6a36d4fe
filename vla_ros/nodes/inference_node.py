"""inference_node: observations in, action chunks out; the engine runs on a thread of its own."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from vla_ros.core.diagnostic_values import inference_level, inference_values
from vla_ros.core.inference_loop import InferenceLoop
from vla_ros.core.types import Frame
from vla_ros.engines.executor import AsyncExecutor, Outcome, warm_up
from vla_ros.engines.registry import make_engine
from vla_ros.profiles.binding import bind
from vla_ros.profiles.engine import load_engine
from vla_ros.profiles.loops import inference_loop
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.ros.cdr import read_image
from vla_ros.ros.cpu_pinning import pin
from vla_ros.ros.diagnostics import Diagnostics
from vla_ros.ros.image_codec import to_rgb
from vla_ros.ros.lifecycle import AUTOSTART, LifecycleNode, run
from vla_ros.ros.messages import plan_to_message, state_from_message, status_to_message, to_ns
from vla_ros.ros.pacing import other_threads, own_thread, raise_image_priority
from vla_ros.ros.parameters import REAL_TIME_IMAGES, Parameter, ParameterTable
from vla_ros.ros.qos import (
    IMAGE,
    LATCHED,
    PLAN,
    STATE,
    STATUS,
    subscribe_to_any,
    subscription_events,
)
from vla_ros.ros.stages import PUBLISH_LATENCY, stage_publisher

PARAMETERS = ParameterTable([
    Parameter('robot', 'widowx_bridge', 'robot profile: a shipped name or a path'),
    Parameter('policy', 'knn_bridge', 'policy profile: a shipped name or a path'),
    Parameter('model', '', 'checkpoint that replaces the one of the policy profile'),
    Parameter('engine', 'cpu', 'engine profile: a shipped name or a path'),
    Parameter('instruction', '', 'instruction at start; the topic instruction replaces it'),
    AUTOSTART,
    REAL_TIME_IMAGES,
    PUBLISH_LATENCY,
])
STATUS_S = 0.1
JOIN_S = 0.5  # what an inference in progress gets at the end; a hanging one is left behind


class InferenceNode(LifecycleNode):
    """Wiring of the inference loop; see `core.inference_loop` for what it does."""

    PARAMETERS = PARAMETERS

    def __init__(self, debug: bool = False) -> None:
        super().__init__('inference_node', debug)
        self._engine = None
        self._executor_thread: AsyncExecutor | None = None
        self._cpus = os.sched_getaffinity(0)
        self._epoch_ns = 0

    # --- hooks of the lifecycle ----------------------------------------------------------------

    def configure(self, parameters: Mapping[str, Any]) -> None:
        robot = load_robot(parameters['robot'])
        policy = load_policy(parameters['policy'], parameters['model'])
        profile = load_engine(parameters['engine'])
        self._frame_id = robot.frame_id
        if parameters[REAL_TIME_IMAGES.name]:  # now, when there are none but the middleware's
            raise_image_priority(other_threads())
        self._engine = make_engine(policy, profile)
        self._engine.report = self.get_logger().info
        binding = bind(self._engine.contract, robot)
        pin(profile, self._cpus)
        self._loop: InferenceLoop = inference_loop(robot, policy, binding)
        self._names = binding.planned.names
        self._engine.load()
        self._loop.lag = self._engine.lag
        durations = warm_up(self._engine, profile.warm_up, time.monotonic_ns, self._loop.malformed)
        gc.collect()
        gc.freeze()  # or it looks at all that was loaded, in the middle of an inference
        refusal = self._loop.on_warm_up(durations)
        if refusal:
            raise ValueError(f'{refusal}; use a faster engine or a policy with a longer horizon')
        self._diagnostics = self.keep(Diagnostics(self, robot.name), Diagnostics.close)
        self._told: tuple[str, str] | None = None
        self._notes: tuple[str, ...] = ()
        self._stages = stage_publisher(self, parameters)
        self._connect(tuple(self._engine.contract.cameras))
        self._loop.on_instruction(parameters['instruction'], self._now_ns())

    def activate(self) -> None:
        if self._engine is None:
            raise ValueError('the engine was left behind; clean up and configure again')
        self._executor_thread = AsyncExecutor(self._engine, self._now_ns, self._notify)
        if self.get_parameter(REAL_TIME_IMAGES.name).value:
            raise_image_priority([own_thread()])

    def deactivate(self) -> None:
        executor, self._executor_thread = self._executor_thread, None
        if executor is None:
            return
        if not executor.stop(JOIN_S):
            self.get_logger().warning('the engine has not answered; it is left behind')
            self._engine = None
        # A stamp of its own drops what the engine still gave; the epoch is that of the publisher.
        self._loop.on_reset(self._now_ns())
        self._conclude_all(executor)
        self._loop.on_reset(self._epoch_ns)
        self._report()

    def clean_up(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    # --- wiring --------------------------------------------------------------------------------

    def _connect(self, cameras: tuple[str, ...]) -> None:
        self._plans = self.create_publisher(JointTrajectory, 'action_chunk', PLAN)
        self._statuses = self.create_publisher(DiagnosticStatus, 'inference_status', STATUS)
        for publisher in (self._plans, self._statuses):
            self.keep(publisher, self.destroy_publisher)
        subscriptions = subscribe_to_any(self, String, 'instruction', self._on_instruction)
        subscriptions.append(self.create_subscription(
            JointState, 'joint_states', self._on_state, STATE,
            event_callbacks=subscription_events(self, 'joint_states')))
        subscriptions.append(self.create_subscription(
            Time, 'reset_stamp', self._on_reset, LATCHED))
        for camera in cameras:
            topic = f'observation/{camera}/image'
            subscriptions.append(self.create_subscription(
                Image, topic, partial(self._on_image, camera), IMAGE, raw=True,
                event_callbacks=subscription_events(self, topic)))
        for subscription in subscriptions:
            self.keep(subscription, self.destroy_subscription)
        self.keep(self.create_timer(STATUS_S, self._report), self.destroy_timer)

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    def _on_image(self, camera: str, message: bytes) -> None:
        now_ns = self._now_ns()
        try:
            image = read_image(message)
            frame = Frame(camera, image.stamp_ns, now_ns, to_rgb(image))
        except ValueError as error:
            self._loop.counts[f'dropped: {camera}: image that cannot be read'] += 1
            self.get_logger().error(f'observation/{camera}/image: {error}',
                                    throttle_duration_sec=1.0)
            return
        dropped = self._loop.on_frame(frame, now_ns)
        if dropped:
            self.get_logger().warning(dropped, throttle_duration_sec=1.0)
        started = self._infer()
        if self._stages is not None and not started:  # the others are told of with their outcome
            self._stages.publish(frame.stamp_ns, image_received=now_ns)

    def _on_state(self, message: JointState) -> None:
        dropped = self._loop.on_state(state_from_message(message, self._now_ns()))
        if dropped:
            self.get_logger().warning(dropped, throttle_duration_sec=1.0)

    def _on_instruction(self, message: String) -> None:
        self._loop.on_instruction(message.data, self._now_ns())
        self._infer()
        self._report()

    def _on_reset(self, message: Time) -> None:
        self._epoch_ns = to_ns(message)
        self._loop.on_reset(self._epoch_ns)
        self._report()

    # --- inference -----------------------------------------------------------------------------

    def _infer(self) -> bool:
        """Start an inference if it is time for one; returns whether it was."""
        if self._executor_thread is None:
            return False
        request = self._loop.poll(self._now_ns())
        if request is None:
            return False
        self._executor_thread.submit(request)
        return True

    def _notify(self) -> None:
        """Called on the engine's thread, which may have been left behind."""
        if self._executor_thread is not None:
            self.soon(self._on_outcome)

    def _on_outcome(self) -> None:
        if self._executor_thread is not None:
            self._conclude_all(self._executor_thread)
            self._infer()

    def _conclude_all(self, executor: AsyncExecutor) -> None:
        while (outcome := executor.take()) is not None:
            self._conclude(outcome)

    def _conclude(self, outcome: Outcome) -> None:
        now_ns, request = self._now_ns(), outcome.request
        if outcome.failure:
            self.get_logger().error(outcome.traceback)
            self._loop.on_failure(request, outcome.failure)
        else:
            self._tell_notes()
            plan = self._loop.on_result(request, outcome.result, outcome.timing, now_ns)
            merged_ns = self._now_ns()
            if plan is not None:
                self._plans.publish(plan_to_message(plan, self._names, self._frame_id))
                given = self._loop.answered
                if self._stages is not None and given is not None:
                    # `called`: start of the inference that gave this, after `started` in a pipeline
                    self._stages.publish(
                        plan.stamp_ns, image_received=given.request.observation.received_ns,
                        started=given.request.started_ns, preprocessed=given.preprocessed_ns,
                        called=request.started_ns, inferred=outcome.timing.inferred_ns,
                        taken=now_ns, merged=merged_ns, plan_published=self._now_ns())
        if self._loop.executor.failure:
            self._report()

    def _tell_notes(self) -> None:
        """What the engine, which is idle now, wants people to know; each note as it comes up."""
        notes = self._engine.notes() if self._engine is not None else ()
        for note in notes:
            if note not in self._notes:
                self.get_logger().warning(note)
        self._notes = notes

    def _report(self) -> None:
        """Tell the control side how inference fares; threshold and rate triggers look again."""
        self._infer()
        now_ns = self._now_ns()
        status = self._loop.status(now_ns)
        if self._executor_thread is None:
            status = replace(status, cause='inference_node is not active', reaction='hold')
        self._statuses.publish(status_to_message(status, self.get_fully_qualified_name()))
        if status.reaction == 'fault' and (status.cause, status.reaction) != self._told:
            self.get_logger().error(f'{status.cause}; reset clears it')
        self._told = (status.cause, status.reaction)
        level = bytes([inference_level(status)])
        if self._diagnostics.due(level, status.reaction, now_ns):
            self._diagnostics.publish(level, status.cause or 'inferring',
                                      inference_values(self._loop, self._names), now_ns)


def main() -> None:
    """Entry point of the executable."""
    sys.exit(run(lambda debug: InferenceNode(debug)))


if __name__ == '__main__':
    main()
