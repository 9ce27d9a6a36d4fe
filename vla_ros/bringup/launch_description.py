"""The graph as a launch description; imported by the launch files only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    LogInfo,
    OpaqueFunction,
    SetEnvironmentVariable,
    Shutdown,
)
from launch.events.process import ProcessExited
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode, Node
from launch_ros.parameter_descriptions import ParameterValue

from vla_ros.bringup.graph import Argument, Graph, Process
from vla_ros.ros.transport import transport_additions

PACKAGE = 'vla_ros'


def launch_description(arguments: tuple[Argument, ...],
                       describe: Callable[[Mapping[str, str]], Graph]) -> LaunchDescription:
    """A launch description that declares `arguments` and starts what `describe` makes of them."""
    def start(context: LaunchContext) -> list[LaunchDescriptionEntity]:
        given = {a.name: LaunchConfiguration(a.name).perform(context) for a in arguments}
        try:
            graph = describe(given)
        except ValueError as error:
            raise RuntimeError(str(error)) from None
        entities: list[LaunchDescriptionEntity] = [LogInfo(msg=note) for note in graph.notes]
        entities += [SetEnvironmentVariable(name, value)
                     for name, value in transport_additions(os.environ).items()]
        return entities + [action(process) for process in graph.processes]

    declared = [DeclareLaunchArgument(
        a.name, default_value=a.default, description=a.description,
        **({'choices': list(a.choices)} if a.choices else {})) for a in arguments]
    return LaunchDescription([*declared, OpaqueFunction(function=start)])


def action(process: Process) -> Node:
    """The launch action of a process; when one ends, the launch ends, as `vla-ros up` does."""
    kind = LifecycleNode if process.lifecycle else Node
    return kind(
        package=PACKAGE, executable=process.executable, name=process.name,
        namespace=process.namespace, parameters=[parameters(process)],
        remappings=list(process.remappings), arguments=list(process.arguments), output='screen',
        on_exit=partial(_ended, process.name))


def _ended(name: str, event: ProcessExited, context: LaunchContext) -> list[Shutdown]:
    """Nothing while the launch ends already: a second shutdown would be an error."""
    return [] if context.is_shutdown else [Shutdown(reason=f'{name} ended')]


def parameters(process: Process) -> dict[str, ParameterValue]:
    """With their types: launch would read a sentence such as `1` or `a: b` as YAML."""
    return {name: ParameterValue(value, value_type=type(value))
            for name, value in process.parameters.items()}
