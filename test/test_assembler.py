"""From streams to observations: what fits together, and what is named when it does not."""

from __future__ import annotations

import numpy as np
import pytest
from core_rig import MS

from vla_ros.core.assembler import Assembler, CameraStream, OnViolation
from vla_ros.core.types import NS_PER_S, Frame, StateSample

T = 1_000 * NS_PER_S
CAMERA_NS = 100 * MS


def stream(name: str, width: int = 8, height: int = 6) -> CameraStream:
    return CameraStream(name, width, height, CAMERA_NS, CAMERA_NS * 3 // 2)


def frame(camera: str, stamp_ns: int, received_ns: int | None = None, width: int = 8,
          height: int = 6, grey: int = 0) -> Frame:
    received_ns = stamp_ns + 10 * MS if received_ns is None else received_ns
    return Frame(camera, stamp_ns, received_ns, np.full((height, width, 3), grey, np.uint8))


def assembler(*cameras: str, states: tuple[str, ...] = ('a',),
              on_violation: OnViolation = OnViolation.REJECT) -> Assembler:
    return Assembler([stream(name) for name in cameras or ('front',)], states,
                     state_age_ns=200 * MS, age_limit_ns=NS_PER_S, on_violation=on_violation)


def state(stamp_ns: int, **values: float) -> StateSample:
    values = values or {'a': 1.0}
    return StateSample(stamp_ns, stamp_ns + MS, tuple(values), np.array(list(values.values())))


def test_an_observation_bears_the_stamp_of_the_primary_camera() -> None:
    parts = assembler('front', 'wrist')
    parts.instruction = 'lift'
    parts.on_state(state(T - 50 * MS, a=0.0))
    parts.on_state(state(T + 50 * MS, a=1.0))
    parts.on_frame(frame('wrist', T - 30 * MS))
    parts.on_frame(frame('front', T))
    got = parts.assemble(T + 60 * MS)
    assert got is not None
    assert got.stamp_ns == T
    assert got.oldest_stamp_ns == T - 30 * MS
    assert got.received_ns == T + 51 * MS
    assert got.state.tolist() == [0.5]
    assert got.instruction == 'lift'
    assert got.degraded == ()
    assert parts.problem == ''


def test_each_primary_frame_makes_at_most_one_observation() -> None:
    parts = assembler(states=())
    parts.on_frame(frame('front', T))
    assert parts.assemble(T) is not None
    assert parts.assemble(T + MS) is None
    parts.reuse()
    assert parts.assemble(T + MS) is not None


def test_the_other_camera_gives_its_frame_nearest_to_the_primary() -> None:
    parts = assembler('front', 'wrist', states=())
    for k, offset in enumerate((-90, -20, 70)):
        parts.on_frame(frame('wrist', T + offset * MS, grey=k))
    parts.on_frame(frame('front', T))
    got = parts.assemble(T + 80 * MS)
    assert got is not None
    assert got.images['wrist'][0, 0, 0] == 1


@pytest.mark.parametrize(('apart_ms', 'fits'), [(150, True), (151, False)])
def test_skew_is_allowed_up_to_its_limit(apart_ms: int, fits: bool) -> None:
    parts = assembler('front', 'wrist', states=())
    parts.on_frame(frame('wrist', T - apart_ms * MS))
    parts.on_frame(frame('front', T))
    assert (parts.assemble(T) is not None) == fits
    if not fits:
        assert parts.problem == 'wrist: 0.151 s apart from front (limit 0.15 s)'
        assert parts.counts['wrist: rejected or degraded'] == 1


def test_a_secondary_frame_that_comes_late_completes_the_observation() -> None:
    parts = assembler('front', 'wrist', states=())
    parts.on_frame(frame('wrist', T - 400 * MS))
    parts.on_frame(frame('front', T))
    assert parts.assemble(T + 10 * MS) is None
    parts.on_frame(frame('wrist', T + 20 * MS))
    got = parts.assemble(T + 40 * MS)
    assert got is not None
    assert got.stamp_ns == T
    assert parts.problem == ''


def test_a_secondary_camera_without_any_frame_is_named() -> None:
    parts = assembler('front', 'wrist', states=())
    parts.on_frame(frame('front', T))
    assert parts.assemble(T) is None
    assert parts.problem == 'wrist: no frame yet'


def test_a_missing_joint_is_named() -> None:
    parts = assembler(states=('a', 'elbow'))
    parts.on_state(state(T, a=1.0))
    parts.on_frame(frame('front', T))
    assert parts.assemble(T) is None
    assert parts.problem == 'joint state: elbow has not been received'


def test_several_publishers_of_the_state_are_put_together() -> None:
    parts = assembler(states=('a', 'b'))
    parts.on_state(state(T, b=2.0, other=9.0))
    parts.on_state(state(T - 20 * MS, a=1.0))
    parts.on_frame(frame('front', T))
    got = parts.assemble(T)
    assert got is not None
    assert got.state.tolist() == [1.0, 2.0]
    assert got.oldest_stamp_ns == T - 20 * MS


def test_a_state_that_is_too_old_is_rejected_or_degraded_by_name() -> None:
    for way, used in ((OnViolation.REJECT, False), (OnViolation.DEGRADE, True)):
        parts = assembler(on_violation=way)
        parts.on_state(state(T - 300 * MS))
        parts.on_frame(frame('front', T))
        got = parts.assemble(T)
        assert (got is not None) == used
        assert parts.counts['joint state: rejected or degraded'] == 1
        if got is not None:
            assert got.degraded == ('joint state',)
            assert got.oldest_stamp_ns == T - 300 * MS


def test_a_state_that_was_never_received_cannot_be_degraded_to() -> None:
    parts = assembler(on_violation=OnViolation.DEGRADE)
    parts.on_frame(frame('front', T))
    assert parts.assemble(T) is None


def test_degrading_names_the_camera_that_does_not_fit() -> None:
    parts = assembler('front', 'wrist', states=(), on_violation=OnViolation.DEGRADE)
    parts.on_frame(frame('wrist', T - 400 * MS))
    parts.on_frame(frame('front', T))
    got = parts.assemble(T)
    assert got is not None
    assert got.degraded == ('wrist',)
    assert got.oldest_stamp_ns == T - 400 * MS


def test_age_counts_from_the_oldest_member() -> None:
    parts = assembler('front', 'wrist', states=())
    parts.on_frame(frame('wrist', T - 100 * MS))
    parts.on_frame(frame('front', T))
    assert parts.assemble(T + 901 * MS) is None
    assert parts.problem.startswith('observation: 1.00 s old')
    assert parts.assemble(T + 900 * MS) is not None


@pytest.mark.parametrize(('later_ms', 'words'), [(0, 'stamp repeated'), (-10, 'stamp goes back')])
def test_repeated_and_back_dated_stamps_are_dropped_and_counted(later_ms: int, words: str) -> None:
    parts = assembler(states=())
    assert parts.on_frame(frame('front', T)) == ''
    assert parts.on_frame(frame('front', T + later_ms * MS)) == f'front: {words}'
    assert parts.counts[f'front: {words}'] == 1


@pytest.mark.parametrize(('offset_s', 'words'), [(5.1, '5.1 s behind'), (-0.2, '0.2 s ahead of')])
def test_a_clock_mismatch_of_a_camera_is_named_with_its_fix(offset_s: float, words: str) -> None:
    parts = assembler(states=())
    reason = parts.on_frame(frame('front', T, T + int(offset_s * NS_PER_S)))
    assert reason.startswith('front: clock mismatch')
    assert words in reason
    assert 'use_sim_time' in reason
    assert parts.counts == {'front: clock mismatch': 1}
    assert parts.on_frame(frame('front', T - NS_PER_S)) == ''


def test_a_clock_mismatch_of_the_state_is_named_with_its_fix() -> None:
    parts = assembler()
    reason = parts.on_state(StateSample(T, T + 60 * NS_PER_S, ('a',), np.zeros(1)))
    assert reason.startswith('joint state: clock mismatch: stamps are 60.0 s behind receipt')
    assert parts.counts == {'joint state: clock mismatch': 1}


def test_an_image_of_the_wrong_size_is_named_with_both_sizes() -> None:
    parts = assembler(states=())
    assert parts.on_frame(frame('front', T, width=640, height=480)) == (
        'front: image is 640x480, the policy takes 8x6')


def test_a_camera_that_the_policy_does_not_know_is_named() -> None:
    assert assembler().on_frame(frame('rear', T)) == 'rear: not a camera of this policy'


def test_an_interrupted_camera_is_named_by_receipt() -> None:
    parts = assembler('front', 'wrist', states=())
    assert parts.interrupted(T) == 'front: no frame yet'
    parts.on_frame(frame('front', T))
    parts.on_frame(frame('wrist', T))
    assert parts.interrupted(T + 310 * MS) == ''
    parts.on_frame(frame('front', T + 200 * MS))
    assert parts.interrupted(T + 311 * MS) == (
        'wrist: no frame for 0.30 s (one is due every 0.1 s)')


def test_a_cleared_assembler_uses_nothing_from_before() -> None:
    parts = assembler()
    parts.on_state(state(T))
    parts.on_frame(frame('front', T))
    parts.clear()
    assert parts.assemble(T + MS) is None
    parts.on_frame(frame('front', T - 5 * NS_PER_S))
    assert parts.assemble(T - 5 * NS_PER_S) is None
    assert parts.problem == 'joint state: a has not been received'


def test_no_cameras_are_refused() -> None:
    with pytest.raises(ValueError, match='cameras: none'):
        Assembler([], (), 1, 1)
