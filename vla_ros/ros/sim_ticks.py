"""The fixed rate in simulated time: ticks at the multiples of the period that /clock crosses."""

from __future__ import annotations

from vla_ros.core.types import NS_PER_S

# Steps of the clock up to this long are time that passed; longer ones are jumps.
STEP_NS = NS_PER_S // 10


class SimTicks:
    """Turns times of /clock into ticks; of several multiples crossed at once only the newest."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._tick: int | None = None
        self._rested = True
        self.ticks = 0
        self.missed = 0

    def rest(self) -> None:
        """The node sits out what comes: it is time that passes, however long."""
        self._rested = True

    def crossed(self, time_ns: int) -> tuple[int, int] | None:
        """Time of the tick to make and the time since the last one, in nanoseconds; or None.

        How much time really passed nobody says here: what no usual step explains is a jump.
        """
        tick = time_ns // self._period_ns
        before = self._tick if self._tick is not None else tick - 1
        if tick == before:
            return None
        self._tick, rested = tick, self._rested
        self._rested = False
        passed_ns = (tick - before) * self._period_ns
        usual = 0 < passed_ns and (rested or passed_ns <= STEP_NS)
        self.ticks += 1
        if usual and not rested:
            self.missed += tick - before - 1
        return tick * self._period_ns, passed_ns if usual else self._period_ns
