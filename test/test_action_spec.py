"""Action specs that make no sense are refused with one line; indices follow kinds and names."""

from __future__ import annotations

import pytest
from core_rig import dimension, quaternion_spec, spec_of

from vla_ros.core.action_spec import ActionSpec, Dimension, Group, Kind, Rotation


def rotations(*kinds: Kind, rotation: Rotation = Rotation.VECTOR) -> tuple[Dimension, ...]:
    return tuple(dimension(f'r{i}', kind, Group.ROTATION, rotation=rotation)
                 for i, kind in enumerate(kinds))


@pytest.mark.parametrize(('dimensions', 'message'), [
    ((), 'no dimensions'),
    ((dimension('a'), dimension('a')), "'a' is named twice"),
    ((dimension('g', Kind.GRIPPER, Group.JOINTS),), 'gripper goes with gripper only'),
    ((dimension('g', Kind.POSITION, Group.GRIPPER),), 'gripper goes with gripper only'),
    (rotations(Kind.DELTA, Kind.DELTA, Kind.POSITION), 'must be alike'),
    (rotations(*[Kind.POSITION] * 3, rotation=Rotation.QUATERNION), 'needs 4 dimensions'),
    (rotations(*[Kind.DELTA] * 4, rotation=Rotation.QUATERNION), 'of kind position'),
    (rotations(*[Kind.DELTA] * 2), 'need 3 dimensions'),
    (rotations(*[Kind.RELATIVE] * 4), 'need 3 dimensions')])
def test_a_spec_that_makes_no_sense_is_refused_by_name(
        dimensions: tuple[Dimension, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        ActionSpec(dimensions)
    assert '\n' not in str(caught.value)


def test_indices_follow_kinds_groups_and_names() -> None:
    spec = spec_of(Kind.POSITION, Kind.GRIPPER, Kind.DELTA, Kind.POSITION)
    assert spec.of_kind(Kind.POSITION, Kind.DELTA).tolist() == [0, 2, 3]
    assert spec.of_group(Group.GRIPPER).tolist() == [1]
    assert spec.indices(['d3', 'd0']).tolist() == [3, 0]
    assert quaternion_spec().quaternion().tolist() == [0, 1, 2, 3]
    assert spec.quaternion().size == 0
    with pytest.raises(ValueError, match="'stranger' is not in the action; it has d0, d1"):
        spec.indices(['stranger'])


def test_a_planned_spec_has_no_offsets_left() -> None:
    spec = spec_of(Kind.RELATIVE, Kind.DELTA, Kind.DELTA, Kind.VELOCITY, Kind.GRIPPER)
    kinds = [d.kind for d in spec.as_planned({'d1', 'd3'}).dimensions]
    assert kinds == [Kind.POSITION, Kind.POSITION, Kind.DELTA, Kind.VELOCITY, Kind.GRIPPER]
    assert spec.as_planned(()).names == spec.names


def test_single_euler_angles_may_be_driven() -> None:
    assert ActionSpec(rotations(Kind.DELTA, rotation=Rotation.EULER)).size == 1
