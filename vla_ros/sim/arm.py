"""The simulated arm: names, lengths, limits and rest pose. Six joints and a parallel gripper."""

from __future__ import annotations

from vla_ros.core.types import NS_PER_S

JOINTS = ('waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate')
GRIPPER = 'gripper'
STATE_NAMES = (*JOINTS, GRIPPER)

# rad; the same as in arm.xml, which a test holds
LOW = (-3.1, -0.6, 0.0, -3.1, -1.0, -3.1)
HIGH = (3.1, 1.9, 2.7, 3.1, 2.9, 3.1)
OPENING = 0.037  # m, way of each finger: 0 closed

# m
SHOULDER_HEIGHT = 0.12
UPPER_ARM = 0.24
FOREARM = 0.24
HAND = 0.14  # from the axis of wrist_angle to the tool point between the fingertips

HOME = (0.20, 0.0, 0.18)  # m, where the tool rests
PHYSICS_NS = NS_PER_S // 500
