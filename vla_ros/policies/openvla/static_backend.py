"""What the fast backends share: fixed buffers, prompt buckets, from images to embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_ros.policies.openvla.backend import Backend, Frame, Report
from vla_ros.policies.openvla.captured import Captured
from vla_ros.policies.openvla.kernels.ops import PLAIN_TUNING, Rows, Tuning
from vla_ros.policies.openvla.model import OpenVla
from vla_ros.policies.openvla.precision import Precision
from vla_ros.policies.openvla.staging import Staging
from vla_ros.policies.openvla.static import StaticLlama, StaticVision
from vla_ros.policies.openvla.transforms import Transform

BUCKETS = (32, 64)  # text tokens that a prompt is padded to


@dataclass(frozen=True)
class StaticOptions:
    """How the fast backends are built. `consume`: the model is used up, to save its memory.

    `image`: height and width of the images that come, if not those of the policy.
    """

    precision: Precision
    buckets: tuple[int, ...] = BUCKETS
    consume: bool = False
    overlap: bool = False
    image: tuple[int, int] | None = None
    tuning: Tuning = PLAIN_TUNING


class StaticBackend(Backend):
    """`slots` sequences in the ring; `extra` rows follow the prompt's in a pass of many rows."""

    def __init__(self, model: OpenVla, options: StaticOptions, slots: int, extra: int) -> None:
        super().__init__(model.config)
        self.device, self.dtype, self.options = model.device, model.dtype, options
        config = self.config
        self.count = config.actions.tokens
        self.extra = extra
        longest = config.prefix_tokens(max(options.buckets)) + self.count
        if longest > config.llama.positions:
            raise ValueError(f'buckets: {max(options.buckets)}: the prompt, the images and the '
                             f'action take {longest} positions; the model has '
                             f'{config.llama.positions}')
        self.transform = Transform(config.vision, self.device, self.dtype)
        self.vision = StaticVision(model)
        self.llama = StaticLlama(model, options.precision, slots, longest, options.consume,
                                 options.tuning)
        self._projector = getattr(model, 'proprio_projector', None)
        side = config.vision.image
        self.image = options.image or (side, side)
        self.transform.prepare(*self.image)
        most = config.prefix_tokens(max(options.buckets)) + extra
        self.inputs = Staging({
            'images': ((config.vision.images, *self.image, 3), torch.uint8),
            'ids': ((max(options.buckets),), torch.int64),
            'state': ((max(1, config.state),), torch.float32),
            'positions': ((most,), torch.int32),
            'slots': ((most,), torch.int32),
            'wanted': ((self.count,), torch.int64),
            'steps': ((self.count,), torch.int32),       # positions of single rows
            **self.fields()}, self.device)
        self.outputs = Staging({'ids': ((self.count,), torch.int64)}, self.device)
        self.tokens = torch.full((slots, self.count), config.actions.first, dtype=torch.int64,
                                 device=self.device)
        self._graphs: dict[int, Captured] = {}

    def fields(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Further inputs."""
        return {}

    def work(self, bucket: int) -> None:
        """What is captured for a bucket: from `inputs` to `outputs`."""
        raise NotImplementedError

    # --- buckets -------------------------------------------------------------------------------

    def bucket(self, text: int) -> int:
        """The bucket of a prompt of `text` ids. Raises ValueError with one line."""
        for size in self.options.buckets:
            if text <= size:
                return size
        raise ValueError(f'instruction: {text} tokens with its prompt; at most '
                         f'{max(self.options.buckets)} fit the buckets; shorten it, or add a '
                         'bucket to the options of the engine profile')

    def graph(self, bucket: int) -> Captured:
        """The captured work of a bucket."""
        if bucket not in self._graphs:
            self._graphs[bucket] = Captured(partial(self.work, bucket), self.device)
        return self._graphs[bucket]

    def warm_up(self, report: Report) -> None:
        for number, size in enumerate(self.options.buckets, 1):
            report(f'capturing the pass for prompts of up to {size} tokens '
                   f'({number} of {len(self.options.buckets)})')
            self.prepare(self.blank(size), size)
            self.graph(size)
        self.reset()

    def blank(self, text: int) -> Frame:
        """A grey frame with a prompt of `text` ids."""
        return Frame(np.full((self.config.vision.images, *self.image, 3), 128, np.uint8),
                     np.full(text, self.config.prompt.bos, np.int64),
                     np.zeros(self.config.state, np.float32) if self.config.state else None)

    # --- inputs --------------------------------------------------------------------------------

    def prepare(self, frame: Frame, bucket: int) -> None:
        """Write all inputs of the captured work."""
        self.fill(frame, bucket)

    def check(self, frame: Frame) -> None:
        """Raises ValueError with one line unless the frame fits the buffers."""
        wanted = self.inputs.host['images'].shape
        if frame.images.shape != wanted:
            raise ValueError(f'images: {list(frame.images.shape)}: the buffers were made for '
                             f'{list(wanted)}; use images of that size')
        if self.config.state and frame.state is None:
            raise ValueError(f'state: missing: the policy takes {self.config.state} values')

    def fill(self, frame: Frame, bucket: int, slot: int = 0) -> int:
        """Write a frame into the staging block; returns its length in tokens."""
        self.check(frame)
        host = self.inputs.host
        host['images'][:] = frame.images
        text = len(frame.ids)
        host['ids'][:text] = frame.ids
        host['ids'][text:] = self.config.prompt.pad
        if frame.state is not None:
            host['state'][:] = frame.state
        length, rows = self.config.prefix_tokens(text), self.config.prefix_tokens(bucket)
        host['positions'][:length] = np.arange(length)
        host['positions'][length:rows] = -1
        host['slots'][:rows] = slot
        host['wanted'][0] = length - 1
        host['steps'][:] = length + np.arange(self.count)
        return length

    def rows(self, count: int) -> Rows:
        """Where the first rows of a pass stand."""
        device = self.inputs.device
        return Rows(device['positions'][:count], device['slots'][:count])

    def see(self) -> Tensor:
        """Tokens [n P, W] of the images."""
        return self.vision(self.transform(self.inputs.device['images']))

    def embeddings(self, seen: Tensor, bucket: int) -> Tensor:
        """Rows [prefix, W] of the prompt with what was seen."""
        device = self.inputs.device
        text = self.llama.embed(device['ids'][:bucket])
        parts = [text[:1], seen]
        if self._projector is not None:
            parts.append(self._projector(device['state'][None].to(self.dtype))[0])
        return torch.cat([*parts, text[1:]])

    def wait(self) -> None:
        """Until the device is done."""
        if self.device.type == 'cuda':
            torch.cuda.current_stream(self.device).synchronize()

    def answer(self) -> NDArray[np.int64]:
        """The downloaded action ids [K]."""
        ids: NDArray[np.int64] = self.outputs.host['ids'].copy()
        return ids

    # --- told tokens, stages -------------------------------------------------------------------

    @torch.inference_mode()
    def teacher_logits(self, frame: Frame, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        bucket = self.bucket(len(frame.ids))
        length = self.fill(frame, bucket)
        self.inputs.upload()
        prefix = self.config.prefix_tokens(bucket)
        x = self.embeddings(self.see(), bucket)
        at = self.rows(prefix)
        logits = [self.llama.many(x, at, prefix, self.inputs.device['wanted'][:1])]
        for number, told in enumerate(ids[:-1].tolist()):
            row = self.llama.embed(torch.tensor([told], device=self.device)).clone()
            at = Rows(torch.tensor([length + number], dtype=torch.int32, device=self.device),
                      torch.zeros(1, dtype=torch.int32, device=self.device))
            logits.append(self.llama.one(row, at))
        self.reset()
        return torch.cat(logits).float().cpu().numpy()

    def stages(self) -> Mapping[str, float]:
        bucket = min(self.options.buckets)
        self.fill(self.blank(bucket), bucket)
        self.inputs.upload()
        prefix = self.config.prefix_tokens(bucket)
        with torch.inference_mode():
            x = self.embeddings(self.see(), bucket)
            row = self.llama.embed(self.inputs.device['ids'][:1]).clone()
        at = Rows(self.inputs.device['steps'][:1], self.inputs.device['slots'][:1])

        def see() -> None:
            self.see()

        def prefill() -> None:
            self.llama.many(x.clone(), self.rows(prefix), prefix, self.inputs.device['wanted'][:1])

        def decode() -> None:
            self.llama.one(row.clone(), at)

        found = {name: Captured(work, self.device).milliseconds(self.device)
                 for name, work in (('vision_ms', see), ('prefill_ms', prefill),
                                    ('decode_ms_per_token', decode))}
        self.reset()
        return found


def check_buckets(buckets: Sequence[int]) -> tuple[int, ...]:
    """Sorted. Raises ValueError with one line."""
    for size in buckets:
        if not 8 <= size <= 2048:
            raise ValueError(f'buckets: {size}: allowed is 8 to 2048 tokens')
    return tuple(sorted(set(buckets)))
