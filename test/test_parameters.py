"""Parameters: one table gives declaration, validation, descriptors and documentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

rclpy = pytest.importorskip('rclpy', reason='ROS 2 is not installed')

from rclpy.context import Context  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.parameter import Parameter as RosParameter  # noqa: E402

from vla_ros.nodes import action_publisher, camera_node, inference_node  # noqa: E402
from vla_ros.ros.parameters import Parameter, ParameterTable  # noqa: E402

TABLE = ParameterTable([
    Parameter('robot', 'widowx_bridge', 'robot profile'),
    Parameter('mode', 'slow', 'how fast', choices=('slow', 'fast')),
    Parameter('wait', 25.0, 'how long', unit='s', low=0.0, high=60.0),
    Parameter('count', 3, 'how many', low=1, high=9),
    Parameter('shadow', False, 'only look'),
])


@pytest.fixture(scope='module')
def context() -> Iterator[Context]:
    made = Context()
    rclpy.init(context=made, domain_id=101)
    yield made
    rclpy.shutdown(context=made)


def node(context: Context, **values: Any) -> Node:
    return Node('n', context=context, parameter_overrides=[
        RosParameter(name, value=value) for name, value in values.items()])


def refusal(context: Context, **values: Any) -> str:
    made = node(context, **values)
    try:
        with pytest.raises(ValueError) as error:
            TABLE.declare(made)
        return str(error.value)
    finally:
        made.destroy_node()


def test_defaults_and_given_values_make_a_snapshot(context: Context) -> None:
    made = node(context, wait=1.5, mode='fast')
    TABLE.declare(made)
    assert TABLE.snapshot(made) == {
        'robot': 'widowx_bridge', 'mode': 'fast', 'wait': 1.5, 'count': 3, 'shadow': False}
    made.destroy_node()


def test_an_unknown_name_is_named_with_the_nearest_one(context: Context) -> None:
    assert refusal(context, robt='so101') == (
        "parameter 'robt': n has no such parameter; it has robot, mode, wait, count, shadow; did "
        'you mean robot?')


@pytest.mark.parametrize(('name', 'value', 'needed'), [
    ('wait', 'long', 'double'), ('wait', True, 'double'), ('count', 1.5, 'int'),
    ('shadow', 'yes', 'bool'), ('shadow', 1, 'bool'), ('robot', 1, 'string'),
    ('robot', ['a', 'b'], 'string')])
def test_a_wrong_type_is_named_with_the_needed_one(
        name: str, value: Any, needed: str, context: Context) -> None:
    assert refusal(context, **{name: value}) == f'parameter {name}: {value!r}: a {needed} is needed'


@pytest.mark.parametrize(('name', 'value', 'line'), [
    ('mode', 'warp', "mode: 'warp': allowed are slow, fast"),
    ('wait', -1.0, 'wait: -1.0: from 0.0 to 60.0 s is allowed'),
    ('wait', float('nan'), 'wait: nan: from 0.0 to 60.0 s is allowed'),
    ('count', 10, 'count: 10: from 1 to 9 is allowed')])
def test_a_value_that_is_not_allowed_is_named(
        name: str, value: Any, line: str, context: Context) -> None:
    assert refusal(context, **{name: value}) == f'parameter {line}'


def test_a_whole_number_for_a_double_is_told_how_to_be_written(context: Context) -> None:
    assert refusal(context, wait=5) == 'parameter wait: 5: a double is needed; write 5.0'


def test_a_change_at_run_time_is_validated(context: Context) -> None:
    made = node(context)
    TABLE.declare(made)
    (result,) = made.set_parameters([RosParameter('mode', value='warp')])
    assert not result.successful
    assert result.reason == "mode: 'warp': allowed are slow, fast"
    (result,) = made.set_parameters([RosParameter('wait', value=float('inf'))])
    assert not result.successful
    (result,) = made.set_parameters([RosParameter('mode', value='fast')])
    assert result.successful
    assert TABLE.snapshot(made)['mode'] == 'fast'
    made.destroy_node()


def test_the_descriptor_tells_tools_what_is_allowed(context: Context) -> None:
    made = node(context)
    TABLE.declare(made)
    descriptor = made.describe_parameter('wait')
    assert descriptor.description == 'how long [s]'
    (allowed,) = descriptor.floating_point_range
    assert (allowed.from_value, allowed.to_value) == (0.0, 60.0)
    (whole,) = made.describe_parameter('count').integer_range
    assert (whole.from_value, whole.to_value) == (1, 9)
    assert made.describe_parameter('mode').additional_constraints == 'one of slow, fast'
    made.destroy_node()


def test_the_table_writes_its_own_documentation() -> None:
    assert TABLE.markdown().splitlines()[2:] == [
        '| `robot` | string | `widowx_bridge` | robot profile |',
        '| `mode` | string | `slow` | how fast (`slow`, `fast`) |',
        '| `wait` | double | `25.0` | how long [s] |',
        '| `count` | int | `3` | how many |',
        '| `shadow` | bool | `false` | only look |']


@pytest.mark.parametrize('module', [action_publisher, camera_node, inference_node])
def test_every_parameter_of_the_nodes_is_described(module: Any) -> None:
    rows = module.PARAMETERS.rows
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.description and not row.problem(row.default) for row in rows)
