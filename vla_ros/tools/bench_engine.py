"""`vla-ros bench engine`: backends of OpenVLA beside `transformers` and the machine's ceilings."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vla_ros.tools.engine_rows import Memory, Row, floor_figures, measure_row, one_line
from vla_ros.tools.measure import machine, plain
from vla_ros.tools.transformers_baseline import measure_transformers

if TYPE_CHECKING:
    from rich.console import Console

    from vla_ros.policies.openvla.backend import Frame
    from vla_ros.policies.openvla.config import OpenVlaConfig
    from vla_ros.policies.openvla.precision import Precision
    from vla_ros.tools.engine_floor import Ceilings, Floor

ABOUT = """
Measures backends and precisions of OpenVLA, one after the other on the same frames, beside
`generate` of transformers and beside the floor that this machine's own copies and matrix products
set. An action is timed whole: upload of the images, vision, prompt, 7 tokens, download. Warm-up is
printed on its own and left out. With random weights it says nothing about what the actions are
worth: times do not depend on the weights, success does.
"""
BACKENDS = ('baseline', 'graph', 'actionflow', 'actionflow+overlap', 'jacobi')
PLAIN, QUANTIZED = ('fp32', 'bf16', 'fp16'), ('fp8', 'int8-weight', 'int4-weight')
PREFILLS = ('bf16', 'fp8')
PRECISIONS = (*PLAIN, *QUANTIZED, *(f'{q}/{prefill}' for q in QUANTIZED for prefill in PREFILLS))
SHAPES = ('7b', 'small', 'tiny')
ON_GPU = (('graph', 'bf16'), ('actionflow', 'bf16'), ('graph', 'int4-weight/fp8'), ('graph', 'fp8'),
          ('jacobi', 'bf16'), ('graph', 'int4-weight'), ('graph', 'int8-weight'),
          ('actionflow+overlap', 'bf16'), ('baseline', 'bf16'))
ON_CPU = (('baseline', 'fp32'), ('graph', 'fp32'), ('actionflow', 'fp32'), ('jacobi', 'fp32'))
ACTIONS, JACOBI_ACTIONS, BASELINE_ACTIONS = 2000, 500, 200
TEXT_TOKENS = 22  # ids: a sentence of seven words or so
FRAMES = 16      # different ones, in turn


def add_parser(benches: Any) -> None:
    """Add `engine` to the subcommands of `vla-ros bench`."""
    parser = benches.add_parser('engine', help='backends and precisions of OpenVLA',
                                description=ABOUT)
    parser.add_argument('--family', choices=('openvla',), default='openvla')
    parser.add_argument('--shape', choices=SHAPES, default='7b', help='default 7b')
    weights = parser.add_mutually_exclusive_group(required=True)
    weights.add_argument('--random-weights', action='store_true', help='speed only')
    weights.add_argument('--model', type=Path, metavar='FOLDER',
                         help='a checkpoint; sets the shape')
    parser.add_argument('--backend', nargs='+', choices=BACKENDS, metavar='BACKEND',
                        help=f'{", ".join(BACKENDS)}; with every --precision')
    parser.add_argument('--precision', nargs='+', choices=PRECISIONS, metavar='PRECISION',
                        help=f'{", ".join(PLAIN + QUANTIZED)}; int4-weight/fp8 has another '
                        'precision for the pass over the prompt')
    parser.add_argument('--actions', nargs='+', default=[str(ACTIONS)], metavar='N',
                        help=f'of each row (default {ACTIONS}, of jacobi {JACOBI_ACTIONS}); '
                        'graph=500 or graph_fp8=500 says it of some')
    parser.add_argument('--baseline-actions', type=int, default=BASELINE_ACTIONS, metavar='N',
                        help='of transformers and of the backend baseline '
                        f'(default {BASELINE_ACTIONS}); 0 leaves transformers out')
    parser.add_argument('--text-tokens', type=int, default=TEXT_TOKENS, metavar='N',
                        help=f'ids of the prompt, with its first (default {TEXT_TOKENS})')
    parser.add_argument('--device', default='', help='cpu, cuda or cuda:<number> (default: a GPU '
                        'where there is one)')
    parser.add_argument('--threads', type=int, default=1, help='on the CPU (default 1)')
    parser.add_argument('--deterministic', choices=('no', 'too', 'only'), nargs='?', const='too',
                        default='no', help='measure each row once more with equal bits for equal '
                        'inputs (in a process of its own), and print what that costs')
    parser.add_argument('--json', nargs='?', const='-', metavar='FILE',
                        help='JSON into a file, which is also written after each row; without a '
                        'name, nothing else on stdout')
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print. Returns 1 where every row failed; ValueError with one line before that."""
    from rich.console import Console

    from vla_ros.engines.atomic import write_text
    from vla_ros.tools.engine_tables import show
    from vla_ros.tools.writable import check_writable
    file = None if args.json in (None, '-') else Path(args.json).expanduser()
    if file is not None:
        check_writable(file, '.json')
    console = Console(stderr=args.json == '-')

    def keep(figures: Mapping[str, Any]) -> None:
        if file is not None:
            write_text(file, json.dumps(plain(dict(figures)), indent=2) + '\n')

    if args.deterministic == 'only':
        from vla_ros.policies.openvla.determinism import be_deterministic
        be_deterministic()
    figures = measure(args, lambda line: console.print(line, highlight=False, markup=False,
                                                       soft_wrap=True), keep)
    if args.deterministic == 'too':
        add_deterministic(figures, console)
    keep(figures)
    show(figures, console)
    if args.json == '-':
        print(json.dumps(plain(figures), indent=2))
    failed = [row for row in figures['backends'].values() if 'error' in row]
    return int(len(failed) == len(figures['backends']))


def add_deterministic(figures: dict[str, Any], console: Console) -> None:
    """Run the same command with the switch on, and write its times and its cost to the rows.

    In a process of its own, since the switch is one of the process. Raises ValueError, one line.
    """
    words = [word for word in sys.argv[1:] if not word.startswith('--deterministic')]
    for option in ('--json', '--baseline-actions'):
        if option in words:  # with its value
            at = words.index(option)
            del words[at:at + 1 + (at + 1 < len(words) and not words[at + 1].startswith('-'))]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'deterministic.json'
        console.print('The same rows, deterministic', highlight=False)
        status = subprocess.run(
            [sys.executable, '-m', 'vla_ros.tools.cli', *words, '--baseline-actions', '0',
             '--deterministic=only', '--json', str(file)], stdout=subprocess.DEVNULL).returncode
        if not file.exists():
            raise ValueError(f'bench: --deterministic: the second process ended with {status}; '
                             'run it with --deterministic=only to see why')
        again = json.loads(file.read_text())['backends']
    for name, row in figures['backends'].items():
        other = again.get(name, {})
        if 'error' in row or 'action_ms' not in other:
            continue
        cost = 100.0 * (other['action_ms']['p50'] / row['action_ms']['p50'] - 1.0)
        row['deterministic'] = {'action_ms': other['action_ms'], 'cost_percent': round(cost, 2)}


def rows_of(args: argparse.Namespace, device: str) -> list[Row]:
    """What is to be measured. Raises ValueError with one line."""
    pairs: tuple[tuple[str, str], ...] = ON_GPU if device.startswith('cuda') else ON_CPU
    if args.backend or args.precision:
        backends = args.backend or ['graph']
        precisions = args.precision or [pairs[0][1]]
        pairs = tuple((b, p) for b in dict.fromkeys(backends) for p in dict.fromkeys(precisions)
                      if b != 'baseline' or p in PLAIN)
        if not pairs:
            raise ValueError(f'--precision: {precisions[0]}: the baseline runs in '
                             f'{", ".join(PLAIN)}; name another backend')
    counts: dict[str, int] = {}
    for word in args.actions:
        which, _, count = word.rpartition('=')
        if not count.isdecimal() or not 1 <= int(count) <= 10_000_000:
            raise ValueError(f'--actions: {word!r}: a number from 1 on, or a backend or row before '
                             'it, such as graph=500 or graph_fp8=500')
        counts[which] = int(count)
    rows = []
    for backend, precision in pairs:
        usual = counts.get('', ACTIONS)
        if backend == 'baseline':
            usual = min(usual, args.baseline_actions or BASELINE_ACTIONS)
        elif backend == 'jacobi':
            usual = min(usual, JACOBI_ACTIONS)
        row = Row(backend, precision, counts.get(backend, usual))
        rows.append(Row(backend, precision, counts.get(row.name, row.actions)))
    unknown = set(counts) - {''} - {row.backend for row in rows} - {row.name for row in rows}
    if unknown:
        raise ValueError(f'--actions: {sorted(unknown)[0]}: no such row; there are '
                         f'{", ".join(row.name for row in rows)}')
    return rows


def measure(args: argparse.Namespace, tell: Callable[[str], None],
            keep: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Run everything; `keep` gets what there is after each row. Raises ValueError, one line.

    A row that fails says why in its `error`, and the others are measured all the same.
    """
    torch, device = _torch(args)
    rows = rows_of(args, device)
    if not 0 <= args.baseline_actions <= 10_000_000:
        raise ValueError(f'--baseline-actions: {args.baseline_actions}; allowed is 0 or more')
    config = _config(args)
    most = config.llama.positions - config.visual_tokens - config.actions.tokens
    if not 2 <= args.text_tokens <= most:
        raise ValueError(f'--text-tokens: {args.text_tokens}; allowed is 2 to {most}')
    begin = time.monotonic()
    frames = make_frames(config, args.text_tokens)
    plain_precision = 'fp32' if device == 'cpu' else 'bf16'
    if {row.precision for row in rows} <= set(PLAIN):
        plain_precision = rows[0].precision
    tell('Ceilings of the machine')
    from vla_ros.tools.engine_ceilings import measure_ceilings
    ceilings, told = measure_ceilings(config, args.text_tokens, device, plain_precision)
    settings: dict[str, Any] = {
        'deterministic': args.deterministic == 'only',
        'command': ' '.join(['vla-ros', *sys.argv[1:]]), 'shape': _shape(args),
        'weights': 'random' if args.model is None else args.model.name, 'device': device,
        'prompt_tokens': config.prefix_tokens(args.text_tokens),
        'text_tokens': args.text_tokens, 'action_tokens': config.actions.tokens,
        'images': [config.vision.images, config.vision.image, config.vision.image]}
    figures: dict[str, Any] = {
        'run': settings, 'machine': {**machine(), **_device(torch, device)}, 'ceilings': told,
        'floor': {name: {part: round(ms, 4) for part, ms in asdict(_floor(
            config, args.text_tokens, ceilings, name, device)).items()}
            for name in dict.fromkeys(row.precision for row in rows)},
        'baseline': measure_transformers(config, frames, args.baseline_actions, device,
                                         plain_precision, tell),
        'backends': {}, 'targets': []}
    for row in rows:
        tell(f'{row.backend} {row.precision}: {row.actions} actions')
        made = _measured(args, row, config, frames, device, tell)
        if 'error' in made:
            tell(f'  failed: {made["error"]}')
        else:
            least = _floor(config, args.text_tokens, ceilings, row.precision, device)
            made |= _compared(made, least, config.actions.tokens, figures['baseline'])
            tell(f'  {made["action_ms"]["p50"]:.2f} ms p50')
        figures['backends'][row.name] = made
        keep(figures)
    settings['seconds'] = round(time.monotonic() - begin, 1)
    if _shape(args) == '7b' and device.startswith('cuda'):
        from vla_ros.tools.engine_targets import targets
        figures['targets'] = [target.as_json() for target in targets(figures['baseline'],
                                                                      figures['backends'])]
    return figures


def make_frames(config: OpenVlaConfig, text: int, count: int = FRAMES) -> list[Frame]:
    """Frames of random images in the size that the policy takes, as the engine gets them.

    Their prompts are `text` random ids that begin with BOS.
    """
    from vla_ros.policies.openvla.backend import Frame
    random = np.random.default_rng(0)
    shape = (config.vision.images, config.vision.image, config.vision.image, 3)
    frames = []
    for _ in range(count):
        ids = random.integers(3, config.actions.first, text)
        ids[0] = config.prompt.bos
        state = random.uniform(-1.0, 1.0, config.state).astype(np.float32)
        frames.append(Frame(random.integers(0, 256, shape, np.uint8), ids,
                            state if config.state else None))
    return frames


def _measured(args: argparse.Namespace, row: Row, config: OpenVlaConfig, frames: Sequence[Frame],
              device: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """The figures of a row, or its error in one line."""
    try:
        return measure_row(row, lambda: _backend(args, row, config, device), frames, device, tell)
    except Exception as error:  # the others' rows are worth keeping, whatever it was
        made = {'backend': row.backend, 'precision': row.precision, 'error': one_line(error)}
    finally:
        Memory(device).free()
    return made


def _backend(args: argparse.Namespace, row: Row, config: OpenVlaConfig, device: str) -> Any:
    import torch

    from vla_ros.policies.openvla.backends import BackendOptions, make_backend
    found = _precision(row.precision, device)
    dtype = getattr(torch, found.activations)
    if args.model is None:
        from vla_ros.policies.openvla.model import random_model
        model = random_model(config, device, dtype, seed=0)
    else:
        from vla_ros.policies.openvla.checkpoint import load
        model = load(args.model, device, dtype, config)
    backend, _, overlap = row.backend.partition('+')
    options = BackendOptions(row.precision.partition('/')[2] or 'default', overlap=bool(overlap))
    return make_backend(backend, model, found.name, options, consume=True)


def _precision(name: str, device: str) -> Precision:
    """As an engine has it: what is not quantized is in bf16 on a GPU, in fp32 on a CPU."""
    from vla_ros.policies.openvla.precision import precision
    weights, _, prefill = name.partition('/')
    return precision(weights, 'float32' if device == 'cpu' else 'bfloat16', prefill or 'default')


def _compared(figures: Mapping[str, Any], least: Floor, tokens: int,
              baseline: Mapping[str, Any]) -> dict[str, Any]:
    """A row beside its floor and beside transformers."""
    per_s = baseline['actions_per_s']
    least_ms = least.of(figures['lag'], figures['passes'] or 0.0, tokens)
    return {**floor_figures(figures, least_ms), 'times_faster': None if not per_s else round(
        figures['actions_per_s'] / per_s, 3)}


def _floor(config: OpenVlaConfig, text: int, ceilings: Ceilings, name: str, device: str) -> Floor:
    from vla_ros.tools.engine_floor import floor
    found = _precision(name, device)
    prefill = {'plain': ceilings.plain, 'fp8': 'fp8'}[found.prefill] if found.quantized else ''
    return floor(config, text, ceilings, found.name, prefill)


def _config(args: argparse.Namespace) -> OpenVlaConfig:
    from vla_ros.policies.openvla.config import published, small, tiny
    if args.model is None:
        return {'7b': published, 'small': small, 'tiny': tiny}[args.shape]()
    from vla_ros.policies.openvla.hf_config import read_config
    return read_config(args.model)


def _shape(args: argparse.Namespace) -> str:
    return args.shape if args.model is None else 'checkpoint'


def _torch(args: argparse.Namespace) -> tuple[Any, str]:
    """torch and the device. Raises ValueError with one line."""
    try:
        import torch
    except ModuleNotFoundError:
        raise ValueError('bench engine: Python module torch is missing; install it: '
                         'scripts/setup --train') from None
    device = args.device or ('cuda' if torch.cuda.is_available() else 'cpu')
    if not re.fullmatch(r'cpu|cuda(:\d+)?', device):
        raise ValueError(f'--device: {device}; allowed are cpu, cuda and cuda:<number>')
    if device.startswith('cuda') and not torch.cuda.is_available():
        raise ValueError(f'--device: {device}: torch finds no GPU; use --device cpu')
    if not 1 <= args.threads <= 1024:
        raise ValueError(f'--threads: {args.threads}; allowed is 1 to 1024')
    if device == 'cpu':
        torch.set_num_threads(args.threads)
    return torch, device


def _device(torch: Any, device: str) -> dict[str, Any]:
    """GPU, driver and the versions that times depend on."""
    from importlib.metadata import PackageNotFoundError, version

    from vla_ros.engines.driver import gpu_driver

    def known(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    on_gpu = device.startswith('cuda')
    return {'gpu': torch.cuda.get_device_name(device) if on_gpu else None,
            'driver': gpu_driver() if on_gpu else None, 'torch': torch.__version__,
            'cuda': torch.version.cuda, 'triton': known('triton'),
            'transformers': known('transformers')}
