"""Reads the standard joint_limits.yaml of MoveIt and of ros2_control."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path

from vla_ros.profiles.reader import Section, read_yaml


@dataclass(frozen=True)
class JointLimits:
    """Limits of one joint in SI units, inf where there is none.

    `stop_deceleration` is the file's max_deceleration.
    """

    position: tuple[float, float] | None = None
    velocity: float = inf
    acceleration: float = inf
    jerk: float = inf
    stop_deceleration: float = inf


def read_joint_limits(file: Path) -> dict[str, JointLimits]:
    """Limits by joint name. Raises ValueError with one line.

    Takes the layouts `joint_limits: {joint: …}` (MoveIt) and
    `<node>: {ros__parameters: {joint_limits: {joint: …}}}` (ros2_control). Keys that are not
    limits of motion (effort, soft limits, default scaling factors) are left alone.
    """
    root = read_yaml(file)
    rule = 'a mapping of joint names to has_position_limits, min_position, …'
    if 'joint_limits' not in root.keys():
        nodes = [root.section(key) for key in root.keys() if root.is_mapping(key)]
        root = next((node.section('ros__parameters') for node in nodes
                     if node.is_mapping('ros__parameters')), root)
    joints = root.named_sections('joint_limits', rule)
    return {name: _joint(section) for name, section in joints.items()}


def _joint(section: Section) -> JointLimits:
    position = None
    if _given(section, 'has_position_limits', ('min_position', 'max_position')):
        low, high = section.number('min_position'), section.number('max_position')
        if not low < high:
            section.fail('min_position', f'below max_position, which is {high:g}')
        position = low, high
    if section.has('angle_wraparound') and section.flag('angle_wraparound'):
        position = None
    return JointLimits(
        position=position,
        velocity=_limit(section, 'velocity', 'max_velocity'),
        acceleration=_limit(section, 'acceleration', 'max_acceleration'),
        jerk=_limit(section, 'jerk', 'max_jerk'),
        stop_deceleration=_limit(section, 'deceleration', 'max_deceleration'))


def _limit(section: Section, name: str, key: str) -> float:
    if _given(section, f'has_{name}_limits', (key,)):
        return section.number(key, above=0.0)
    return inf


def _given(section: Section, flag: str, keys: tuple[str, ...]) -> bool:
    """Whether the limit applies; a value without its flag would be ignored without a word."""
    if section.has(flag):
        return section.flag(flag)
    for key in keys:
        if section.has(key):
            section.fail(key, f'counts only with {flag}: true; write {flag}: true or false')
    return False
