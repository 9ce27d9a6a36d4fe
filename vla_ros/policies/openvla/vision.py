"""The two vision towers and the projector, with the parameter names of the checkpoint.

Source: DINOv2 with registers (arXiv 2309.16588), SigLIP (arXiv 2303.15343), as timm stores them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_ros.policies.openvla.config import OpenVlaConfig, Tower, Vision


class Attention(nn.Module):
    """Every token looks at every token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:  # [B, T, W]
        b, t, w = tokens.shape
        q, k, v = self.qkv(tokens).view(b, t, 3, self.heads, w // self.heads).permute(
            2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v)
        found: Tensor = self.proj(seen.transpose(1, 2).reshape(b, t, w))
        return found


class Mlp(nn.Module):
    """Two layers with the exact (erf) GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.fc2(functional.gelu(self.fc1(tokens)))
        return made


class LayerScale(nn.Module):
    """A factor for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.full((width,), 1e-1))

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens * self.scale_factor


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(tower.width, eps=tower.epsilon)
        self.attn = Attention(tower.width, tower.heads)
        self.norm2 = nn.LayerNorm(tower.width, eps=tower.epsilon)
        self.mlp = Mlp(tower.width, tower.hidden)
        self.ls1 = LayerScale(tower.width) if tower.layer_scale else None
        self.ls2 = LayerScale(tower.width) if tower.layer_scale else None

    def forward(self, tokens: Tensor) -> Tensor:
        seen, ls1, ls2 = self.attn(self.norm1(tokens)), self.ls1, self.ls2
        tokens = tokens + (seen if ls1 is None else ls1(seen))
        made = self.mlp(self.norm2(tokens))
        added: Tensor = tokens + (made if ls2 is None else ls2(made))
        return added


class PatchEmbed(nn.Module):
    """Patches of an image as tokens, row by row."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, patch)

    def forward(self, pixels: Tensor) -> Tensor:  # [B, 3, S, S] -> [B, P, W]
        tokens: Tensor = self.proj(pixels)
        return tokens.flatten(2).transpose(1, 2)


class VisionTower(nn.Module):
    """The live part of a tower: no last block, no final norm, no pooling."""

    def __init__(self, tower: Tower, vision: Vision) -> None:
        super().__init__()
        self.tower = tower
        self.patch_embed = PatchEmbed(tower.width, vision.patch)
        self.pos_embed = nn.Parameter(torch.zeros(1, vision.patches, tower.width))
        if tower.class_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, tower.width))
        if tower.registers:
            self.reg_token = nn.Parameter(torch.zeros(1, tower.registers, tower.width))
        self.blocks = nn.ModuleList(Block(tower) for _ in range(tower.blocks))

    def forward(self, pixels: Tensor) -> Tensor:
        """Features [B, P, W] of normalized images [B, 3, S, S]."""
        tokens = self.tokens(pixels)
        for block in cast('Iterable[Block]', self.blocks):
            tokens = block(tokens)
        return tokens[:, self.tower.prefix:]

    def tokens(self, pixels: Tensor) -> Tensor:
        """What enters the first block: class token, registers, patches with their positions."""
        patches = self.patch_embed(pixels) + self.pos_embed
        before = [getattr(self, name).expand(len(patches), -1, -1)
                  for name, there in (('cls_token', self.tower.class_token),
                                      ('reg_token', self.tower.registers)) if there]
        return torch.cat([*before, patches], 1)


class VisionBackbone(nn.Module):
    """Both towers, image by image."""

    def __init__(self, vision: Vision) -> None:
        super().__init__()
        self.images = vision.images
        self.featurizer = VisionTower(vision.dino, vision)
        self.fused_featurizer = VisionTower(vision.siglip, vision)

    def forward(self, pixels: Tensor) -> Tensor:
        """Features [B, n * P, W] of [B, 6n, S, S]: six channels an image, DINOv2's first."""
        b, _, *size = pixels.shape
        each = pixels.view(b * self.images, 6, *size)
        features = torch.cat([self.featurizer(each[:, :3]), self.fused_featurizer(each[:, 3:])], 2)
        return features.reshape(b, -1, features.shape[-1])


class Projector(nn.Module):
    """From the features of a patch to a token of the language model."""

    def __init__(self, config: OpenVlaConfig) -> None:
        super().__init__()
        width = config.llama.width
        self.fc1 = nn.Linear(config.vision.width, config.projector)
        self.fc2 = nn.Linear(config.projector, width)
        self.fc3 = nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        made: Tensor = self.fc3(functional.gelu(self.fc2(functional.gelu(self.fc1(features)))))
        return made
