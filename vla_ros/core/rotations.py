"""Unit quaternions (x, y, z, w), rotation vectors and the way between them.

Source: J. Solà, "Quaternion kinematics for the error-state Kalman filter", 2017, sections 1–2.
"""

from __future__ import annotations

import numpy as np

from vla_ros.core.types import Floats


def quaternion_from_vector(vector: Floats) -> Floats:
    """Unit quaternion [4] of a rotation vector [3] in radians."""
    angle = float(np.linalg.norm(vector))
    # sin(a/2)/a written with sinc, which is exact at zero.
    scale = 0.5 * float(np.sinc(angle / (2.0 * np.pi)))
    return np.append(vector * scale, np.cos(angle / 2.0))


def vector_from_quaternion(quaternion: Floats) -> Floats:
    """Rotation vector [3] in radians, angle at most pi, of a unit quaternion [4]."""
    q = quaternion if quaternion[3] >= 0.0 else -quaternion
    sine = float(np.linalg.norm(q[:3]))
    angle = 2.0 * np.arctan2(sine, q[3])
    return np.asarray(q[:3] * (angle / sine if sine > 1e-12 else 2.0))


def multiply(a: Floats, b: Floats) -> Floats:
    """The rotation b followed by the rotation a, as unit quaternion [4]."""
    ax, ay, az, aw = a
    bx, by, bz, bw = b
    return np.array([
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
        aw * bw - ax * bx - ay * by - az * bz,
    ])


def slerp(start: Floats, end: Floats, fraction: Floats) -> Floats:
    """The shortest way from `start` to `end`: quaternions [..., 4], `fraction` [...].

    Fractions outside [0, 1] go on along the same great circle.
    Source: K. Shoemake, "Animating rotation with quaternion curves", 1985.
    """
    dot = np.sum(start * end, axis=-1, keepdims=True)
    end = np.where(dot < 0.0, -end, end)
    angle = np.arccos(np.clip(np.abs(dot), 0.0, 1.0))
    sine = np.sin(angle)
    fraction = np.asarray(fraction)[..., None]
    near = sine < 1e-9
    safe = np.where(near, 1.0, sine)
    a = np.where(near, 1.0 - fraction, np.sin((1.0 - fraction) * angle) / safe)
    b = np.where(near, fraction, np.sin(fraction * angle) / safe)
    mixed = a * start + b * end
    return np.asarray(mixed / np.linalg.norm(mixed, axis=-1, keepdims=True))


def same_side(quaternion: Floats, near: Floats) -> Floats:
    """The quaternion [4] or its negative, which is the same rotation: the one nearer to `near`."""
    return quaternion if float(quaternion @ near) >= 0.0 else -quaternion


def unwrapped(vector: Floats, near: Floats) -> Floats:
    """The rotation vector [3] of the same rotation that lies nearest to `near`."""
    angle, length = float(np.linalg.norm(vector)), float(np.linalg.norm(near))
    if angle < 1e-9:
        # No rotation has no axis of its own: whole turns go around the axis of `near`.
        turn = 2.0 * np.pi * np.round(length / (2.0 * np.pi))
        return np.asarray(near * (turn / length)) if turn else vector
    axis = vector / angle
    turns = np.round((float(near @ axis) - angle) / (2.0 * np.pi))
    return np.asarray(axis * (angle + 2.0 * np.pi * turns))
