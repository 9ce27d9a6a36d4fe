"""OpenVLA-OFT: one pass in which every token sees every other, and all actions of a chunk.

Source: OpenVLA-OFT (arXiv 2502.19645). Sequence: [BOS] [patches of image 0, 1, ...] [state] [rest
of the prompt] [H A zeros] [stop]. The hidden states that become actions start one place early, at
the last token of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_ros.policies.openvla.config import OpenVlaConfig
from vla_ros.policies.openvla.model import OpenVla


class HeadBlock(nn.Module):
    """x + ReLU(Linear(LayerNorm(x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, hidden: Tensor) -> Tensor:
        made: Tensor = hidden + self.ffn(hidden)
        return made


class HeadMlp(nn.Module):
    """From the hidden states of one step, side by side, to its action."""

    def __init__(self, width: int, dimensions: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(width * dimensions)
        self.fc1 = nn.Linear(width * dimensions, width)
        self.mlp_resnet_blocks = nn.ModuleList(HeadBlock(width) for _ in range(2))
        self.layer_norm2 = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, dimensions)

    def forward(self, hidden: Tensor) -> Tensor:  # [..., A W] -> [..., A]
        made = functional.relu(self.fc1(self.layer_norm1(hidden)))
        for block in cast('Iterable[HeadBlock]', self.mlp_resnet_blocks):
            made = block(made)
        answer: Tensor = self.fc2(self.layer_norm2(made))
        return answer


class L1Head(nn.Module):
    """Normalized actions [B, H, A] of hidden states [B, H A, W]; names as in its files."""

    def __init__(self, config: OpenVlaConfig) -> None:
        super().__init__()
        self.horizon = config.actions.horizon
        self.model = HeadMlp(config.llama.width, config.actions.dimensions)

    def forward(self, hidden: Tensor) -> Tensor:
        made: Tensor = self.model(hidden.reshape(len(hidden), self.horizon, -1))
        return made


def sequence(model: OpenVla, pixels: Tensor, ids: Tensor, state: Tensor | None = None) -> Tensor:
    """Embeddings [B, T, W] of pixels [B, 6n, S, S], ids [B, L], state [B, S] normalized."""
    prefix = model.prefix(pixels, ids, state)
    stop = model.embed(ids.new_full((len(ids), 1), model.config.prompt.eos))
    zeros = prefix.new_zeros(len(ids), model.config.actions.tokens, prefix.shape[2])
    return torch.cat([prefix, zeros, stop], 1)


def action_rows(config: OpenVlaConfig, text: int) -> slice:
    """The rows of a sequence whose hidden states become actions, for a prompt of `text` ids."""
    first = config.prefix_tokens(text) - 1
    return slice(first, first + config.actions.tokens)


def predict(model: OpenVla, head: L1Head, pixels: Tensor, ids: Tensor,
            state: Tensor | None = None) -> Tensor:
    """Normalized actions [B, H, A], plainly; all prompts of the batch are equally long."""
    hidden = model.language_model(sequence(model, pixels, ids, state), causal=False)
    actions: Tensor = head(hidden[:, action_rows(model.config, ids.shape[1])])
    return actions


def random_head(config: OpenVlaConfig, device: torch.device | str = 'cpu',
                dtype: torch.dtype = torch.float32, seed: int = 0) -> L1Head:
    """A head with drawn weights of a sensible size, made where it stays."""
    device = torch.device(device)
    with torch.device('meta'):
        head = L1Head(config).to(dtype)
    head = head.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, value in head.named_parameters():
            if value.ndim > 1:
                value.normal_(0.0, value.shape[1] ** -0.5, generator=generator)
            else:
                norm = name.endswith('.0.weight') or 'norm' in name and name.endswith('weight')
                value.normal_(1.0 if norm else 0.0, 0.02, generator=generator)
    return head.eval()
