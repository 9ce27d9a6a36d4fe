"""OpenVLA as one module; the names of its parameters are the keys of the checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_ros.policies.openvla.config import OpenVlaConfig
from vla_ros.policies.openvla.llama import LanguageModel
from vla_ros.policies.openvla.vision import Projector, VisionBackbone


class ProprioProjector(nn.Module):
    """The normalized state [B, S] as one token [B, 1, W]."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, state: Tensor) -> Tensor:
        made: Tensor = self.fc2(functional.gelu(self.fc1(state)))
        return made[:, None]


class OpenVla(nn.Module):
    """Vision, projector, language model, and the projector of the state where there is one."""

    def __init__(self, config: OpenVlaConfig) -> None:
        super().__init__()
        self.config = config
        self.vision_backbone = VisionBackbone(config.vision)
        self.projector = Projector(config)
        self.language_model = LanguageModel(config.llama)
        if config.state:
            self.proprio_projector = ProprioProjector(config.state, config.llama.width)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.language_model.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.language_model.lm_head.weight.dtype

    def see(self, pixels: Tensor) -> Tensor:
        """Tokens [B, n * P, W] of normalized images [B, 6n, S, S]."""
        tokens: Tensor = self.projector(self.vision_backbone(pixels))
        return tokens

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings [B, L, W] of ids [B, L]."""
        embeddings: Tensor = self.language_model.model.embed_tokens(ids)
        return embeddings

    def prefix(self, pixels: Tensor, ids: Tensor, state: Tensor | None = None) -> Tensor:
        """What comes before the actions: [BOS] [patches] [state] [rest of the prompt].

        `pixels` [B, 6n, S, S], `ids` int64 [B, L] with BOS, `state` [B, S] normalized.
        """
        text, parts = self.embed(ids), [self.see(pixels)]
        if self.config.state:
            if state is None:
                raise ValueError(f'state: missing: the policy takes {self.config.state} values')
            parts.append(self.proprio_projector(state))
        return torch.cat([text[:, :1], *parts, text[:, 1:]], 1)

    def action_logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., bins] of the action ids `first` to `top - 1` only (the cut head).

        Exact as long as the full argmax would be an action id too.
        """
        actions = self.config.actions
        return functional.linear(hidden, self.language_model.lm_head.weight[
            actions.first:actions.top])


def random_model(config: OpenVlaConfig, device: torch.device | str = 'cpu',
                 dtype: torch.dtype = torch.float32, seed: int = 0) -> OpenVla:
    """A model with drawn weights of a sensible size, made where it stays."""
    device = torch.device(device)
    with torch.device('meta'):
        model = OpenVla(config).to(dtype)
    model = model.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith(('norm.weight', 'norm1.weight', 'norm2.weight', 'layernorm.weight')):
                value.fill_(1.0)
            elif value.ndim < 2:
                value.normal_(0.0, 0.02, generator=generator)
            else:
                fan_in = value[0].numel() if value.ndim > 1 else 1
                size = 0.02 if 'embed' in name or 'token' in name else fan_in ** -0.5
                value.normal_(0.0, size, generator=generator)
    return model.eval()
