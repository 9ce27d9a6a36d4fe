"""Base of the lifecycle nodes, and the one way in which all of them run and end."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from types import FrameType
from typing import Any, TypeVar

import rclpy
from rclpy.exceptions import InvalidParameterTypeException
from rclpy.executors import Executor, SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode as RclpyLifecycleNode
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn
from rclpy.signals import SignalHandlerOptions

from vla_ros.ros.pacing import calm_memory
from vla_ros.ros.parameters import Parameter, ParameterTable
from vla_ros.ros.transport import transport_additions

AUTOSTART = Parameter(
    'autostart', True, 'configure and activate by itself; false where a lifecycle manager does it')
# What hooks raise with one line for people, and rclpy for a use_sim_time that is no bool.
BAD_INPUT = (ValueError, OSError, ImportError, InvalidParameterTypeException)
ENDABLE = ('unconfigured', 'inactive', 'active')  # and not in the middle of a transition
SPIN_S = 0.1
ANSWER_S = 0.3  # for who asked for the shutdown to get the answer, before the participant is gone
EXIT_S = 1.8  # whatever still moves after this is left to the robot's own limits


Kept = TypeVar('Kept')


class Interrupted(BaseException):
    """SIGINT or SIGTERM came while nothing moves yet; no Exception, so that nobody swallows it."""


class Interrupt:
    """Whether SIGINT or SIGTERM came."""

    def __init__(self) -> None:
        self.came = False
        self._breaks = False

    def listen(self) -> None:
        """Take the signals from now on; only the main thread may call."""
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """Inside, a signal raises Interrupted at once: loading may take longer than ending may."""
        if self.came:
            raise Interrupted
        self._breaks = True
        try:
            yield
        finally:
            self._breaks = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if self._breaks:
            raise Interrupted


class LifecycleNode(RclpyLifecycleNode):  # type: ignore[misc]  # rclpy has no types here
    """A lifecycle node whose subclasses fill four hooks.

    A hook that raises ValueError, OSError or ImportError makes its transition fail with that one
    line in the log; anything else is logged with its traceback.
    """

    PARAMETERS: ParameterTable

    def __init__(self, name: str, debug: bool = False, **options: Any) -> None:
        super().__init__(name, **options)
        self.debug = debug
        self._interrupt = Interrupt()
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._kept: list[Callable[[], object]] = []
        self.PARAMETERS.declare(self)

    # --- hooks ---------------------------------------------------------------------------------

    def configure(self, parameters: Mapping[str, Any]) -> None:
        """Read profiles, make publishers and subscriptions, load what takes long."""

    def activate(self) -> None:
        """Start to work."""

    def deactivate(self) -> None:
        """Stop to work; motion has come to rest when this returns."""

    def clean_up(self) -> None:
        """Give back what `configure` made and did not `keep`."""

    def spin_once(self, executor: Executor) -> None:
        """One turn of the main loop."""
        executor.spin_once(timeout_sec=SPIN_S)
        while not self._calls.empty():
            self._calls.get()()

    # --- for the hooks -------------------------------------------------------------------------

    def soon(self, function: Callable[[], object]) -> None:
        """Have the main loop call a function; any thread may ask for it."""
        self._calls.put(function)
        if self.executor is not None:
            # Only wakes the loop: EventsExecutor crashes when a task itself raises.
            self.executor.create_task(_nothing)

    def keep(self, made: Kept, destroy: Callable[[Kept], object]) -> Kept:
        """What `configure` made, to be destroyed on clean-up."""
        self._kept.append(lambda: destroy(made))
        return made

    def destroy_node(self) -> None:
        """Also what rclpy leaves behind: the state machine keeps the whole DDS participant alive,
        and with it 34 MB of shared memory that outlast the process."""
        super().destroy_node()
        if hasattr(self, '_state_machine'):  # a signal may have come before it was made
            self._state_machine.destroy_when_not_in_use()

    # --- transitions ---------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        with self._interrupt.breaking():
            done = self._try(lambda: self.configure(self.PARAMETERS.snapshot(self)))
        if done is not TransitionCallbackReturn.SUCCESS:
            self._release()
        return done

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        with self._interrupt.breaking():
            calm_memory()
        done = self._try(self.activate)
        if done is TransitionCallbackReturn.SUCCESS:
            return super().on_activate(state)
        return done

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        done = self._try(self.deactivate)
        super().on_deactivate(state)
        return done

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._release()

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        if state.label == 'active':
            self._try(self.deactivate)
        if state.label != 'unconfigured':
            self._release()
        return TransitionCallbackReturn.SUCCESS

    @property
    def interrupted(self) -> bool:
        """Whether SIGINT or SIGTERM came."""
        return self._interrupt.came

    def heed(self, interrupt: Interrupt) -> None:
        """End when this comes."""
        self._interrupt = interrupt

    @property
    def lifecycle_state(self) -> str:
        """Label of the present state: unconfigured, inactive, active or finalized."""
        return str(self._state_machine.current_state[1])

    def start(self) -> bool:
        """Configure and activate; returns whether that went well. A failure has been logged."""
        return all(transition() is TransitionCallbackReturn.SUCCESS
                   for transition in (self.trigger_configure, self.trigger_activate))

    def _release(self) -> TransitionCallbackReturn:
        done = self._try(self.clean_up)
        while self._kept:
            self._try(self._kept.pop())
        return done

    def _try(self, hook: Callable[[], object]) -> TransitionCallbackReturn:
        """Run a hook. Exceptions must not leave a transition: Humble's rclpy swallows them."""
        try:
            hook()
        except BAD_INPUT as error:
            line = ' '.join(str(error).split())
            self.get_logger().error(traceback.format_exc() if self.debug else line)
            return TransitionCallbackReturn.FAILURE
        except Exception:
            self.get_logger().error(traceback.format_exc())
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.SUCCESS


def make_executor() -> Executor:
    """The executor with the least latency and jitter that this distribution has."""
    try:
        from rclpy.experimental import EventsExecutor
    except ImportError:  # Humble
        return SingleThreadedExecutor()
    return EventsExecutor()


def run(make: Callable[[bool], LifecycleNode], argv: Sequence[str] | None = None) -> int:
    """Run a node until SIGINT, SIGTERM or shutdown; returns the exit status.

    `make` gets the value of `--debug`. Bad input ends in one line on stderr and status 1. What a
    callback raises ends the process as well, after motion has come to rest.
    """
    arguments = list(sys.argv if argv is None else argv)
    debug = '--debug' in arguments
    if debug:
        arguments.remove('--debug')
    if 'HOME' not in os.environ:  # rclpy must write its log somewhere
        os.environ.setdefault('ROS_LOG_DIR', '/tmp/ros_log')
    os.environ.update(transport_additions(os.environ))  # before the middleware reads it
    node: LifecycleNode | None = None
    executor: Executor | None = None
    interrupt = Interrupt()
    interrupt.listen()
    try:
        with interrupt.breaking():
            _initialize(arguments)
            node = make(debug)
            node.heed(interrupt)
            executor = make_executor()
            executor.add_node(node)
        if node.get_parameter(AUTOSTART.name).value and not node.start():
            return 1
        _spin(node, executor)
        return 0
    except Interrupted:
        return 0
    except BAD_INPUT as error:
        if debug or node is not None:
            raise
        print(f'{arguments[0].rsplit("/", 1)[-1]}: {" ".join(str(error).split())}', file=sys.stderr)
        return 1
    finally:
        _end(node, executor)


def _spin(node: LifecycleNode, executor: Executor) -> None:
    while not node.interrupted and node.lifecycle_state != 'finalized':
        node.spin_once(executor)
    if not node.interrupted:
        time.sleep(ANSWER_S)


def _initialize(arguments: list[str]) -> None:
    """Start ROS. Raises ValueError with one line on arguments that it does not take."""
    strangers = list(takewhile(lambda word: word != '--ros-args', arguments[1:]))
    if strangers:  # a deprecated form of ROS would take robot:=so101 for a remap
        raise ValueError(f'argument {strangers[0]!r}: a node takes --debug and ROS arguments, such '
                         'as --ros-args -p robot:=so101')
    try:
        rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
    except RuntimeError as error:  # unknown ROS arguments, a parameter file that cannot be read
        raise ValueError(f'ROS arguments: {str(error).split(", at ")[0]}') from None


def _end(node: LifecycleNode | None, executor: Executor | None) -> None:
    """Bring the node to its end in order; nothing here may keep the process alive."""
    deadline = time.monotonic() + EXIT_S
    if node is not None and node.lifecycle_state in ENDABLE:
        try:
            node.trigger_shutdown()
        except Exception:
            traceback.print_exc()
    if executor is not None and time.monotonic() < deadline:
        executor.shutdown(timeout_sec=0.1)
    if node is not None:
        node.destroy_node()
    rclpy.try_shutdown()
    deafen()


def deafen() -> None:
    """Ignore a second signal on the last stretch: Python gives them back their defaults there."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _nothing() -> None:
    pass
