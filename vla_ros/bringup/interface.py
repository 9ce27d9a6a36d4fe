"""What each node hears, says and serves: the table behind the docs, checked against live nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Endpoint:
    """One topic or service of a node. `direction`: in, out or service."""

    node: str
    direction: str
    name: str
    type: str
    description: str


INTERFACE = (
    Endpoint('camera_node', 'in', '<topic of each camera>',
             'sensor_msgs/Image or CompressedImage', 'frames, best effort; see the robot profile'),
    Endpoint('camera_node', 'out', 'observation/<camera>/image', 'sensor_msgs/Image',
             'rgb8 at the size of the policy, stamped with the capture time; best effort, depth 1'),
    Endpoint('inference_node', 'in', 'observation/<camera>/image', 'sensor_msgs/Image',
             'one per camera of the policy'),
    Endpoint('inference_node', 'in', 'joint_states', 'sensor_msgs/JointState',
             'measured state, by name, from any number of publishers'),
    Endpoint('inference_node', 'in', 'instruction', 'std_msgs/String',
             'what to do; latched or volatile; an empty one means: come to rest and wait'),
    Endpoint('inference_node', 'in', 'reset_stamp', 'builtin_interfaces/Time',
             'a new epoch: what was observed before it does not count any more'),
    Endpoint('inference_node', 'out', 'action_chunk', 'trajectory_msgs/JointTrajectory',
             'the plan from now on; stamp of the observation it answers; times from that stamp'),
    Endpoint('inference_node', 'out', 'inference_status', 'diagnostic_msgs/DiagnosticStatus',
             'newest observation, what is wrong, what to do about it; 10 Hz and on change'),
    Endpoint('action_publisher', 'in', 'action_chunk', 'trajectory_msgs/JointTrajectory',
             'the newest one is played'),
    Endpoint('action_publisher', 'in', 'inference_status', 'diagnostic_msgs/DiagnosticStatus',
             'optional: names causes, tells a dead inference_node'),
    Endpoint('action_publisher', 'in', 'joint_states', 'sensor_msgs/JointState',
             'measured state: where motion begins, how far the first target is'),
    Endpoint('action_publisher', 'in', 'estop', 'std_msgs/Bool',
             'true stops and latches until reset; latched or volatile; not a safety function'),
    Endpoint('action_publisher', 'out', 'reset_stamp', 'builtin_interfaces/Time',
             'a new epoch, after start, reset, e-stop and clock jump; latched'),
    Endpoint('action_publisher', 'out', '<topic of each sink>', 'see the robot profile',
             'commands at the control rate; reliable, depth 1'),
    Endpoint('action_publisher', 'out', 'action_publisher/shadow/<topic of each sink>',
             'as the sink', 'instead of the commands where shadow is true'),
    Endpoint('action_publisher', 'service', 'action_publisher/enable', 'std_srvs/SetBool',
             'true: drive, or a refusal that says why; false: come to rest and wait'),
    Endpoint('action_publisher', 'service', 'action_publisher/reset', 'std_srvs/Trigger',
             'clear faults and e-stop, begin a new epoch, wait'),
    Endpoint('sim_robot', 'in', 'forward_position_controller/commands',
             'std_msgs/Float64MultiArray', 'targets of the joints in rad; the last one is held'),
    Endpoint('sim_robot', 'in', 'gripper_controller/commands', 'std_msgs/Float64MultiArray',
             'target of the fingers in m, 0 closed to 0.037 open; the last one is held'),
    Endpoint('sim_robot', 'in', 'instruction', 'std_msgs/String',
             'the task to judge; latched or volatile'),
    Endpoint('sim_robot', 'out', 'joint_states', 'sensor_msgs/JointState',
             'measured state, 100 Hz'),
    Endpoint('sim_robot', 'out', '<base, wrist or view>/image_raw', 'sensor_msgs/Image',
             'rgb8, 10 Hz, best effort; view, which is for people, only while somebody listens'),
    Endpoint('sim_robot', 'out', 'task_event', 'std_msgs/String',
             'one JSON object each: reset, started, changed, success, ended, unknown, impossible'),
    Endpoint('sim_robot', 'out', '/clock', 'rosgraph_msgs/Clock',
             'simulated time, where the parameter clock is true'),
    Endpoint('sim_robot', 'service', 'sim_robot/reset', 'std_srvs/Trigger',
             'lay out the scene of the parameters trial and seed anew'),
    Endpoint('all', 'out', '/diagnostics', 'diagnostic_msgs/DiagnosticArray',
             'state, causes, counts, latencies; 1 Hz and on change of level'),
    Endpoint('all', 'out', 'latency', 'diagnostic_msgs/DiagnosticStatus',
             'stages of every frame and chunk, where publish_latency is true'),
)


def markdown() -> str:
    """The table for the docs."""
    lines = ['| node | | name | type | |', '|---|---|---|---|---|']
    lines += [f'| {e.node} | {e.direction} | `{e.name}` | {e.type} | {e.description} |'
              for e in INTERFACE]
    return '\n'.join(lines)
