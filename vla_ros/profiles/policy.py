"""The policy profile: family, checkpoint, horizon, inputs, action, and how chunks are merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_ros.core.action_spec import ActionSpec, Dimension, Group, Kind, Rotation
from vla_ros.core.executor_state import Trigger
from vla_ros.core.merging import Merge
from vla_ros.core.types import ImageSize, Start
from vla_ros.profiles.locate import locate, resolve
from vla_ros.profiles.reader import (
    NAME,
    NAME_RULE,
    TOKEN,
    TOKEN_RULE,
    Section,
    read_profile,
)

_GROUP_UNITS = {
    Group.TRANSLATION: ('m',),
    Group.ROTATION: ('rad',),
    Group.JOINTS: ('rad', 'm', '1'),
    Group.GRIPPER: ('1', 'm', 'rad'),
}


@dataclass(frozen=True)
class PolicyProfile:
    """What a policy needs and gives, and how its chunks are played.

    `cameras` has the primary camera first. `threshold` (fraction of
    the horizon that remains) and `trigger_rate` (Hz) count only with their trigger. `options`
    belong to the family.
    """

    file: Path
    name: str
    family: str
    checkpoint: Path | None
    horizon: int
    period_ns: int
    start: Start
    cameras: Mapping[str, ImageSize]
    state_names: tuple[str, ...]
    action: ActionSpec
    merge: Merge
    fade_steps: int
    trigger: Trigger
    threshold: float
    trigger_rate: float
    pad_short_chunks: bool
    options: Mapping[str, Any]

    def read_options(self) -> Section:
        """The options as a section, so that a family can validate them with one-line errors."""
        return Section(self.file, self.options, 'options')


def load_policy(name: str | Path, model: str = '') -> PolicyProfile:
    """A policy profile by shipped name or path; `model` replaces its checkpoint.

    Raises ValueError with one line. Whether the checkpoint exists is for the family to say.
    """
    file = locate('policy', name)
    section = read_profile(file, 'policy')
    checkpoint = None
    if section.has('checkpoint'):
        checkpoint = resolve(file, section.text('checkpoint', rule='path of a model'))
    if model:
        checkpoint = Path(model).expanduser()
    horizon = section.integer('horizon', low=1, high=1000)
    merge = Merge(section.text('merge', 'crossfade', choices=[m.value for m in Merge]))
    fade_steps = min(2, horizon)
    if merge is Merge.CROSSFADE:
        fade_steps = section.integer('fade_steps', fade_steps, low=1, high=horizon)
    else:
        section.refuse('fade_steps', 'only with merge: crossfade')
    trigger = Trigger(section.text('trigger', 'continuous', choices=[t.value for t in Trigger]))
    threshold, trigger_rate = _trigger(section, trigger)
    start = Start.ARRIVAL if horizon == 1 else Start.STAMP
    policy = PolicyProfile(
        file=file,
        name=section.text('policy', pattern=TOKEN, rule=TOKEN_RULE),
        family=section.text('family', pattern=NAME, rule=NAME_RULE),
        checkpoint=checkpoint,
        horizon=horizon,
        period_ns=section.seconds('period', low=0.005, high=10.0),
        start=Start(section.text('start', start.value, choices=[s.value for s in Start])),
        cameras=_cameras(section),
        state_names=section.texts('state', (), rule='a list of the state entries it takes'),
        action=_action(section),
        merge=merge, fade_steps=fade_steps, trigger=trigger, threshold=threshold,
        trigger_rate=trigger_rate,
        pad_short_chunks=section.flag('pad_short_chunks', False),
        options=section.mapping('options'))
    section.done()
    return policy


def _trigger(section: Section, trigger: Trigger) -> tuple[float, float]:
    threshold, rate = 0.5, 0.0
    if trigger is Trigger.THRESHOLD:
        threshold = section.number('threshold', threshold, above=0.0, high=1.0)
    else:
        section.refuse('threshold', f'only with trigger: threshold; trigger is {trigger.value}')
    if trigger is Trigger.RATE:
        rate = section.number('trigger_rate', above=0.0, high=1000.0, unit='Hz')
    else:
        section.refuse('trigger_rate', f'only with trigger: rate; trigger is {trigger.value}')
    return threshold, rate


def _cameras(section: Section) -> dict[str, ImageSize]:
    cameras = {}
    rule = 'a mapping of camera names to {width: …, height: …}, the primary camera first'
    for name, inner in section.named_sections('cameras', rule).items():
        cameras[name] = ImageSize(width=inner.integer('width', low=1, high=8192),
                                   height=inner.integer('height', low=1, high=8192))
        inner.done()
    return cameras


def _action(section: Section) -> ActionSpec:
    rule = 'a list of {name: …, unit: …, kind: …, group: …}'
    dimensions = tuple(_dimension(s) for s in section.listed_sections('action', rule))
    try:
        return ActionSpec(dimensions)
    except ValueError as error:
        raise ValueError(f'{section.file}: {error}') from None


def _dimension(section: Section) -> Dimension:
    kind = Kind(section.text('kind', choices=[k.value for k in Kind]))
    group = Group(section.text('group', choices=[g.value for g in Group]))
    rotation = Rotation.VECTOR
    if group is Group.ROTATION:
        rotation = Rotation(section.text('rotation', choices=[r.value for r in Rotation]))
    else:
        section.refuse('rotation', f'only with group: rotation; group is {group.value}')
    units = _GROUP_UNITS[group]
    if rotation is Rotation.QUATERNION:
        units = ('1',)
    if kind is Kind.VELOCITY:
        units = tuple(f'{unit}/s' for unit in units)
    dimension = Dimension(
        name=section.text('name', pattern=NAME, rule=NAME_RULE),
        unit=section.text('unit', choices=units), kind=kind, group=group, rotation=rotation)
    section.done()
    return dimension
