"""What people run: the same policy from the parts of `transformers`, with its `generate`.

Random weights at the true shapes. As in the published code, the dead last block of each tower
runs too, and nothing is captured or compiled.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.policies.openvla.config import OpenVlaConfig, Tower
from vla_ros.tools.engine_rows import LEAD_IN, PERCENTILES, Memory, StageClock, Tell, one_line
from vla_ros.tools.measure import spread

if TYPE_CHECKING:
    from torch import Tensor

    from vla_ros.policies.openvla.backend import Frame

WHAT = 'transformers generate, eager, vision included'


def measure_transformers(config: OpenVlaConfig, frames: Sequence[Frame], actions: int,
                         device: str, precision: str, tell: Tell) -> dict[str, Any]:
    """The figures of transformers, or its error in one line."""
    figures: dict[str, Any] = {
        'what': WHAT, 'precision': precision, 'action_ms': dict.fromkeys(PERCENTILES),
        'actions_per_s': None}
    if not actions:
        return figures | {'error': 'left out: --baseline-actions 0'}
    if config.parallel:
        return figures | {'error': 'transformers has no parallel decoding'}
    tell(f'transformers {precision}: {actions} actions')
    memory = Memory(device)
    try:
        figures |= _measured(config, frames, actions, device, precision, memory, tell)
        tell(f'  {figures["action_ms"]["p50"]:.2f} ms p50')
    except Exception as error:  # whatever it is, the other rows are worth measuring
        figures['error'] = one_line(error)
        tell(f'  failed: {figures["error"]}')
    finally:
        memory.free()
    return figures


def _measured(config: OpenVlaConfig, frames: Sequence[Frame], actions: int, device: str,
              precision: str, memory: Memory, tell: Tell) -> dict[str, Any]:
    stages = StageClock(tell)
    stages('build')
    model = TransformersBaseline(config, device, precision)
    stages('first actions')
    times = []
    for number in range(LEAD_IN + actions):
        frame = frames[number % len(frames)]
        if number == LEAD_IN:
            stages.stop()
        begin = time.perf_counter()
        model.step(frame.images, frame.ids, frame.state)
        times.append((time.perf_counter() - begin) * 1e3)
    times = times[LEAD_IN:]
    return {'transformers': model.version, 'actions': len(times),
            'action_ms': spread(times, PERCENTILES),
            'actions_per_s': round(1e3 / float(np.mean(times)), 3),
            'warm_up_s': stages.seconds, **memory.peaks()}


class TransformersBaseline:
    """Dinov2WithRegisters, Siglip, a projector, Llama; `step` waits for the device.

    Raises ValueError with one line where transformers cannot be had or lacks the parts.
    """

    def __init__(self, config: OpenVlaConfig, device: str, precision: str, seed: int = 0) -> None:
        import torch
        self._torch = torch
        self._config, self._device = config, torch.device(device)
        self._dtype = {'bf16': torch.bfloat16, 'fp16': torch.float16,
                       'fp32': torch.float32}[precision]
        try:
            import transformers
            self.version = str(transformers.__version__)
            parts = _Parts(config, transformers)
        except (ImportError, AttributeError) as error:
            raise ValueError(f'transformers: {" ".join(str(error).split())}; install it to have '
                             'this row: pip install transformers') from error
        torch.manual_seed(seed)
        before = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)  # 7B in fp32 would need twice the memory on the way
        try:
            with self._device:
                self._model = parts.build()
        finally:
            torch.set_default_dtype(before)
        self._model.to(self._device, self._dtype).eval()
        towers = (config.vision.dino, config.vision.siglip)
        self._norms = [tuple(torch.tensor(values, device=self._device).view(1, 3, 1, 1)
                             for values in (tower.mean, tower.std)) for tower in towers]

    def vision(self, images: NDArray[np.uint8]) -> Tensor:
        """Visual tokens [1, n * P, W] of images uint8 [n, h, w, 3]."""
        torch, side = self._torch, self._config.vision.image
        pixels = torch.from_numpy(images).to(self._device).permute(0, 3, 1, 2).float() / 255.0
        pixels = torch.nn.functional.interpolate(pixels, (side, side), mode='bilinear',
                                                 antialias=True)
        seen = []
        for tower, (mean, std) in zip(self._model['towers'], self._norms, strict=True):
            hidden = tower(((pixels - mean) / std).to(self._dtype),
                           output_hidden_states=True).hidden_states[-2]
            seen.append(hidden[:, -self._config.vision.patches:])
        tokens: Tensor = self._model['projector'](torch.cat(seen, 2))
        return tokens.reshape(1, -1, tokens.shape[-1])

    def step(self, images: NDArray[np.uint8], ids: NDArray[np.int64],
             state: NDArray[np.float32] | None = None) -> NDArray[np.int64]:
        """The tokens [K] of an action: upload, vision, prefill, greedy decoding, download."""
        torch = self._torch
        with torch.inference_mode():
            parts = [self.vision(images)]
            if state is not None and self._config.state:
                given = torch.from_numpy(state).to(self._device, self._dtype)
                parts.append(self._model['state'](given[None])[:, None])
            llama = self._model['llama']
            text = llama.get_input_embeddings()(torch.from_numpy(ids).to(self._device)[None])
            prefix = torch.cat([text[:, :1], *parts, text[:, 1:]], 1)
            count = self._config.actions.tokens
            made: Tensor = llama.generate(
                inputs_embeds=prefix, max_new_tokens=count, min_new_tokens=count,
                do_sample=False, use_cache=True,
                attention_mask=torch.ones(prefix.shape[:2], dtype=torch.int64,
                                          device=self._device))
            return made[0, -count:].cpu().numpy()


class _Parts:
    """The classes, looked up before anything is built; what is missing is an AttributeError."""

    def __init__(self, config: OpenVlaConfig, transformers: Any) -> None:
        self._config = config
        self._library = transformers
        for name in ('Dinov2WithRegistersConfig', 'Dinov2WithRegistersModel', 'SiglipVisionConfig',
                     'SiglipVisionModel', 'LlamaConfig', 'LlamaForCausalLM'):
            getattr(transformers, name)

    def build(self) -> Any:
        """The modules, on torch's default device and dtype."""
        from torch import nn
        config, library = self._config, self._library
        vision, llama = config.vision, config.llama
        dino = library.Dinov2WithRegistersModel(library.Dinov2WithRegistersConfig(
            **_tower(vision.dino), mlp_ratio=vision.dino.hidden // vision.dino.width,
            image_size=vision.image, patch_size=vision.patch,
            num_register_tokens=vision.dino.registers))
        siglip = library.SiglipVisionModel(library.SiglipVisionConfig(
            **_tower(vision.siglip), intermediate_size=vision.siglip.hidden,
            image_size=vision.image, patch_size=vision.patch, vision_use_head=False))
        language = library.LlamaForCausalLM(library.LlamaConfig(
            vocab_size=llama.vocabulary, hidden_size=llama.width, intermediate_size=llama.hidden,
            num_hidden_layers=llama.layers, num_attention_heads=llama.heads,
            num_key_value_heads=llama.kv_heads, max_position_embeddings=llama.positions,
            rms_norm_eps=llama.epsilon, bos_token_id=config.prompt.bos,
            eos_token_id=config.prompt.eos, pad_token_id=config.prompt.pad))
        # Random weights may say "end" at any time, and an action has all its tokens.
        language.generation_config.eos_token_id = None
        projector = nn.Sequential(
            nn.Linear(vision.width, config.projector), nn.GELU(),
            nn.Linear(config.projector, llama.width), nn.GELU(),
            nn.Linear(llama.width, llama.width))
        model = nn.ModuleDict({'towers': nn.ModuleList([dino, siglip]), 'projector': projector,
                               'llama': language})
        if config.state:
            model['state'] = nn.Sequential(nn.Linear(config.state, llama.width), nn.GELU(),
                                           nn.Linear(llama.width, llama.width))
        return model


def _tower(tower: Tower) -> dict[str, Any]:
    return {'hidden_size': tower.width, 'num_hidden_layers': tower.depth,
            'num_attention_heads': tower.heads, 'layer_norm_eps': tower.epsilon}
