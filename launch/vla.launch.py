"""Camera, policy and 50 Hz commands: `ros2 launch vla_ros vla.launch.py robot:=… policy:=…`."""
from __future__ import annotations

from launch import LaunchDescription

from vla_ros.bringup.graph import ARGUMENTS, describe
from vla_ros.bringup.launch_description import launch_description


def generate_launch_description() -> LaunchDescription:
    return launch_description(ARGUMENTS, describe)
