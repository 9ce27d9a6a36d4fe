"""What listens to a run: the trace, the bag that is written, the pictures for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vla_ros.core.runtime import Event, Output
from vla_ros.core.types import Floats
from vla_ros.replay.bag_events import RecordedAction
from vla_ros.replay.bags import RawMessage

if TYPE_CHECKING:
    from vla_ros.replay.session import Session


class Hearer:
    """Is told everything in one thread; every method may be left as it is.

    Events and raw messages are told when they are read, which may be one event early; outputs in
    order of time.
    """

    def on_begin(self, session: Session) -> None:
        """The run begins; the session's loops are there."""

    def on_raw(self, raw: RawMessage) -> None:
        """A message of the recording, as it is."""

    def on_event(self, event: Event) -> None:
        """An event with the faults in it."""

    def on_action(self, action: RecordedAction) -> None:
        """A recorded action."""

    def on_inference(self, started_ns: int, ended_ns: int | None, failed: bool) -> None:
        """An inference starts now and will end then, if ever; times of events."""

    def on_chunk(self, stamp_ns: int, actions: Floats) -> None:
        """The engine's own answer [H, A] about the observation of this stamp, of events."""

    def on_output(self, output: Output) -> None:
        """Something that the runtime gave."""

    def on_end(self, end_ns: int) -> None:
        """The run has ended."""
