"""The policy as one ONNX graph for a frame, with the cache as an input.

images uint8 [1, C, height, width, 3], ids int64 [1, L], state float32 [1, S], since float32 [1],
ring float32 [layers, 2, 1, W, T, kv, head], frame int64 [] to actions float32 [1, H, A] and the
keys and values of the frame, new float32 [layers, 2, 1, T, kv, head], which belong into slot
frame % W of the ring.
"""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vla_ros.policies.edgevla.checkpoint import load, save
from vla_ros.policies.edgevla.config import EdgeVlaConfig, to_json
from vla_ros.policies.edgevla.files import (
    CONFIG_KEY,
    GRAPH,
    WEIGHTS,
    WEIGHTS_KEY,
    read_bytes,
    write_bytes,
)
from vla_ros.policies.edgevla.model import EdgeVla, example_inputs
from vla_ros.policies.edgevla.onnx_runner import INPUTS, OUTPUTS, OnnxRunner

OPSET = 17
TOLERANCE = 1e-4


class FrameGraph(nn.Module):
    """One frame without side effects: the ring with the frame in it is a copy."""

    def __init__(self, model: EdgeVla) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, ids: Tensor, state: Tensor, since: Tensor, ring: Tensor,
                frame: Tensor) -> tuple[Tensor, Tensor]:
        window = self.model.config.window
        here = (torch.arange(window) == frame % window).view(1, 1, window, 1, 1, 1)

        def write(layer: int, new: Tensor) -> Tensor:
            return torch.where(here, new.unsqueeze(2), ring[layer])

        return self.model.stream(images, ids, state, since, frame, write)


def export(folder: Path, check: bool = True) -> float:
    """Write model.onnx beside config.json and model.safetensors of a checkpoint.

    Returns the largest difference of an action between torch and ONNX Runtime over a random
    stream; ValueError with one line where it is above 1e-4, or where something is missing.
    """
    import onnx
    model = load(folder)
    config = model.config
    inputs = (*example_inputs(config), model.make_ring(), torch.zeros((), dtype=torch.int64))
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(), torch.no_grad():
        # The older exporter says that it is the older one, and what it cannot know of sizes.
        warnings.simplefilter('ignore')
        torch.onnx.export(FrameGraph(model), inputs, f'{place}/{GRAPH}', dynamo=False,
                          opset_version=OPSET, input_names=list(INPUTS),
                          output_names=list(OUTPUTS))
        graph = onnx.load(f'{place}/{GRAPH}')
    onnx.helper.set_model_props(graph, {
        CONFIG_KEY: hashlib.sha256(to_json(config).encode()).hexdigest(),
        WEIGHTS_KEY: hashlib.sha256(read_bytes(folder / WEIGHTS)).hexdigest()})
    write_bytes(folder / GRAPH, graph.SerializeToString(deterministic=True))
    difference = disagreement(folder, model) if check else 0.0
    if difference > TOLERANCE:
        raise ValueError(f'{folder / GRAPH}: its actions differ from those of torch by '
                         f'{difference:.2g}: at most {TOLERANCE:g}; report it')
    return difference


def disagreement(folder: Path, model: EdgeVla, seed: int = 0) -> float:
    """The largest difference of an action over a random stream of more than two windows."""
    config = model.config
    runner = OnnxRunner(folder, config, threads=1)
    ring = model.make_ring()
    random = np.random.default_rng(seed)
    worst = 0.0
    shapes = [value.shape for value in example_inputs(config)]
    mean, std = (np.array(values, np.float32) for values in (
        config.normalization.state_mean, config.normalization.state_std))
    for frame in range(2 * config.window + 3):
        arrays = (random.integers(0, 256, shapes[0], dtype=np.uint8),
                  random.integers(0, config.text.vocabulary, shapes[1]),
                  (mean + std * random.standard_normal(shapes[2])).astype(np.float32),
                  random.uniform(0.0, 0.5, shapes[3]).astype(np.float32))
        images, ids, state, since = map(torch.from_numpy, arrays)
        expected = model.step(images, ids, state, since, ring, torch.tensor(frame))
        found = runner.run(*arrays, frame)
        worst = max(worst, float(np.abs(expected[0].numpy() - found).max()))
    return worst


def write_checkpoint(folder: Path, model: EdgeVla) -> float:
    """Write all files of a checkpoint; returns as `export`."""
    save(folder, model)
    return export(folder)


def random_checkpoint(folder: Path, config: EdgeVlaConfig, seed: int = 0) -> EdgeVla:
    """Write a checkpoint that was never trained, for tests and simulations; returns its model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = EdgeVla(config).eval()
    write_checkpoint(folder, model)
    return model
