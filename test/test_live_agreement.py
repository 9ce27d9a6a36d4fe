"""The real nodes on a recording do what the discrete-event runtime does, within a tolerance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from live import LIMIT_S, Twists, graph
from test_determinism import BAGS, IMAGE_TOPIC, build_model, replay
from trajectory_msgs.msg import JointTrajectory

from vla_ros.core.types import NS_PER_S
from vla_ros.ros.messages import to_ns
from vla_ros.ros.qos import PLAN
from vla_ros.tools.bags import Bag

# The live engine takes what it takes and frames travel: plans may take effect some ticks earlier
# or later than in the runtime. So a live command must lie among those of the runtime around its
# time, and what is driven in a clip may differ by the speed times that shift.
SHIFT_S = 0.08
SLACK = 2e-3       # m/s and rad/s
SHARE = 0.97       # of the commands; a machine with other work may drop a frame
CLIPS_S = 6.5      # of the recording: two clips and the gap between them


@pytest.mark.parametrize('sim_time', [True, pytest.param(False, marks=pytest.mark.long)],
                         ids=['use_sim_time', 'real time'])
def test_live_graph_agrees_with_the_runtime(tmp_path: Path, sim_time: bool) -> None:
    model = build_model(tmp_path)
    runtime = replay(model, lambda request: 25_000_000)
    times, rows, begin_ns = live_commands(model, tmp_path, sim_time)
    times = times - (begin_ns - first_stamp_ns()) - runtime.start_ns
    times = times / NS_PER_S
    own = [(time, tick.command.velocities[:6]) for time, tick in runtime.ticks
           if tick.command is not None]
    own_times, own_rows = np.array([t for t, _ in own]), np.array([r for _, r in own])

    chosen = (times > 0.2) & (times < CLIPS_S)
    assert chosen.sum() > 0.9 * 50 * (CLIPS_S - 0.2), 'commands all the time'
    agree = []
    for time, row in zip(times[chosen], rows[chosen], strict=True):
        around = own_rows[np.abs(own_times - time) <= SHIFT_S]
        agree.append(np.all((row >= around.min(axis=0) - SLACK)
                            & (row <= around.max(axis=0) + SLACK)))
    assert np.mean(agree) >= SHARE
    for begin in (0.2, 4.2):
        live_way = rows[(times > begin) & (times < begin + 2.2)].sum(axis=0) / 50
        own_way = own_rows[(own_times > begin) & (own_times < begin + 2.2)].sum(axis=0) / 50
        fastest = np.abs(own_rows).max(axis=0)
        assert np.all(np.abs(live_way - own_way) <= fastest * SHIFT_S + 2.2 * SLACK)
    resting = rows[(times > 2.8) & (times < 3.9)]
    assert len(resting) > 45
    assert not resting.any(), 'a hold in the gap'


def first_stamp_ns() -> int:
    """Stamp of the first image of the recording."""
    with Bag(BAGS / 'bridge_3') as bag:
        return to_ns(next(bag.messages([IMAGE_TOPIC])).message.header.stamp)


def live_commands(model: Path, folder: Path, sim_time: bool
                  ) -> tuple[np.ndarray, np.ndarray, int]:
    """Stamps [n], twists [n, 6], and the stamp of the first plan, of the real nodes on bag 3."""
    with graph(folder) as live:
        twists, plans = Twists(live), live.heard(JointTrajectory, 'action_chunk', PLAN)
        names = {'robot': 'widowx_bridge', 'policy': 'knn_bridge', 'use_sim_time': sim_time}
        live.start('action_publisher', {**names, 'enable_on_start': True})
        live.start('inference_node', {**names, 'model': str(model)})
        live.start('camera_node', names)
        live.active('action_publisher', 'inference_node', 'camera_node')
        live.start('bag_player', words=[
            str(BAGS / 'bridge_3'), '--wait-for-subscribers', *(['--clock'] if sim_time else []),
            '--remap', 'ee_state:=joint_states', 'vla/instruction:=instruction'])
        live.until(lambda: plans, 'a plan')
        begin_ns = to_ns(plans[0].header.stamp)
        live.until(lambda: len(twists) and twists.stamps_ns()[-1] - begin_ns > CLIPS_S * NS_PER_S,
                   'two clips', limit_s=LIMIT_S + CLIPS_S)
        return twists.stamps_ns(), twists.rows(), begin_ns
