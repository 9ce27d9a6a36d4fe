"""Where the tool of the simulated arm is, and which joints put it somewhere, in closed form.

Angles in rad, lengths in m, frame: base_link (x forward, y left, z up, origin on the table).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from vla_ros.core.types import Floats
from vla_ros.sim.arm import FOREARM, HAND, HIGH, LOW, SHOULDER_HEIGHT, UPPER_ARM


def tool_point(joints: ArrayLike) -> Floats:
    """The tool point [3] for joints [6], forearm_roll being 0."""
    waist, shoulder, elbow, _, wrist, _ = np.asarray(joints, dtype=np.float64)
    angle, radius, height = 0.0, 0.0, SHOULDER_HEIGHT
    for turn, length in ((shoulder, UPPER_ARM), (elbow, FOREARM), (wrist, HAND)):
        angle += turn
        radius += length * np.sin(angle)
        height += length * np.cos(angle)
    return np.array([radius * np.cos(waist), radius * np.sin(waist), height])


def reach_down(point: ArrayLike) -> Floats:
    """Joints [6] that put the tool at `point` [3], pointing down, the fingers moving along y.

    A point out of reach gives the closest pose on the way there; joint limits hold.
    """
    x, y, z = np.asarray(point, dtype=np.float64)
    waist = np.arctan2(y, x)
    radius, height = np.hypot(x, y), z + HAND - SHOULDER_HEIGHT
    distance = np.clip(np.hypot(radius, height), 0.05, (UPPER_ARM + FOREARM) * 0.999)
    cosine = (distance**2 - UPPER_ARM**2 - FOREARM**2) / (2.0 * UPPER_ARM * FOREARM)
    elbow = np.arccos(np.clip(cosine, -1.0, 1.0))
    shoulder = np.arctan2(radius, height) - np.arctan2(
        FOREARM * np.sin(elbow), UPPER_ARM + FOREARM * np.cos(elbow))
    wrist = np.pi - shoulder - elbow
    # The hand points down, so its own turn undoes that of the waist.
    joints: Floats = np.clip([waist, shoulder, elbow, 0.0, wrist, waist], LOW, HIGH)
    return joints
