"""What the control loop is told, and what it says: its configuration, states and ticks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from vla_ros.core.action_spec import ActionSpec
from vla_ros.core.gripper import GripperMap
from vla_ros.core.limits import Limits
from vla_ros.core.types import NS_PER_S, Command, Floats, Plan
from vla_ros.core.watchdog import Layer, LayerLimit


class State(str, Enum):
    """What the control loop is doing."""

    WAITING = 'waiting'    # not enabled
    ACTIVE = 'active'      # plays the plan
    SHADOW = 'shadow'      # plays the plan on the shadow topics only
    HOLDING = 'holding'    # comes to rest, stays, resumes by itself
    STOPPING = 'stopping'  # comes to rest …
    STOPPED = 'stopped'    # … and needs to be enabled
    FAULT = 'fault'        # at rest, needs a reset


@dataclass(frozen=True)
class ControlConfig:
    """Everything the control loop is told, in the order of the planned `spec`.

    `grippers`: map by dimension index. `tolerance` float64 [A]: how far the first target of a
    position dimension may be from the measured state. `rollout_steps`: control periods ahead.
    """

    spec: ActionSpec
    limits: Limits
    tolerance: Floats
    policy_period_ns: int
    watchdog: Mapping[Layer, LayerLimit]
    period_ns: int = NS_PER_S // 50
    grippers: Mapping[int, GripperMap] = field(default_factory=dict)
    state_age_ns: int = NS_PER_S // 2
    command_latency_ns: int = 0
    rollout_steps: int = 0
    shadow: bool = False
    enable_on_start: bool = False
    estop_required: bool = False


@dataclass(frozen=True)
class Tick:
    """Outcome of one control period. `command` is None where nothing is to be sent.

    `reset_stamp_ns` is set in the period in which a new epoch begins.
    """

    state: State
    cause: str
    command: Command | None = None
    reset_stamp_ns: int | None = None
    first_of_plan: Plan | None = None
