"""Says the sentences of the demo one after the other, and keeps what comes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rclpy.node import Node
from sensor_msgs.msg import Image

from vla_ros.core.action_spec import ActionSpec
from vla_ros.profiles.policy import PolicyProfile
from vla_ros.profiles.robot import RobotProfile
from vla_ros.ros.cdr import read_image
from vla_ros.ros.image_codec import to_rgb
from vla_ros.ros.qos import IMAGE
from vla_ros.sim.task_log import IMPOSSIBLE, SUCCESS
from vla_ros.tools.demo_course import Course, End
from vla_ros.tools.demo_script import TRIAL, Cue
from vla_ros.tools.record import Record
from vla_ros.tools.reel import Reel
from vla_ros.tools.sim_operator import SimOperator

TAIL_S = 1.0       # after a success, so that it can be seen
IMPOSSIBLE_S = 3.0  # for a sentence of something that is not there
SILENCE_S = 1.1    # longer than a last command counts as where the robot is: it is put elsewhere
ASK_S = 0.1        # between two attempts to enable


class DemoOperator(SimOperator):
    """Operates the simulated robot, films it while `filming`, and lets other nodes listen."""

    def __init__(self, robot: RobotProfile, spec: ActionSpec, policy: PolicyProfile, reel: Reel,
                 others: Iterable[Node], check: Callable[[], None]) -> None:
        super().__init__(robot, spec, policy.period_ns, check)
        self._reel = reel
        self.filming = False
        self._node.create_subscription(Image, 'view/image_raw', self._on_view, IMAGE, raw=True)
        for node in others:
            self._executor.add_node(node)

    def told(self, event: str) -> float | None:
        """Whether this was told of the sentence now; the seconds that it took, else 0."""
        return next((float(each.get('took', 0.0)) for each in self.events
                     if each['event'] == event and each.get('sentence') == self._said), None)

    def _on_view(self, message: bytes) -> None:
        if self.filming:
            image = read_image(message)
            self._reel.add(image.stamp_ns, to_rgb(image))


class Play:
    """The whole of it; `seconds` at most. The first table has been laid out, the robot enabled."""

    def __init__(self, operator: DemoOperator, course: Course, record: Record,
                 seconds: float) -> None:
        self._operator, self._course, self._record = operator, course, record
        self._over = time.monotonic() + seconds
        self._enabled = True
        self._ask = 0.0

    def play(self) -> None:
        """Say every sentence. Raises ValueError with one line where a node answers no more."""
        self._operator.filming = True
        fresh = False
        for cue in self._course.script.cues:
            if time.monotonic() >= self._over:
                return
            self._turn(cue, cue.fresh or fresh)
            # What a failure leaves behind is nothing that the next sentence is about.
            fresh = self._course.turns[-1].end is End.FAILED
        self._operator.filming = False

    def _turn(self, cue: Cue, fresh: bool) -> None:
        shown_ns = self._lay_out(cue.scene) if fresh else None
        operator, course = self._operator, self._course
        operator.events.clear()  # of an earlier time that the same was said
        course.say(cue, time.time_ns(), shown_ns)
        operator.say(cue.sentence)
        end, otherwise = time.monotonic() + cue.limit_s, _unless_done(cue)
        while time.monotonic() < min(end, self._over):
            self._enable()
            operator.spin(ASK_S)
            took_s = operator.told(SUCCESS)
            if took_s is not None and course.turns[-1].done_ns is None:
                course.succeed(took_s, time.time_ns())
                end = min(end, time.monotonic() + TAIL_S)
            if operator.told(IMPOSSIBLE) is not None and otherwise is not End.IMPOSSIBLE:
                otherwise, end = End.IMPOSSIBLE, time.monotonic() + IMPOSSIBLE_S
        course.conclude(otherwise if time.monotonic() >= end else End.CUT, time.time_ns())

    def _enable(self) -> None:
        if not self._enabled and time.monotonic() >= self._ask:
            self._enabled, self._ask = not self._operator.enable(), time.monotonic() + ASK_S

    def _lay_out(self, scene: int) -> int:
        """A new table; returns when it is there."""
        self._course.laying_out = True
        self._operator.rest(SILENCE_S)
        self._operator.lay_out(TRIAL, scene)
        self._record.forget_plan()
        self._course.laying_out = self._enabled = False
        self._ask = 0.0
        return time.time_ns()


def _unless_done(cue: Cue) -> End:
    """What is said of a sentence whose time is over."""
    if cue.cut:
        return End.CHANGED
    return End.UNJUDGED if cue.task is None else End.FAILED
