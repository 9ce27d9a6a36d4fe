"""The graph on a recording, in simulated time: `ros2 launch vla_ros replay.launch.py bag:=…`."""
from __future__ import annotations

from launch import LaunchDescription

from vla_ros.bringup.graph import ARGUMENTS, REPLAY_ARGUMENTS, describe_replay
from vla_ros.bringup.launch_description import launch_description


def generate_launch_description() -> LaunchDescription:
    arguments = tuple(a for a in ARGUMENTS if a.name != 'use_sim_time')
    return launch_description((*REPLAY_ARGUMENTS, *arguments), describe_replay)
