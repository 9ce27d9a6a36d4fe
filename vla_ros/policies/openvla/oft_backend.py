"""Runs an OFT policy: plainly, or as one CUDA graph from the upload to the chunk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vla_ros.policies.openvla.backend import Frame, Report, on_device
from vla_ros.policies.openvla.backends import BackendOptions, checked_precision
from vla_ros.policies.openvla.captured import Captured
from vla_ros.policies.openvla.config import OpenVlaConfig
from vla_ros.policies.openvla.jpeg import through_jpeg
from vla_ros.policies.openvla.kernels.ops import (
    Ring,
    Rows,
    add_norm,
    narrowed,
    rope_write,
    silu_mul,
)
from vla_ros.policies.openvla.model import OpenVla
from vla_ros.policies.openvla.oft import L1Head, predict
from vla_ros.policies.openvla.oft_layout import OFT_BACKENDS
from vla_ros.policies.openvla.precision import Precision
from vla_ros.policies.openvla.staging import Staging
from vla_ros.policies.openvla.static import StaticLlama, StaticVision
from vla_ros.policies.openvla.static_backend import check_buckets
from vla_ros.policies.openvla.transforms import Transform

RESAMPLING = 'lanczos'  # as the images of its datasets were made
_ROWS = 16  # rows of a pass are a multiple: kernels like it, padding is masked anyway


class OftBackend(ABC):
    """Runs one OFT policy for one robot. One thread at a time; nothing is remembered."""

    lag = 0
    passes = 1.0

    def __init__(self, config: OpenVlaConfig, jpeg: bool) -> None:
        self.config, self._jpeg = config, jpeg

    def warm_up(self, report: Report) -> None:  # noqa: B027 (the baseline has none)
        """Compile kernels and capture graphs, so that the first frame costs what all cost."""

    @abstractmethod
    def step(self, frame: Frame) -> NDArray[np.float32]:
        """The normalized actions [H, A] of a frame. Raises ValueError with one line."""

    def reset(self) -> None:
        """Nothing to forget."""

    def stages(self) -> Mapping[str, float]:
        """Medians in ms of vision_ms and pass_ms (all but vision), measured now."""
        return {}

    def images(self, frame: Frame) -> NDArray[np.uint8]:
        """Those of a frame; those that will be resized through JPEG first, where that is on."""
        size = self.config.vision.image
        if not self._jpeg or frame.images.shape[1:3] == (size, size):
            return frame.images
        return through_jpeg(frame.images)

    def memory_bytes(self) -> int:
        """Of the device, held by tensors of this process."""
        return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


class OftBaseline(OftBackend):
    """The plain twin."""

    def __init__(self, model: OpenVla, head: L1Head, jpeg: bool = False) -> None:
        super().__init__(model.config, jpeg)
        self._model, self._head = model, head
        self._transform = Transform(model.config.vision, model.device, model.dtype, RESAMPLING)

    @torch.inference_mode()
    def step(self, frame: Frame) -> NDArray[np.float32]:
        pixels, ids, state = on_device(replace(frame, images=self.images(frame)),
                                       self._transform, self._model.device, self._model.dtype)
        return predict(self._model, self._head, pixels, ids, state)[0].float().cpu().numpy()


class OftGraph(OftBackend):
    """Fixed buffers and no waiting in between; a graph for each bucket of prompts on a GPU.

    A prompt shorter than its bucket is padded behind itself. Nothing looks at padding, and what
    follows keeps the positions that it has without.
    """

    def __init__(self, model: OpenVla, head: L1Head, precision: Precision,
                 options: BackendOptions = BackendOptions(),  # noqa: B008 (frozen)
                 consume: bool = False, jpeg: bool = False) -> None:
        super().__init__(model.config, jpeg)
        config = self.config
        self.buckets = check_buckets(options.buckets)
        self.device, self._dtype, self._head = model.device, model.dtype, head
        count, side = config.actions.tokens, config.vision.image
        self._size = options.image or (side, side)
        positions = config.prefix_tokens(max(self.buckets)) + count + 1
        if positions > config.llama.positions:
            raise ValueError(f'buckets: {max(self.buckets)}: the prompt, the images and the chunk '
                             f'take {positions} positions; the model has '
                             f'{config.llama.positions}')
        self._transform = Transform(config.vision, self.device, self._dtype, RESAMPLING)
        self._transform.prepare(*self._size)
        self._vision = StaticVision(model)
        # All rows in one pass: the format for one row is of no use, nor is a ring.
        self._llama = StaticLlama(model, replace(precision, decode=precision.prefill), 0,
                                  positions, consume)
        kept = (1, positions, config.llama.kv_heads, config.llama.head)
        self._ring = Ring(*(torch.zeros(kept, dtype=self._dtype, device=self.device)
                            for _ in range(2)))
        self._projector = getattr(model, 'proprio_projector', None)
        self._stop = torch.full((1,), config.prompt.eos, dtype=torch.int64, device=self.device)
        most = _whole(positions)
        self._inputs = Staging({
            'images': ((config.vision.images, *self._size, 3), torch.uint8),
            'ids': ((max(self.buckets),), torch.int64),
            'state': ((max(1, config.state),), torch.float32),
            'positions': ((most,), torch.int32),
            'slots': ((most,), torch.int32),
            'wanted': ((count,), torch.int64),
        }, self.device)
        self._outputs = Staging({'actions': ((config.actions.horizon, config.actions.dimensions),
                                             torch.float32)}, self.device)
        self._graphs: dict[int, Captured] = {}

    def warm_up(self, report: Report) -> None:
        for number, size in enumerate(self.buckets, 1):
            report(f'capturing the pass for prompts of up to {size} tokens '
                   f'({number} of {len(self.buckets)})')
            self._fill(self._blank(size), size)
            self._graph(size)

    def step(self, frame: Frame) -> NDArray[np.float32]:
        bucket = self._bucket(len(frame.ids))
        self._fill(frame, bucket)
        self._graph(bucket)()
        if self.device.type == 'cuda':
            torch.cuda.current_stream(self.device).synchronize()
        actions: NDArray[np.float32] = self._outputs.host['actions'].copy()
        return actions

    def stages(self) -> Mapping[str, float]:
        bucket = min(self.buckets)
        self._fill(self._blank(bucket), bucket)
        self._inputs.upload()
        with torch.inference_mode():
            seen = self._see()

        def see() -> None:
            self._see()

        def rest() -> None:
            self._act(seen, bucket)

        parts: tuple[tuple[str, Callable[[], None]], ...] = (('vision_ms', see),
                                                             ('pass_ms', rest))
        return {name: Captured(work, self.device).milliseconds(self.device)
                for name, work in parts}

    # --- inputs --------------------------------------------------------------------------------

    def _bucket(self, text: int) -> int:
        for size in self.buckets:
            if text <= size:
                return size
        raise ValueError(f'instruction: {text} tokens with its prompt; at most '
                         f'{max(self.buckets)} fit the buckets; shorten it, or add a bucket to '
                         'the options of the engine profile')

    def _graph(self, bucket: int) -> Captured:
        if bucket not in self._graphs:
            self._graphs[bucket] = Captured(partial(self._work, bucket), self.device)
        return self._graphs[bucket]

    def _blank(self, text: int) -> Frame:
        return Frame(np.full((self.config.vision.images, *self._size, 3), 128, np.uint8),
                     np.full(text, self.config.prompt.bos, np.int64),
                     np.zeros(self.config.state, np.float32) if self.config.state else None)

    def _fill(self, frame: Frame, bucket: int) -> None:
        host, count = self._inputs.host, self.config.actions.tokens
        if frame.images.shape != host['images'].shape:
            raise ValueError(f'images: {list(frame.images.shape)}: the buffers were made for '
                             f'{list(host["images"].shape)}; use images of that size')
        host['images'][:] = self.images(frame)
        if frame.state is not None:
            host['state'][:] = frame.state
        elif self.config.state:
            raise ValueError(f'state: missing: the policy takes {self.config.state} values')
        text = len(frame.ids)
        host['ids'][:text] = frame.ids
        host['ids'][text:] = self.config.prompt.bos  # an id that every vocabulary has; unseen
        length, rows = self.config.prefix_tokens(text), self.config.prefix_tokens(bucket)
        positions = host['positions']
        positions[:] = -1
        positions[:length] = np.arange(length)
        positions[rows:rows + count + 1] = length + np.arange(count + 1)
        host['wanted'][0] = length - 1
        host['wanted'][1:] = rows + np.arange(count - 1)

    # --- the pass ------------------------------------------------------------------------------

    def _work(self, bucket: int) -> None:
        self._inputs.upload()
        self._act(self._see(), bucket)
        self._outputs.download()

    def _see(self) -> Tensor:
        """Tokens [n P, W] of the images."""
        return self._vision(self._transform(self._inputs.device['images']))

    def _act(self, seen: Tensor, bucket: int) -> None:
        hidden = self._hidden(self._sequence(seen, bucket))
        self._outputs.device['actions'].copy_(self._head(hidden[None])[0])

    def _sequence(self, seen: Tensor, bucket: int) -> Tensor:
        """Rows [R, W]: prompt with padding, zeros, stop, padding."""
        inputs, count = self._inputs.device, self.config.actions.tokens
        text = self._llama.embed(inputs['ids'][:bucket])
        parts = [text[:1], seen]
        if self._projector is not None:
            parts.append(self._projector(inputs['state'][None].to(self._dtype))[0])
        real = self.config.prefix_tokens(bucket) + count + 1
        parts += [text[1:], text.new_zeros(count, text.shape[1]), self._llama.embed(self._stop),
                  text.new_zeros(_whole(real) - real, text.shape[1])]
        return torch.cat(parts)

    def _hidden(self, x: Tensor) -> Tensor:
        """Normed hidden states [H A, W] of the rows that become actions; x is overwritten."""
        llama, inputs, shape = self._llama, self._inputs.device, self._llama.shape
        at = Rows(inputs['positions'][:len(x)], inputs['slots'][:len(x)])
        wanted, epsilon = inputs['wanted'], llama.sizes.epsilon
        mask = torch.zeros(len(x), dtype=x.dtype, device=x.device).masked_fill(
            at.positions < 0, -torch.inf).expand(1, 1, len(x), len(x))
        last = len(llama.layers) - 1
        normed = add_norm(x, None, llama.layers[0].before, epsilon, llama.layers[0].qkv.narrow)
        for number, layer in enumerate(llama.layers):
            qkv = rope_write(layer.qkv.rows(normed), llama.turn, at, self._ring, shape)
            parts = qkv.view(1, len(x), -1, shape.width).transpose(1, 2)
            q, k, v = (parts[:, :shape.heads], parts[:, shape.heads:-shape.kv],
                       parts[:, -shape.kv:])
            if number == last:  # what no action needs ends here
                q, x, mask = q[:, :, wanted], x[wanted], mask[:, :, wanted]
            mixed = functional.scaled_dot_product_attention(
                q, k, v, mask, enable_gqa=shape.kv != shape.heads)
            mixed = mixed.transpose(1, 2).reshape(len(x), -1)
            made = layer.o.rows(narrowed(mixed, layer.o.narrow))
            normed = add_norm(x, made, layer.after, epsilon, layer.gate_up.narrow)
            gated = silu_mul(layer.gate_up.rows(normed), layer.down.narrow)
            after = llama.norm if number == last else llama.layers[number + 1].before
            narrow = number < last and llama.layers[number + 1].qkv.narrow
            normed = add_norm(x, layer.down.rows(gated), after, epsilon, narrow)
        return normed.rows


def make_oft_backend(name: str, model: OpenVla, head: L1Head, precision_name: str,
                     options: BackendOptions = BackendOptions(),  # noqa: B008 (frozen)
                     consume: bool = False, jpeg: bool = False) -> OftBackend:
    """A backend for a policy in its own dtype. Raises ValueError with one line.

    `consume`: the model may be used up, so that its weights are never there twice. `jpeg`: images
    that are resized go through JPEG first, as in the datasets; for cameras that send raw images.
    """
    if name not in OFT_BACKENDS:
        raise ValueError(f'backend: {name}: OFT has {", ".join(OFT_BACKENDS)}; the others are for '
                         'policies that decode token by token')
    wanted = checked_precision(precision_name, model, options)
    if name == 'baseline':
        if wanted.quantized:
            raise ValueError(f'precision: {precision_name}: the baseline is plain: it runs in '
                             'fp32, fp16 and bf16')
        return OftBaseline(model, head, jpeg)
    if wanted.quantized and wanted.prefill == 'plain':
        raise ValueError(f'precision: {precision_name}: OFT is one pass of many rows, which it '
                         'does not speed up; choose bf16 or fp8')
    return OftGraph(model, head, wanted, options, consume, jpeg)


def _whole(rows: int) -> int:
    return -(-rows // _ROWS) * _ROWS
