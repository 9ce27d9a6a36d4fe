"""`vla-ros bench policy`: what a frame of an EdgeVLA policy costs, early and late in an episode."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vla_ros.tools.measure import Target, machine, spread

if TYPE_CHECKING:
    from rich.console import Console

    from vla_ros.policies.edgevla.config import EdgeVlaConfig

SHIPPED = 'edgevla_sim'
MOST_MS = 60.0      # p50 of a frame, with the simulator running
AGREE = 1e-4        # of the cached pass with the pass over the whole episode, fp32
FLAT = 1.15         # p50 late in an episode over p50 when the window has just filled
WARM_UP = 3

Step = Callable[[int], Any]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run frames for `--seconds`. Raises ValueError with one line."""
    if not 1 <= args.threads <= 1024:
        raise ValueError(f'bench: threads: {args.threads}; allowed is 1 to 1024')
    if args.backend == 'onnxruntime' and args.precision != 'fp32':
        raise ValueError(f'bench: precision {args.precision}: onnxruntime runs it in fp32 only; '
                         'use --backend torch')
    config, step, synchronize, extra = _prepared(args)
    for frame in range(WARM_UP):
        step(frame)
    synchronize()
    times: list[float] = []
    end = time.monotonic() + args.seconds
    least = 4 * config.window  # so that early and late can be told apart
    while len(times) < least or time.monotonic() < end:
        begin = time.perf_counter()
        step(len(times))
        synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    full = times[config.window:]
    quarter = max(1, len(full) // 4)
    early, late = float(np.median(full[:quarter])), float(np.median(full[-quarter:]))
    figures = {
        'machine': machine(), 'policy': args.policy, 'backend': args.backend,
        'device': args.device, 'precision': args.precision, 'threads': args.threads,
        'frames': len(times), 'window': config.window, 'tokens_of_a_frame': config.frame_tokens,
        'frame_ms': spread(times), 'early_p50_ms': early, 'late_p50_ms': late, **extra()}
    targets = [Target('late over early frames, p50', late / early, FLAT)]
    if args.policy != 'published':
        targets.insert(0, Target('one inference, p50', figures['frame_ms']['p50'], MOST_MS, 'ms'))
    if figures.get('cached_minus_whole') is not None:
        targets.append(Target('cached pass minus whole pass', figures['cached_minus_whole'],
                              AGREE))
    figures['targets'] = [target.as_json() for target in targets]
    return figures


def show(figures: dict[str, Any], console: Console) -> None:
    """Print the figures for people."""
    from vla_ros.tools.bench_tables import print_machine, print_spreads, print_targets
    print_machine(console, figures['machine'])
    for name in ('gpu', 'parameters', 'multiplications', 'peak_memory_gb'):
        if figures.get(name) is not None:
            console.print(f'{name}: {figures[name]}', highlight=False)
    title = (f'{figures["policy"]} on {figures["backend"]}, {figures["device"]}, '
             f'{figures["precision"]}, window of {figures["window"]} frames of '
             f'{figures["tokens_of_a_frame"]} tokens')
    print_spreads(console, title, 'one frame', {
        'all': {'frames': figures['frames'], 'spread': figures['frame_ms']}}, ('frames',))
    print_targets(console, figures['targets'])


def _prepared(args: argparse.Namespace) -> tuple[
        EdgeVlaConfig, Step, Callable[[], None], Callable[[], dict[str, Any]]]:
    """Config, one frame, waiting for the device, and what else is to be told."""
    from vla_ros.policies.edgevla.config import published, read_config
    folder = _folder(args.policy)
    config = published() if folder is None else read_config(folder / 'config.json')
    random = np.random.default_rng(0)
    camera = config.cameras
    images = random.integers(0, 256, (1, len(camera.names), camera.height, camera.width, 3),
                             dtype=np.uint8)
    ids = random.integers(0, config.text.vocabulary, (1, config.text.length))
    state = random.standard_normal((1, len(config.state))).astype(np.float32)
    since = np.full(1, 0.1, np.float32)
    if args.backend == 'onnxruntime':
        if folder is None:
            raise ValueError('bench: backend onnxruntime: the published size has no weights and '
                             'is run by torch only; use --backend torch')
        from vla_ros.policies.edgevla.onnx_runner import OnnxRunner
        runner = OnnxRunner(folder, config, args.threads, args.device)
        return (config, lambda frame: runner.run(images, ids, state, since, frame),
                lambda: None, dict)
    try:
        import torch
    except ModuleNotFoundError:
        raise ValueError('bench: backend torch: Python module torch is missing; install it: '
                         'scripts/setup --train') from None
    from vla_ros.policies.edgevla.checkpoint import load
    from vla_ros.policies.edgevla.model import EdgeVla, count, macs, to_precision
    from vla_ros.policies.edgevla.torch_runner import PRECISIONS
    if args.device.startswith('cuda') and not torch.cuda.is_available():
        raise ValueError(f'bench: device {args.device}: torch finds no GPU; use --device cpu')
    device = torch.device(args.device)
    if device.type == 'cpu':
        torch.set_num_threads(args.threads)
    if folder is None:
        with torch.device(device):  # six billion bytes need not pass through this machine's memory
            plain = EdgeVla(config).eval()
    else:
        plain = load(folder)
    cached = None if folder is None else cached_minus_whole(plain, config)
    model = to_precision(plain, PRECISIONS[args.precision]).to(device)
    inputs = [torch.from_numpy(value).to(device) for value in (images, ids, state, since)]
    ring = model.make_ring()
    index = torch.zeros((), dtype=torch.int64, device=device)

    def step(frame: int) -> Any:
        return model.step(*inputs, ring, index.fill_(frame))

    def told() -> dict[str, Any]:
        figures: dict[str, Any] = {'parameters': count(model), 'multiplications': macs(config),
                                   'cached_minus_whole': cached}
        if device.type == 'cuda':
            figures['gpu'] = torch.cuda.get_device_name(device)
            figures['peak_memory_gb'] = round(torch.cuda.max_memory_allocated(device) / 1e9, 2)
        return figures

    return (config, step,
            torch.cuda.synchronize if device.type == 'cuda' else lambda: None, told)


def cached_minus_whole(model: Any, config: EdgeVlaConfig) -> float:
    """The largest difference of an action between frame by frame and one pass, in fp32."""
    import torch
    frames = 3 * config.window
    generator = torch.Generator().manual_seed(0)
    camera = config.cameras
    images = torch.randint(0, 256, (1, frames, len(camera.names), camera.height, camera.width, 3),
                           dtype=torch.uint8, generator=generator)
    ids = torch.randint(0, config.text.vocabulary, (1, frames, config.text.length),
                        generator=generator)
    state = torch.randn((1, frames, len(config.state)), generator=generator)
    since = 0.5 * torch.rand((1, frames), generator=generator)
    with torch.no_grad():
        whole = model(images, ids, state, since).actions[0]
        ring = model.make_ring()
        each = [model.step(images[:, f], ids[:, f], state[:, f], since[:, f], ring,
                           torch.tensor(f))[0] for f in range(frames)]
    return float((torch.stack(each) - whole).abs().max())


def _folder(policy: str) -> Path | None:
    """The checkpoint to measure, None for the published size."""
    if policy == 'published':
        return None
    if policy != SHIPPED:
        return Path(policy).expanduser()
    from vla_ros.profiles.policy import load_policy
    folder = load_policy(SHIPPED).checkpoint
    assert folder is not None
    return folder
