"""doc/reference/profiles.md has every key that the readers accept, with its default and range."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from vla_ros.engines.registry import make_engine
from vla_ros.profiles.engine import load_engine
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.reader import Section
from vla_ros.profiles.robot import load_robot

PAGE = Path(__file__).resolve().parent.parent / 'doc' / 'reference' / 'profiles.md'

ROBOT = """\
robot: arm
state: {names: [x, y, z, roll, pitch, yaw, hand]}
cameras:
  a: {source: topic, topic: image, rate: 30}
  b: {source: v4l2, device: /dev/video0, rate: 30}
  c: {source: gstreamer, pipeline: appsink, rate: 30}
  d: {source: file, path: clip.mp4, rate: 30}
dimensions:
  x: {unit: m, velocity: 1.0, acceleration: 1.0}
  y: {unit: m, velocity: 1.0, acceleration: 1.0}
  roll: {unit: rad, velocity: 1.0, acceleration: 1.0}
  hand: {unit: '1', gripper: {}}
sinks:
  - {type: float64_multi_array, topic: a, dimensions: [x, y]}
  - {type: joint_trajectory, topic: b, dimensions: [x, y]}
  - {type: twist_stamped, topic: c, dimensions: [x, roll], axes: [linear.x, angular.z]}
  - {type: gripper_command, topic: d, dimensions: [hand]}
"""

ENGINE = 'engine: bench\nbackend: [numpy, graph]\n'

POLICY = """\
policy: reach
family: {family}
horizon: 8
period: 0.1
{more}
cameras: {{a: {{width: 64, height: 64}}}}
action:
  - {{name: x, unit: m, kind: delta, group: translation}}
  - {{name: roll, unit: rad, kind: position, group: rotation, rotation: euler}}
"""

POLICIES = [
    ('scripted', 'trigger: threshold\noptions: {faults: [{at: 0, fault: stall, seconds: 1.0}]}'),
    ('scripted', 'trigger: rate\ntrigger_rate: 5\noptions: {motion: script, rows: [[1, 2]]}'),
    ('knn', 'checkpoint: some.npz'),
    ('openvla', 'checkpoint: some_folder'),
]

# They depend on what else is in the profile, so that the page can only describe them.
DEPENDENT = {'robot: sinks[].dimensions', 'robot: dimensions.<name>.state', 'policy.fade_steps'}


@dataclass
class Reading:
    """What a reader asked for: keys by section, and default and rule of each."""

    keys: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    defaults: dict[str, set[Any]] = field(default_factory=lambda: defaultdict(set))
    rules: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def title(path: str, kind: str) -> str:
    """The heading under which the page describes a section."""
    if path.startswith('options'):
        path = path.removeprefix('options').lstrip('.')
    path = re.sub(r'\[\d+\]', '[]', path)
    path = re.sub(r'^(cameras|dimensions)\.\w+', r'\1.<name>', path)
    path = re.sub(r'^watchdog\.\w+', 'watchdog.<layer>', path)
    return f'{kind}: {path}' if path else kind


@pytest.fixture(scope='module')
def reading(tmp_path_factory: pytest.TempPathFactory) -> Reading:
    """Everything that the readers ask of profiles that between them have every kind of section."""
    folder, seen, kind = tmp_path_factory.mktemp('profiles'), Reading(), ''
    value, done = Section._value, Section.done

    def asked(section: Section, key: str, default: Any, rule: str) -> Any:
        limit = section.path.startswith('watchdog.') and key == 'limit'  # each layer has its own
        place = f'{kind}: {section.path}' if limit else f'{title(section.path, kind)}.{key}'
        seen.rules[place].add(rule)
        if default is not None:
            seen.defaults[place].add(default if isinstance(default, (str, int, float)) else None)
        return value(section, key, default, rule)

    def ended(section: Section) -> None:
        seen.keys[title(section.path, kind)] |= section._known | section._excused
        done(section)

    def written(text: str) -> Path:
        file = folder / 'profile.yaml'
        file.write_text(text)
        return file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Section, '_value', asked)
        patch.setattr(Section, 'done', ended)
        kind = 'robot'
        load_robot(written(ROBOT))
        kind = 'engine'
        engine = load_engine(written(ENGINE))
        for family, more in POLICIES:
            kind = 'policy'
            policy = load_policy(written(POLICY.format(family=family, more=more)))
            kind = family
            make_engine(policy, engine)
    return seen


@pytest.fixture(scope='module')
def page() -> Mapping[str, Mapping[str, list[str]]]:
    """Cells of each key, by heading."""
    tables: dict[str, dict[str, list[str]]] = {}
    heading = ''
    for line in PAGE.read_text().splitlines():
        if line.startswith('#'):
            heading = line.lstrip('# ').replace('\\', '')
        elif line.startswith('| `') and 'joint_limits' not in heading:
            cells = [cell.strip() for cell in line.strip('|').split(' | ')]
            assert len(cells) == 5 or '| |' in line, line
            tables.setdefault(heading, {})[cells[0].strip('`')] = cells
    return tables


def test_page_has_the_keys_that_the_readers_accept_and_no_others(reading, page):
    assert {name: set(keys) for name, keys in page.items()} == dict(reading.keys)


def test_page_has_the_defaults_of_the_readers(reading, page):
    checked = 0
    for name, rows in page.items():
        for key, cells in rows.items():
            found = re.fullmatch(r'`(?:limit: )?([^`]+)`', cells[2])
            defaults = reading.defaults[f'{name}.{key}'] - {None}
            if cells[2] == 'required':
                assert not defaults, f'{name}: {key}'
            elif found and found.group(1) != '[]':
                shown = {str(d).lower() if isinstance(d, bool) else str(d) for d in defaults}
                assert shown == {found.group(1)}, f'{name}: {key}'
                checked += 1
    assert checked > 20


def test_page_has_the_choices_and_bounds_of_the_readers(reading, page):
    checked = 0
    for name, rows in page.items():
        for key, cells in rows.items():
            place, row = f'{name}.{key}', ' '.join(cells)
            for rule in () if place in DEPENDENT else reading.rules[place]:
                numbers = re.findall(r'(?<![\w.])\d+(?:\.\d+)?(?:e\+\d+)?', rule)
                wanted = [number.replace('e+0', 'e') for number in numbers]
                if rule.startswith('one of '):
                    wanted = rule.removeprefix('one of ').split(', ')
                for word in wanted:
                    found = re.search(rf'(?<![\w.]){re.escape(word)}(?!\w)', row)
                    assert found, f'{place}: {rule}'
                    checked += 1
    assert checked > 80
