"""`vla-ros check`: whether a fast backend answers as the plain one does, on what was recorded."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_ros.core.types import Observation

PASSED, FAILED, BAD_INPUT = 0, 1, 2
COUNT = 32  # observations that are taken from a bag or recorded
ENGINE = """
Runs the plain baseline, then the backend in its precision, on recorded observations, and judges by
the precision: fp32 has the same tokens; in bf16 and fp16 a token that differs, told the same ones
before it, is one between which the baseline hardly decides (margin below 0.1 logit); of quantized
weights the actions are off by 1 bin on average and 4 bins at p99 at most. The verdict is kept, and
an engine asks for it before it runs. Ends with 0 where it passed, 1 where it failed, 2 where
nothing could be checked.
"""
RECORD = """
Records observations from the simulator, as the shipped ones are: a few frames of each of some
episodes of the scripted expert, on scenes that no training has seen.
"""


def add_parser(subparsers: Any) -> None:
    """Add `check` to the subcommands of `vla-ros`."""
    parser = subparsers.add_parser('check', help='compare a backend and precision with the plain '
                                   'baseline')
    whats = parser.add_subparsers(required=True, metavar='what')
    engine = whats.add_parser('engine', help='a backend and precision against the baseline',
                              description=ENGINE)
    engine.add_argument('--policy', required=True, help='policy profile: name or path')
    engine.add_argument('--model', default='', metavar='FOLDER',
                        help='another checkpoint than that of the profile')
    engine.add_argument('--engine', metavar='PROFILE',
                        help='engine profile: name or path (default desktop on a GPU, else cpu)')
    engine.add_argument('--backend', metavar='B', help='in place of that of the engine profile')
    engine.add_argument('--precision', metavar='P', help='in place of that of the engine profile')
    engine.add_argument('--device', help='in place of that of the engine profile')
    engine.add_argument('--observations', type=Path, metavar='FILE',
                        help='a bag, or a file of vla-ros check record (default: the shipped ones)')
    engine.add_argument('--robot', help='robot profile: the topics of a bag')
    engine.add_argument('--count', type=int, default=COUNT, metavar='N',
                        help=f'observations that are taken, spread evenly (default {COUNT})')
    engine.add_argument('--json', action='store_true', help='JSON, and nothing else, on stdout')
    engine.set_defaults(run=run_engine, bad_input=BAD_INPUT)

    record = whats.add_parser('record', help='record observations from the simulator',
                              description=RECORD)
    record.add_argument('file', type=Path, help='to write, .npz')
    record.add_argument('--count', type=int, default=COUNT, metavar='N')
    record.add_argument('--seed', type=int, default=0, help='other scenes')
    record.set_defaults(run=run_record, bad_input=BAD_INPUT)


def run_engine(args: argparse.Namespace) -> int:
    """Check, keep the verdict, print it. Raises ValueError with one line."""
    from vla_ros.engines.registry import make_engine
    from vla_ros.engines.verdict import Checked, store
    from vla_ros.policies.observations import fitted
    from vla_ros.profiles.policy import load_policy
    _require('count', args.count, 100_000)
    policy = load_policy(args.policy, args.model)
    profile = _profile(args)
    engine = make_engine(policy, profile)
    if not isinstance(engine, Checked):
        raise ValueError(f'{policy.file}: family: {policy.family}: it has one way to run each '
                         'backend, and no baseline to compare with')
    seen, source = _observations(args, policy)
    contract = engine.contract
    try:
        verdict = engine.check(
            [fitted(each, contract.cameras, contract.state_names) for each in seen], source,
            lambda line: print(line, file=sys.stderr, flush=True))
    except RuntimeError as error:  # torch's: out of memory, a kernel that does not compile
        raise ValueError(f'{type(error).__name__}: {" ".join(str(error).split())[:300]}') from error
    place = ''
    try:
        place = str(store(verdict))
    except OSError as error:
        print(f'check: the verdict cannot be kept: {error.strerror or error}', file=sys.stderr)
    if args.json:
        print(json.dumps(verdict.as_json(), indent=2))
    else:
        print(f'{verdict.key}: {"passed" if verdict.passed else "failed"}, {verdict.count} '
              f'observations of {verdict.observations}')
        for rule in verdict.rules:
            print(f'  {"ok    " if rule.passed else "FAILED"} {rule}')
        print(f'  {json.dumps(dict(verdict.figures))}')
        if place:
            print(f'kept as {place}')
    return PASSED if verdict.passed else FAILED


def run_record(args: argparse.Namespace) -> int:
    """Record. Raises ValueError with one line."""
    from vla_ros.policies.observations import save
    from vla_ros.tools.writable import check_writable
    _require('count', args.count, 10_000)
    if not 0 <= args.seed < 100_000:
        raise ValueError(f'check: seed: {args.seed}; allowed is 0 to 99999')
    check_writable(args.file, '.npz')
    save(args.file, simulated(args.count, args.seed))
    print(f'{args.file}: {args.count} observations, {args.file.stat().st_size / 1e6:.2f} MB')
    return 0


def simulated(count: int, seed: int, each: int = 4, apart: int = 12) -> list[Observation]:
    """`each` frames, `apart` tenths of a second apart, of as many episodes as it takes."""
    from vla_ros.core.types import ImageSize
    from vla_ros.sim.arm import STATE_NAMES
    from vla_ros.sim.trial import HELD_OUT
    from vla_ros.sim.world import World
    from vla_ros.training.episodes import CAMERAS, record
    world = World(dict.fromkeys(CAMERAS, ImageSize(128, 128)))
    found: list[Observation] = []
    while len(found) < count:
        episode = record(world, HELD_OUT + seed * 1000 + len(found) // each, each * apart, 1)
        for frame in range(0, each * apart, apart):
            found.append(Observation(
                len(found), len(found), len(found),
                dict(zip(CAMERAS, episode.images[frame], strict=True)),
                episode.state[frame].astype(float), STATE_NAMES, episode.sentences[frame]))
    return found[:count]


def recorded(path: Path, robot: Any, policy: Any) -> list[Observation]:
    """The observations of a bag: each frame of the primary camera with what came before it."""
    from vla_ros.core.runtime import Instruction
    from vla_ros.core.types import Frame, StateSample
    from vla_ros.replay.bag_events import BagEvents
    from vla_ros.replay.bags import Bag
    missing = [name for name in policy.cameras if name not in robot.cameras]
    if missing:
        raise ValueError(f'{robot.file}: cameras: {missing[0]}: missing; the policy {policy.name} '
                         'takes it')
    images: dict[str, Any] = {}
    state: dict[str, float] = {}
    sentence = ''
    found = []
    with Bag(path) as bag:
        for event in BagEvents(bag, robot, policy):
            value = event.payload
            if isinstance(value, Instruction):
                sentence = value.text
            elif isinstance(value, StateSample):
                state |= dict(zip(value.names, value.positions.tolist(), strict=False))
            elif isinstance(value, Frame):
                images[value.camera] = value.pixels
                if value.camera == next(iter(policy.cameras)) and len(images) == len(
                        policy.cameras) and sentence:
                    found.append(_observation(value.stamp_ns, images, state, sentence))
    if not found:
        raise ValueError(f'bag {path}: no frame of the primary camera comes after a sentence and '
                         'after a frame of each other camera')
    return found


def _observation(stamp_ns: int, images: dict[str, Any], state: dict[str, float],
                 sentence: str) -> Observation:
    import numpy as np
    return Observation(stamp_ns, stamp_ns, stamp_ns, dict(images), np.array(list(state.values())),
                       tuple(state), sentence)


def _observations(args: argparse.Namespace, policy: Any) -> tuple[Sequence[Observation], str]:
    """What to check on, and where it is from."""
    from vla_ros.policies.observations import load, shipped
    if args.observations is None:
        found: Sequence[Observation] = load(shipped())
        source = 'shipped'
    elif args.observations.suffix == '.npz':
        found, source = load(args.observations), args.observations.name
    else:
        from vla_ros.profiles.robot import load_robot
        if not args.robot:
            raise ValueError(f'--robot: missing: the topics of the bag {args.observations} are in '
                             'a robot profile')
        found = recorded(args.observations, load_robot(args.robot), policy)
        source = args.observations.resolve().name
    if args.count < len(found):
        found = [found[i * len(found) // args.count] for i in range(args.count)]
    return found, source


def _profile(args: argparse.Namespace) -> Any:
    """The engine profile with what the command line says. Raises ValueError with one line."""
    from vla_ros.profiles.engine import load_engine
    name = args.engine or ('desktop' if _has_gpu() else 'cpu')
    profile = load_engine(name)
    changes: dict[str, Any] = {}
    if args.backend:
        changes['backends'] = (args.backend,)
    if args.precision:
        changes['precision'] = args.precision
    if args.device:
        changes['device'] = args.device
    return replace(profile, **changes)


def _has_gpu() -> bool:
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return bool(torch.cuda.is_available())


def _require(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise ValueError(f'check: {name}: {value}; allowed is 1 to {most}')
