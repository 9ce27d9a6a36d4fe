"""The real nodes on a recording do what the discrete-event runtime does, within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live import LIMIT_S, Twists, graph
from test_determinism import BAGS, IMAGE_TOPIC, Replay, build_model, replay
from trajectory_msgs.msg import JointTrajectory

from vla_ros.core.types import NS_PER_S
from vla_ros.replay.bags import Bag
from vla_ros.ros.messages import to_ns
from vla_ros.ros.qos import PLAN

# What the live engine takes is not known, and a fade looks a little different for every delay; and
# a plan takes effect at the next tick. So a live command must lie among those that the runtime
# gives for delays that may be, around its time.
DELAYS_MS = (5, 25, 60, 120)
SHIFT_S = 0.06
SLACK = np.array([2e-3] * 3 + [1e-2] * 3)  # m/s and rad/s; the fastest are 0.06 and 0.57
SHARE = 0.8        # of the commands: all of them, but where a loaded machine loses a frame;
                   # of those of a graph that runs one step late, 0.6
CLIPS_S = 6.5      # of the recording: two clips and the gap between them
CLIP_S = 4.0       # from the begin of a clip to that of the next


@pytest.mark.parametrize('sim_time', [True, pytest.param(False, marks=pytest.mark.long)],
                         ids=['use_sim_time', 'real time'])
def test_live_graph_agrees_with_the_runtime(tmp_path: Path, sim_time: bool) -> None:
    model = build_model(tmp_path)
    runs = [replay(model, lambda request, ms=ms: ms * 1_000_000) for ms in DELAYS_MS]
    stamps, rows, plans = live_commands(model, tmp_path, sim_time)
    shift_ns = 0 if sim_time else restamped_by(plans)
    times = (stamps - shift_ns - runs[0].start_ns) / NS_PER_S
    # Where discovery takes longer than the first frames do, one clip and a half must be enough;
    # where it takes longer than a clip, the clips behind it are looked at.
    began = (plans[0] - shift_ns - runs[0].start_ns) / NS_PER_S + 0.5
    missed = CLIP_S * (began // CLIP_S)

    chosen = (times > began) & (times < CLIPS_S + missed)
    assert chosen.sum() > 0.5 * 50 * (CLIPS_S + missed - began), 'enough commands to compare'
    lows, highs = envelope(runs, times[chosen])
    agree = np.all((rows[chosen] >= lows - SLACK) & (rows[chosen] <= highs + SLACK), axis=1)
    assert np.mean(agree) >= SHARE
    moving = rows[(times > missed + 4.5) & (times < missed + 6.0)]
    assert np.all(np.abs(moving[:, 1:3]).max(axis=1) > 5e-3)
    resting = rows[(times > missed + 2.8) & (times < missed + 3.9)]
    assert len(resting) > 25
    assert not resting.any(), 'a hold in the gap'


def envelope(runs: Sequence[Replay], times: Any) -> tuple[Any, Any]:
    """Least and greatest twist [n, 6] of all runs around each of the times [n]."""
    commands = [(time, tick.command.velocities[:6]) for run in runs for time, tick in run.ticks
                if tick.command is not None]
    own_times, own_rows = np.array([t for t, _ in commands]), np.array([r for _, r in commands])
    around = [own_rows[np.abs(own_times - time) <= SHIFT_S] for time in times]
    return (np.array([rows.min(axis=0) for rows in around]),
            np.array([rows.max(axis=0) for rows in around]))


def restamped_by(plans: Sequence[int]) -> int:
    """What the player added to the stamps, by the first frames behind the gap between two clips.

    Clips look alike in their stamps, so the graph must have been there in the first of them.
    """
    with Bag(BAGS / 'bridge_3') as bag:
        recorded = [to_ns(m.message.header.stamp) for m in bag.messages([IMAGE_TOPIC])]
    return behind_gap(plans) - behind_gap(recorded)


def behind_gap(stamps: Sequence[int]) -> int:
    gap = next(i for i, d in enumerate(np.diff(stamps)) if d > NS_PER_S)
    return stamps[gap + 1]


def live_commands(model: Path, folder: Path, sim_time: bool) -> tuple[Any, Any, list[int]]:
    """Stamps [n], twists [n, 6], and the stamps of the plans, of the real nodes on bag 3."""
    with graph(folder) as live:
        twists, plans = Twists(live), live.heard(JointTrajectory, 'action_chunk', PLAN)
        names = {'robot': 'widowx_bridge', 'policy': 'knn_bridge', 'use_sim_time': sim_time}
        live.start('action_publisher', {**names, 'enable_on_start': True})
        live.start('inference_node', {**names, 'model': str(model)})
        live.start('camera_node', names)
        live.active('action_publisher', 'inference_node', 'camera_node')
        # At half speed a loaded machine is as quick, in the time of the recording, as an idle one.
        clock = ['--clock', '--rate', '0.5'] if sim_time else []
        live.start('bag_player', words=[
            str(BAGS / 'bridge_3'), '--wait-for-subscribers', *clock, '--remap',
            'ee_state:=joint_states', 'vla/instruction:=instruction'])
        live.until(lambda: len(plans) > 1, 'plans')
        begin_ns = to_ns(plans[0].header.stamp)
        enough_ns = round((CLIPS_S + 1.0) * NS_PER_S)
        live.until(lambda: len(twists) and twists.stamps_ns()[-1] - begin_ns > enough_ns,
                   'two clips', limit_s=LIMIT_S + 2 * CLIPS_S)
        return twists.stamps_ns(), twists.rows(), [to_ns(plan.header.stamp) for plan in plans]
