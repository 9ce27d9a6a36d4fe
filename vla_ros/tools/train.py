"""`vla-ros train sim`: record episodes of the scripted expert, and fit a policy to them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

EPISODES, STEPS = 2500, 12_000


def add_parser(subparsers: Any) -> None:
    """Add `train` to the subcommands of `vla-ros`."""
    parser = subparsers.add_parser('train', help='record data and train a policy')
    kinds = parser.add_subparsers(required=True, metavar='what')
    sim = kinds.add_parser('sim', help='the policy edgevla_sim, in the simulator')
    steps = sim.add_subparsers(required=True, metavar='step')

    record = steps.add_parser('record', help='record episodes of the scripted expert')
    record.add_argument('data', type=Path, help='folder to write, about 12 MB an episode')
    record.add_argument('--episodes', type=int, default=EPISODES, metavar='N')
    record.add_argument('--seed', type=int, default=0, help='of the first episode')
    record.add_argument('--workers', type=int, default=os.cpu_count(), metavar='N')
    record.add_argument('--driver', type=Path, metavar='CHECKPOINT',
                        help='a trained policy that drives between the corrections of the expert')
    record.set_defaults(run=run_record)

    fit = steps.add_parser('fit', help='train on recorded episodes; needs torch',
                           description='Ends after --steps or --minutes, whatever comes first.')
    fit.add_argument('data', type=Path, nargs='+', help='recorded folders')
    fit.add_argument('--out', type=Path, required=True, metavar='CHECKPOINT',
                     help='folder for config.json, model.safetensors, model.onnx, training.json')
    fit.add_argument('--start', type=Path, metavar='CHECKPOINT', help='go on from this one')
    fit.add_argument('--steps', type=int, default=STEPS, metavar='N')
    fit.add_argument('--minutes', type=float, default=float('inf'), metavar='M')
    fit.add_argument('--batch', type=int, default=64, metavar='N', help='sequences')
    fit.add_argument('--frames', type=int, default=12, metavar='N', help='frames of a sequence')
    fit.add_argument('--rate', type=float, default=1.2e-3, help='learning rate at its highest')
    fit.add_argument('--seed', type=int, default=0)
    fit.add_argument('--device', default='cpu', help='cpu or cuda (default cpu)')
    fit.add_argument('--compile', action='store_true', help='torch.compile the policy')
    fit.add_argument('--compressor', default='learned_query',
                     choices=('learned_query', 'average_pool', 'none'))
    fit.add_argument('--keep', type=int, default=24, metavar='N',
                     help='visual tokens of a frame that reach the transformer')
    fit.add_argument('--window', type=int, default=8, metavar='FRAMES')
    fit.set_defaults(run=run_fit)


def run_record(args: argparse.Namespace) -> int:
    """Record. Raises ValueError with one line."""
    from vla_ros.sim.trial import HELD_OUT
    from vla_ros.training.dataset import Shape, generate
    if args.episodes < 1 or not 0 <= args.seed <= HELD_OUT - args.episodes:
        raise ValueError(f'train: episodes {args.episodes} from seed {args.seed} on: seeds from 0 '
                         f'to {HELD_OUT - 1} are for training, the others for evaluation')
    begin = time.monotonic()

    def report(done: int) -> None:
        _show(f'{done} of {args.episodes} episodes, {time.monotonic() - begin:.0f} s')

    generate(args.data, Shape(args.episodes), args.seed, max(1, args.workers), args.driver, report)
    print(f'\nrecorded {args.episodes} episodes in {args.data} in '
          f'{time.monotonic() - begin:.0f} s')
    return 0


def run_fit(args: argparse.Namespace) -> int:
    """Train. Raises ValueError with one line."""
    try:
        import torch
    except ModuleNotFoundError:
        raise ValueError('train: torch is missing; install it: scripts/setup --train, or '
                         "pip install 'vla_ros[train]'") from None
    from vla_ros.policies.edgevla.config import Compressor, small
    from vla_ros.policies.edgevla.export import export
    from vla_ros.sim.tasks import VOCABULARY
    from vla_ros.training.dataset import load
    from vla_ros.training.trainer import Recipe, normalization, rows_of, train
    if args.device.startswith('cuda') and not torch.cuda.is_available():
        raise ValueError(f'train: device {args.device}: torch sees no GPU here; use --device cpu')
    datasets = [load(folder) for folder in args.data]
    keep = 0 if args.compressor == 'none' else args.keep
    config = replace(small(VOCABULARY, normalization(datasets[0])), window=args.window,
                     compressor=Compressor(args.compressor, keep))
    recipe = Recipe(steps=args.steps, minutes=args.minutes, batch=args.batch, frames=args.frames,
                    rate=args.rate, seed=args.seed, device=args.device, compile=args.compile,
                    precision='bf16' if args.device.startswith('cuda') else 'fp32')
    args.out.mkdir(parents=True, exist_ok=True)
    train(datasets, config, recipe, args.out, args.start,
          lambda row: print(*rows_of([row]), flush=True))
    difference = export(args.out)
    print(f'wrote {args.out}; ONNX Runtime differs from torch by at most {difference:.1e}')
    return 0


def _show(text: str) -> None:
    print(f'\r{text}', end='' if sys.stdout.isatty() else '\n', flush=True)
