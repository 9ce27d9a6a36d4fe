"""The graph is described once: launch files and `vla-ros up` start the same processes."""

from __future__ import annotations

import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip('rclpy', reason='ROS 2 is not installed')

from live import LIMIT_S, ROOT, Graph, graph  # noqa: E402
from rcl_interfaces.srv import GetParameters  # noqa: E402

from vla_ros.bringup.graph import (  # noqa: E402
    ARGUMENTS,
    REPLAY_ARGUMENTS,
    Process,
    describe,
    describe_replay,
    parse,
)
from vla_ros.bringup.up import GraphProcesses, command  # noqa: E402

SENTENCES = ['1', 'true', "a: 'b' \"c\" # 1", '- x', 'naïve 抓取', ' pick\tup ', '$(env HOME)',
             'a\\n']


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Graph]:
    with graph(tmp_path) as made:
        yield made


def by_name(given: Mapping[str, str]) -> dict[str, Process]:
    return {process.name: process for process in describe(given).processes}


# --- the description -------------------------------------------------------------------------


def test_three_processes_start_the_publisher_first() -> None:
    graph = describe({})
    assert [p.executable for p in graph.processes] == [
        'action_publisher', 'inference_node', 'camera_node']
    assert all(p.lifecycle and p.namespace == '' and not p.remappings for p in graph.processes)


def test_each_process_gets_only_parameters_that_it_declares() -> None:
    from vla_ros.nodes import action_publisher, camera_node, inference_node
    modules: dict[str, Any] = {'action_publisher': action_publisher, 'camera_node': camera_node,
                               'inference_node': inference_node}
    for name, process in by_name({}).items():
        known = {row.name: row.default for row in modules[name].PARAMETERS.rows}
        known['use_sim_time'] = False
        assert set(process.parameters) <= set(known)
        assert all(type(value) is type(known[key]) for key, value in process.parameters.items())


def test_booleans_arrive_where_they_belong() -> None:
    processes = by_name({'use_sim_time': 'true', 'shadow': 'true', 'autostart': 'false',
                         'enable_on_start': 'true', 'publish_latency': 'true'})
    for process in processes.values():
        assert process.parameters['use_sim_time'] is True
        assert process.parameters['autostart'] is False
        assert process.parameters['publish_latency'] is True
    assert processes['action_publisher'].parameters['shadow'] is True
    assert processes['action_publisher'].parameters['enable_on_start'] is True
    assert 'shadow' not in processes['camera_node'].parameters


def test_topics_are_remapped_in_the_process_that_has_them() -> None:
    processes = by_name({'image_topic': '/cam/image', 'command_topic': 'servo/twists',
                         'state_topic': '/arm/states', 'namespace': 'left'})
    state = ('joint_states', '/arm/states')
    assert processes['camera_node'].remappings == (
        ('camera/image_raw/compressed', '/cam/image/compressed'),)
    assert processes['inference_node'].remappings == (state,)
    assert processes['action_publisher'].remappings == (
        state, ('servo_node/delta_twist_cmds', 'servo/twists'))
    assert {process.namespace for process in processes.values()} == {'left'}


@pytest.mark.parametrize(('given', 'line'), [
    ({'robot': 'widow'}, "robot profile 'widow': not found"),
    ({'polcy': 'x'}, 'polcy: no such argument; there are robot, policy, engine, .*did you mean '
                     'policy'),
    ({'shadow': 'yes'}, "shadow: 'yes': allowed are true, false"),
    ({'policy': 'scripted_so101'}, 'cameras of robot widowx_bridge are primary'),
    ({'engine': 'fast'}, "engine profile 'fast': not found")])
def test_what_does_not_fit_is_refused_before_anything_starts(
        given: dict[str, str], line: str) -> None:
    with pytest.raises(ValueError, match=line) as error:
        describe(given)
    assert '\n' not in str(error.value)


def test_a_replay_adds_the_player_and_takes_its_time(tmp_path: Path) -> None:
    graph = describe_replay({
        'bag': str(tmp_path), 'rate': '2.0', 'loop': 'true', 'namespace': 'left',
        'remap': '/ee_state:=joint_states instruction:=say'})
    assert all(process.parameters['use_sim_time'] is True for process in graph.processes[:-1])
    player = graph.processes[-1]
    assert player.arguments == (
        str(tmp_path), '--clock', '--rate', '2.0', '--wait-for-subscribers', '--loop', '--remap',
        'ee_state:=joint_states', 'instruction:=say')
    assert (player.namespace, player.lifecycle, player.parameters) == ('left', False, {})


def test_a_replay_without_a_bag_is_refused() -> None:
    with pytest.raises(ValueError, match='^bag: none is given; bag:=<rosbag2 folder'):
        describe_replay({'rate': '1.0'})


@pytest.mark.parametrize(('changes', 'line'), [
    ({'bag': '/nope'}, 'bag: /nope: no such file or folder'),
    ({'rate': 'abc'}, "rate: 'abc': a number above 0 is needed"),
    ({'rate': '-1'}, "rate: '-1': a number above 0 is needed"),
    ({'remap': '/ee_state'}, "remap: '/ee_state': write it as from:=to"),
])
def test_a_replay_is_checked_before_anything_starts(
        tmp_path: Path, changes: dict[str, str], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        describe_replay({'bag': str(tmp_path), **changes})


def test_a_robot_that_does_not_fit_the_default_policy_says_how_to_choose_another() -> None:
    with pytest.raises(ValueError, match='the default policy, choose another with policy:='):
        describe({'robot': 'so101'})


def test_words_are_parsed_at_the_first_separator() -> None:
    assert parse(['instruction:=a:=b', 'model:=']) == {'instruction': 'a:=b', 'model': ''}


@pytest.mark.parametrize(('words', 'line'), [
    (['robot=so101'], "'robot=so101': arguments are written as name:=value"),
    (['robot:=so101', 'robot:=x'], 'robot: given twice'),
    (['rbot:=so101'], 'rbot: no such argument; .*; did you mean robot')])
def test_words_that_are_no_arguments_are_named(words: list[str], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        parse(words)


# --- vla-ros up ------------------------------------------------------------------------------


def told(line: Sequence[str]) -> dict[str, Any]:
    """What a ROS command line says: name and remap rules, and parameters from its files."""
    rest = list(line[line.index('--ros-args') + 1:])
    rules, values = [], {}
    while rest:
        word = rest.pop(0)
        if word == '-r':
            rules.append(rest.pop(0))
        elif word == '--params-file':
            for sections in yaml.safe_load(Path(rest.pop(0)).read_text()).values():
                values |= sections['ros__parameters']
        elif word != '--ros-args':
            raise AssertionError(f'{word} in {line}')
    return {'rules': {rule.replace('__ns:=//', '__ns:=/') for rule in rules}, 'parameters': values}


def test_the_command_line_carries_name_namespace_and_rules(tmp_path: Path) -> None:
    process = Process('camera_node', 'eye', '/left/', {}, (('a', 'b'),), ('--x',))
    assert command(process, tmp_path / 'p.yaml', ['c:=d']) == [
        sys.executable, '-m', 'vla_ros.nodes.camera_node', '--x', '--ros-args', '-r',
        '__node:=eye', '-r', '__ns:=/left', '-r', 'a:=b', '-r', 'c:=d', '--params-file',
        str(tmp_path / 'p.yaml')]


@pytest.mark.parametrize('sentence', SENTENCES)
def test_a_sentence_reaches_the_node_as_it_was_written(sentence: str, tmp_path: Path) -> None:
    process = by_name({'instruction': sentence})['inference_node']
    assert process.parameters['instruction'] == sentence
    with GraphProcesses(describe({'instruction': sentence}), environment={}, output=-3,
                        start=False) as processes:
        line = processes.lines['inference_node']
        assert told(line)['parameters']['instruction'] == sentence


def test_up_starts_the_graph_and_ends_it_on_sigint(live: Graph) -> None:
    process = live.run([
        sys.executable, '-m', 'vla_ros.tools.cli', 'up', 'policy:=scripted_bridge',
        f'namespace:={live.namespace}', 'shadow:=true', 'use_sim_time:=true',
        "instruction:=a: 'b' \"c\" # 1", 'state_topic:=arm/states'])
    check_started(live)
    process.signal(signal.SIGINT)
    assert process.wait() == 0, process.output
    assert 'Traceback' not in process.output


def test_up_ends_when_one_of_its_processes_does(live: Graph) -> None:
    process = live.run([
        sys.executable, '-m', 'vla_ros.tools.cli', 'up', 'model:=/nowhere/knn.npz',
        f'namespace:={live.namespace}']).may_end()
    assert process.wait() == 1
    assert '/nowhere/knn.npz' in process.output
    assert 'inference_node ended with status 1; stopping the others' in process.output
    assert 'Traceback' not in process.output


def check_started(live: Graph) -> None:
    """The nodes are active under their names, with their parameters and remaps."""
    live.active('action_publisher', 'inference_node', 'camera_node')
    answer = live.call(GetParameters, 'inference_node/get_parameters', GetParameters.Request(
        names=['instruction', 'use_sim_time', 'policy']))
    assert answer.values[0].string_value == "a: 'b' \"c\" # 1"
    assert answer.values[1].bool_value is True
    assert answer.values[2].string_value == 'scripted_bridge'
    for topic, count in (('arm/states', 2), ('joint_states', 0), ('estop', 3)):
        live.until(lambda topic=topic, count=count: live.node.count_subscribers(
            f'/{live.namespace}/{topic}') == count, f'subscribers of {topic}')


# --- launch ----------------------------------------------------------------------------------


@pytest.fixture
def launched() -> Callable[..., list[list[str]]]:
    """The command lines that launch makes of the description, in order."""
    pytest.importorskip('launch_ros', reason='launch_ros is not installed')
    from launch import LaunchContext
    from launch.utilities import perform_substitutions
    from launch_ros.actions import Node

    from vla_ros.bringup.launch_description import launch_description

    def lines(arguments: Any, described: Any, given: Mapping[str, str]) -> list[list[str]]:
        context = LaunchContext()
        context.launch_configurations.update(given)
        found: list[list[str]] = []
        for entity in launch_description(arguments, described).entities:
            for action in entity.visit(context) or ():
                if isinstance(action, Node):
                    action._perform_substitutions(context)
                    namespace, _, name = action.node_name.rpartition('/')
                    context.extend_locals({'ros_specific_arguments': {
                        'name': f'__node:={name}', 'ns': f'__ns:={namespace}'}})
                    found.append([perform_substitutions(context, part) for part in action.cmd])
                else:
                    action.visit(context)
        return found
    return lines


def test_launch_starts_what_up_starts(launched: Callable[..., list[list[str]]]) -> None:
    for sentence in SENTENCES[:6]:
        given = {'instruction': sentence, 'namespace': 'left', 'use_sim_time': 'true',
                 'image_topic': '/cam/image', 'command_topic': 'servo/twists',
                 'state_topic': '/arm/states', 'shadow': 'true'}
        lines = launched(ARGUMENTS, describe, given)
        with GraphProcesses(describe(given), environment={}, output=-3, start=False) as processes:
            for line, (name, other) in zip(lines, processes.lines.items(), strict=True):
                assert Path(line[0]).name == name
                assert told(line) == told(other)


def test_a_replay_by_launch_starts_what_up_starts(
        launched: Callable[..., list[list[str]]], tmp_path: Path) -> None:
    given = {'bag': str(tmp_path), 'namespace': 'left', 'remap': 'a:=b c:=d', 'rate': '0.5'}
    arguments = (*REPLAY_ARGUMENTS, *(a for a in ARGUMENTS if a.name != 'use_sim_time'))
    lines = launched(arguments, describe_replay, given)
    with GraphProcesses(describe_replay(given), environment={}, output=-3,
                        start=False) as processes:
        for line, (name, other) in zip(lines, processes.lines.items(), strict=True):
            assert Path(line[0]).name == name
            assert told(line) == told(other)
            end = other.index('--ros-args')
            assert line[1:line.index('--ros-args')] == other[3:end]


def launch(live: Graph, **arguments: str) -> Any:
    """Run launch/vla.launch.py, as `ros2 launch` does."""
    pytest.importorskip('launch_ros', reason='launch_ros is not installed')
    program = textwrap.dedent(f"""
        import sys
        from launch import LaunchDescription, LaunchService
        from launch.actions import IncludeLaunchDescription
        from launch.launch_description_sources import PythonLaunchDescriptionSource
        service = LaunchService()
        source = PythonLaunchDescriptionSource({str(ROOT / 'launch' / 'vla.launch.py')!r})
        service.include_launch_description(LaunchDescription([IncludeLaunchDescription(
            source, launch_arguments={arguments!r}.items())]))
        sys.exit(service.run())
        """)
    return live.run([sys.executable, '-c', program])


def test_launch_runs_the_graph_and_ends_it_on_sigint(live: Graph) -> None:
    process = launch(live, policy='scripted_bridge', namespace=live.namespace, shadow='true',
                     use_sim_time='true', instruction="a: 'b' \"c\" # 1",
                     state_topic='arm/states')
    check_started(live)
    process.interrupt_group()
    assert process.wait() == 0, process.output
    assert process.output.count('process has finished cleanly') == 3
    assert 'Traceback' not in process.output


def test_launch_stops_with_one_line_on_a_wrong_profile(live: Graph) -> None:
    process = launch(live, robot='widow').may_end()
    assert process.wait(LIMIT_S) == 1
    (line,) = [line for line in process.output.splitlines() if '[ERROR]' in line]
    assert "robot profile 'widow': not found: shipped are" in line
    assert 'Traceback' not in process.output
