"""`vla-ros train sim`: record episodes of the scripted expert, and fit a policy to them."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from vla_ros.tools.train_plot import add_curves

EPISODES, STEPS = 2500, 12_000


def add_parser(subparsers: Any) -> None:
    """Add `train` to the subcommands of `vla-ros`."""
    parser = subparsers.add_parser('train', help='record data and train a policy')
    kinds = parser.add_subparsers(required=True, metavar='what')
    sim = kinds.add_parser('sim', help='a small policy, in the simulator')
    steps = sim.add_subparsers(required=True, metavar='step')

    record = steps.add_parser('record', help='record episodes of the scripted expert')
    record.add_argument('data', type=Path, help='folder to write, about 6 MB an episode')
    record.add_argument('--episodes', type=int, default=EPISODES, metavar='N')
    record.add_argument('--seed', type=int, default=0, help='of the first episode')
    record.add_argument('--workers', type=int, default=os.cpu_count(), metavar='N')
    record.add_argument('--frames', type=int, default=60, metavar='N',
                        help='of an episode, 10 in a second (default 60)')
    record.add_argument('--driver', type=Path, metavar='CHECKPOINT',
                        help='a trained policy that drives between the corrections of the expert')
    _advised(record)
    record.set_defaults(run=run_record)

    fit = steps.add_parser('fit', help='train on recorded episodes; needs torch',
                           description='Ends after --steps or --minutes, whatever comes first.')
    fit.add_argument('data', type=Path, nargs='+', help='recorded folders')
    _recipe(fit)
    fit.add_argument('--compressor', default='learned_query',
                     choices=('learned_query', 'average_pool', 'none'), help='of edgevla')
    fit.add_argument('--keep', type=int, default=24, metavar='N',
                     help='visual tokens of a frame that reach the transformer of edgevla')
    fit.add_argument('--window', type=int, default=8, metavar='FRAMES', help='of edgevla')
    fit.set_defaults(run=run_fit)

    grow = steps.add_parser(
        'grow', help='record and train at the same time; needs torch',
        description='Records part after part while it trains; every other part is driven by the '
        'newest checkpoint, or by --driver, between the corrections of the expert.')
    grow.add_argument('data', type=Path, help='folder to write the parts to')
    _recipe(grow)
    grow.add_argument('--part', type=int, default=480, metavar='N', help='episodes of a part')
    grow.add_argument('--parts', type=int, default=32, metavar='N', help='at most')
    grow.add_argument('--begin', type=int, default=1, metavar='N',
                      help='episodes to record before the training begins (default one part)')
    grow.add_argument('--driver', type=Path, metavar='CHECKPOINT',
                      help='a trained policy to drive every other part; the newest checkpoint '
                      'then drives every fourth')
    grow.add_argument('--first-seed', type=int, default=0, metavar='S', help='of the episodes')
    grow.add_argument('--workers', type=int, default=os.cpu_count(), metavar='N')
    _advised(grow)
    grow.set_defaults(run=run_grow)
    add_curves(steps)


def _advised(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--advised', type=int, default=0, metavar='N',
                        help='sentences of each frame for which it is also recorded what the '
                        'expert would do; openvla learns from all of them (default 0)')


def _recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--family', default='edgevla', choices=('edgevla', 'openvla'),
                        help='of the policy (default edgevla)')
    parser.add_argument('--out', type=Path, required=True, metavar='CHECKPOINT',
                        help='folder for config.json, model.safetensors, training.json and what '
                        'else the family needs')
    parser.add_argument('--start', type=Path, metavar='CHECKPOINT', help='go on from this one')
    parser.add_argument('--steps', type=int, default=STEPS, metavar='N')
    parser.add_argument('--minutes', type=float, default=1e9, metavar='M')
    parser.add_argument('--batch', type=int, default=64, metavar='N',
                        help='sequences of edgevla; frames of openvla, each with all its sentences')
    parser.add_argument('--frames', type=int, default=12, metavar='N',
                        help='of a sequence of edgevla')
    parser.add_argument('--rate', type=float, default=1.2e-3, help='learning rate at its highest')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--device', default='cpu', help='cpu or cuda (default cpu)')
    parser.add_argument('--precision', choices=('bf16', 'fp32'),
                        help='of the passes (default bf16 on a GPU, fp32 on the CPU)')
    parser.add_argument('--compile', action='store_true', help='torch.compile the policy')
    parser.add_argument('--save-minutes', type=float, default=1.5, metavar='M',
                        help='between two checkpoints on the way')


def run_record(args: argparse.Namespace) -> int:
    """Record. Raises ValueError with one line."""
    from vla_ros.tools.writable import check_folder
    from vla_ros.training.dataset import Shape, generate
    _require('episodes', args.episodes, 1, 1_000_000)
    _require('workers', args.workers, 1, 1024)
    _require('frames', args.frames, 2, 10_000)
    _require('advised', args.advised, 0, 100)
    _check_seeds(args.seed, args.episodes)
    if (args.data / 'dataset.json').exists():
        raise ValueError(f'{args.data}: holds a recorded dataset already; give another folder, or '
                         'remove this one first')
    _check_driver(args.driver)
    check_folder(args.data)
    begin = time.monotonic()

    def report(done: int) -> None:
        _show(f'{done} of {args.episodes} episodes, {time.monotonic() - begin:.0f} s')

    shape = Shape(args.episodes, args.frames, advised=args.advised)
    generate(args.data, shape, args.seed, max(1, args.workers), args.driver, report)
    print(f'\nrecorded {args.episodes} episodes in {args.data} in '
          f'{time.monotonic() - begin:.0f} s')
    return 0


def run_fit(args: argparse.Namespace) -> int:
    """Train on what is recorded. Raises ValueError with one line."""
    _need_torch(args)
    from vla_ros.policies.edgevla.config import Compressor
    from vla_ros.training.dataset import load
    from vla_ros.training.families import FAMILIES, EdgeVlaFamily, Family, add_all
    _check_recipe(args)
    _require('window', args.window, 1, 1024)
    _require('keep', args.keep, 1, 512)
    _check_start(args.start, args.family)
    datasets = [load(folder) for folder in args.data]
    family: Family = FAMILIES[args.family]()
    if args.family == 'edgevla':
        shortest = min(dataset.arrays['state'].shape[1] for dataset in datasets)
        if args.frames > shortest:
            raise ValueError(f'train: frames: {args.frames}; the episodes are {shortest} long')
        keep = 0 if args.compressor == 'none' else args.keep
        family = EdgeVlaFamily(args.window, Compressor(args.compressor, keep))
    batches, trainer = family.begin(datasets[0], _made(args), args.start)
    add_all(batches, datasets)
    args.out.mkdir(parents=True, exist_ok=True)
    trainer.train(args.out, _tell)
    return _finish(family, args.out)


def run_grow(args: argparse.Namespace) -> int:
    """Record and train at the same time. Raises ValueError with one line."""
    _need_torch(args)
    _check_recipe(args)
    for name, most in (('part', 100_000), ('parts', 10_000), ('workers', 1024), ('frames', 60),
                       ('begin', 10**9)):
        _require(name, getattr(args, name), 1, most)
    _require('advised', args.advised, 0, 100)
    _check_seeds(args.first_seed, args.part * args.parts)
    if args.begin > args.part * args.parts:
        raise ValueError(f'train: begin: {args.begin}; {args.parts} parts have '
                         f'{args.part * args.parts} episodes')
    _check_driver(args.driver)
    _check_start(args.start, args.family)
    import multiprocessing
    import threading

    from vla_ros.training.dataset import Shape
    from vla_ros.training.families import FAMILIES, add_all
    from vla_ros.training.rounds import READY, Parts, Rounds, record_rounds
    from vla_ros.training.trainer import growing
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoints, family = args.data / 'checkpoints', FAMILIES[args.family]()
    recorder = multiprocessing.get_context('spawn').Process(target=record_rounds, args=(Rounds(
        args.data, checkpoints, Shape(args.part, advised=args.advised), args.first_seed,
        args.workers, args.parts, args.driver),))
    recorder.start()
    stop = threading.Event()
    try:
        parts = Parts(args.data)
        first = parts()
        while sum(len(dataset) for dataset in first) < args.begin:
            first += parts()
            if recorder.exitcode:
                raise ValueError(f'train: the recording ended with status {recorder.exitcode}')
            time.sleep(0.5)
        batches, trainer = family.begin(first[0], _made(args), args.start)
        add_all(batches, first)
        growing(batches, parts, 100e9, stop)
        trainer.train(checkpoints, _tell, lambda folder: (folder / READY).touch())
    finally:
        stop.set()
        if recorder.is_alive():
            recorder.terminate()
        recorder.join()
    for name in family.files:
        (args.out / name).write_bytes((checkpoints / name).read_bytes())
    return _finish(family, args.out)


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f'train: {name.replace("_", "-")}: {value:g}; allowed is {low:g} to '
                         f'{high:g}')


def _check_recipe(args: argparse.Namespace) -> None:
    """Raises ValueError with one line."""
    from vla_ros.tools.writable import check_folder
    for name, low, high in (('steps', 1, 10**9), ('minutes', 1e-3, 1e9), ('batch', 1, 65_536),
                            ('frames', 1, 10_000), ('rate', 1e-9, 1.0), ('seed', 0, 2**31 - 1),
                            ('save_minutes', 1e-3, 1e9)):
        _require(name, getattr(args, name), low, high)
    check_folder(args.out)


def _check_driver(driver: Path | None) -> None:
    if driver is None:
        return
    from vla_ros.training.driver import policy_of
    needed = {'edgevla_sim': 'model.onnx', 'openvla_small': 'model.safetensors'}[policy_of(driver)]
    if not (driver / needed).is_file():
        raise ValueError(f'{driver}: no such checkpoint; a driver is a folder with config.json '
                         f'and {needed}')


def _check_start(start: Path | None, family: str) -> None:
    """Before anything is recorded: what is found wrong later has cost minutes."""
    if start is None:
        return
    from vla_ros.training.driver import policy_of
    from vla_ros.training.families import FAMILIES
    found = {'edgevla_sim': 'edgevla', 'openvla_small': 'openvla'}[policy_of(start)]
    if found != family:
        raise ValueError(f'{start}: a checkpoint of family {found}; training {family} goes on from '
                         f'one of {family}; give --family {found}, or another --start')
    for name in FAMILIES[family]().files:
        if name != 'training.json' and not (start / name).is_file():
            raise ValueError(f'{start}: has no {name}; to go on from a checkpoint takes its '
                             'config.json, its weights and its tokenizer')


def _check_seeds(first: int, count: int) -> None:
    from vla_ros.sim.trial import HELD_OUT
    if count < 1 or not 0 <= first <= HELD_OUT - count:
        raise ValueError(f'train: episodes {count} from seed {first} on: seeds from 0 to '
                         f'{HELD_OUT - 1} are for training, the others for evaluation')


def _need_torch(args: argparse.Namespace) -> None:
    try:
        import torch
    except ModuleNotFoundError:
        raise ValueError('train: torch is missing; install it: scripts/setup --train, or '
                         "pip install 'vla_ros[train]'") from None
    if not re.fullmatch(r'cpu|cuda(:\d+)?', args.device):
        raise ValueError(f'train: device: {args.device}; allowed are cpu, cuda and cuda:<number>')
    if args.device.startswith('cuda') and not torch.cuda.is_available():
        raise ValueError(f'train: device {args.device}: torch sees no GPU here; use --device cpu')


def _made(args: argparse.Namespace) -> Any:
    from vla_ros.training.trainer import Recipe
    return Recipe(steps=args.steps, minutes=args.minutes, batch=args.batch, frames=args.frames,
                  rate=args.rate, seed=args.seed, device=args.device, compile=args.compile,
                  precision=args.precision or (
                      'bf16' if args.device.startswith('cuda') else 'fp32'),
                  save_minutes=args.save_minutes)


def _tell(row: dict[str, float]) -> None:
    from vla_ros.training.trainer import rows_of
    print(*rows_of([row]), flush=True)


def _finish(family: Any, folder: Path) -> int:
    told = family.finish(folder)
    print(f'wrote {folder}; {told}')
    return 0


def _show(text: str) -> None:
    print(f'\r{text}', end='' if sys.stdout.isatty() else '\n', flush=True)
