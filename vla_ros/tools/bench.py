"""`vla-ros bench`: figures of this machine. A missed target is printed and fails nothing."""

from __future__ import annotations

import argparse
import json
import signal
from importlib import import_module
from typing import Any

from vla_ros.tools import bench_engine, engine_plot

CONTROL = """
Measures the period of the commands of the real action_publisher process, fed with plans: inside,
and at a subscriber. In the same run, side by side and under the same load: the node that a user
would write first (an rclpy timer), and the floor of this machine (the same pacing with nothing in
it). The first two seconds are left out.
"""
PIPELINE = """
Measures the way from a camera's stamp to the first command, stage by stage, through the three real
nodes, with an engine that answers at once and with one that takes 80 ms. The overhead is all that
vla_ros adds: everything but the engine, the wait for an engine that is busy with an earlier
observation, and the wait for the next tick of the control loop. The first two seconds are left
out.
"""
POLICY = """
Measures one inference of an EdgeVLA policy, frame by frame with its cache, for as long as asked:
it must cost the same late in an episode as early. With torch, also compares the cached pass with
one pass over the whole episode. `--policy published` has the published size and random weights.
"""


def add_parser(subparsers: Any) -> None:
    """Add `bench` to the subcommands of `vla-ros`."""
    parser = subparsers.add_parser(
        'bench', help='measure the control loop, the image pipeline, a policy or an engine')
    benches = parser.add_subparsers(required=True, metavar='bench')
    control = _bench(benches, 'control', 'the period of the commands, beside an ordinary timer',
                     CONTROL, 60.0)
    control.add_argument('--load', choices=('cpu', 'none'), default='none',
                         help='cpu: one busy process per core beside it (default none)')
    control.add_argument('--robot', choices=('so101', 'widowx_bridge'), default='so101',
                         help='default so101')
    pipeline = _bench(benches, 'pipeline', 'the way from capture to command, stage by stage',
                      PIPELINE, 30.0)
    pipeline.add_argument('--size', default='640x480', metavar='WxH',
                          help='of the camera images; default 640x480')
    policy = _bench(benches, 'policy', 'one inference of an EdgeVLA policy', POLICY, 10.0)
    policy.add_argument('--policy', default='edgevla_sim', metavar='WHICH',
                        help='edgevla_sim, published, or the folder of a checkpoint')
    policy.add_argument('--backend', choices=('onnxruntime', 'torch'), default='onnxruntime')
    policy.add_argument('--device', default='cpu', help='cpu or cuda (default cpu)')
    policy.add_argument('--precision', choices=('fp32', 'bf16', 'fp16'), default='fp32')
    policy.add_argument('--threads', type=int, default=1, help='on the CPU (default 1)')
    bench_engine.add_parser(benches)
    engine_plot.add_parser(benches)


def run(args: argparse.Namespace) -> int:
    """Measure and print. Raises ValueError with one line where nothing could be measured."""
    from rich.console import Console

    from vla_ros.tools.measure import plain

    if not args.seconds > 0.0:
        raise ValueError(f'--seconds: {args.seconds:g}: must be greater than 0')
    # Ends the processes in order, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    bench = import_module(f'vla_ros.tools.bench_{args.bench}')
    figures = bench.measure(args)
    bench.show(figures, Console(stderr=args.json))
    if args.json:
        print(json.dumps(plain(figures), indent=2))
    return 0


def _bench(benches: Any, name: str, about: str, description: str,
           seconds: float) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = benches.add_parser(name, help=about, description=description)
    parser.add_argument('--seconds', type=float, default=seconds, help=f'default {seconds:g}')
    parser.add_argument('--json', action='store_true', help='JSON, and nothing else, on stdout')
    parser.set_defaults(run=run, bench=name)
    return parser
