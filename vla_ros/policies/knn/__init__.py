"""Policy family `knn`: visual nearest-neighbour imitation. Plumbing, not skill."""

from __future__ import annotations

from vla_ros.policies.knn.engine import make

__all__ = ['make']
