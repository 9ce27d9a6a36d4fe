"""Behaviour cloning of an OpenVLA policy: single frames, action tokens told one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from vla_ros.policies.edgevla.vision import waves
from vla_ros.policies.openvla import checkpoint
from vla_ros.policies.openvla.config import OpenVlaConfig, Statistics, small
from vla_ros.policies.openvla.llama import Cache
from vla_ros.policies.openvla.model import OpenVla
from vla_ros.policies.openvla.prompt import Prompts
from vla_ros.policies.openvla.tokenizer import SMALL_PROMPT, Tokenizer, build_tokenizer
from vla_ros.sim.arm import STATE_NAMES
from vla_ros.training.dataset import Dataset
from vla_ros.training.trainer import (
    CHATTY,
    PLAIN,
    Batches,
    Helpers,
    Recipe,
    Trainer,
    helper_losses,
    kept_out,
    stages,
    taken_over,
    variants,
)

DATA = 'sim_arm'        # name of the statistics
VOCABULARY = 512
LONGEST = 24            # ids of a prompt
# Steps of 0.1 s from the frame to the command that is learned. An action is there after about 0.06
# s and then takes 0.1 s; the gripper, which does not take time, is half way between.
LOOKAHEAD, GRIPPER_LOOKAHEAD = 2, 1
EXTREME = 1e-3          # share of the actions beyond each end of what the bins cover
LEAST_RANGE = 0.05      # rad: joints that hardly move do not spread over all bins
MARGIN = 0.05           # of the state, beyond what was recorded
SMOOTHING = 1.5         # bins: neighbours of the right one are nearly right
OFFSET_WEIGHT, OFFSET_BEND = 1.0, 0.05
MIXED = 4               # datasets in one batch
# What the policy is told of its own earlier tokens is not quite true in training, as it will be
# later: off by some bins, now and then by anything.
TOLD_OFF, TOLD_WRONG = 2.0, 0.05
# The arm and its cameras are the same on both sides, so that half of the frames are learned as if
# seen in a mirror. What changes its sign there, and the words that change places.
MIRRORED = 0.5
SIDES = (-1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0)
WORDS = {'left': 'right', 'right': 'left'}


def make_config(dataset: Dataset) -> OpenVlaConfig:
    """The sizes of the policy that is shipped, with the ranges of this dataset."""
    return replace(small(VOCABULARY, SMALL_PROMPT, STATE_NAMES),
                   statistics={DATA: statistics(dataset)})


def statistics(dataset: Dataset) -> Statistics:
    """Ranges of actions and state. Joint ranges are even, so that one bin means: no motion."""
    actions, valid = labels(dataset)
    most = np.abs(np.quantile(actions[valid][:, :6], (EXTREME, 1.0 - EXTREME), axis=0)).max(axis=0)
    most = np.maximum(most, LEAST_RANGE)
    state = np.asarray(dataset.arrays['state'], np.float64).reshape(-1, 7)
    low, high = np.quantile(state, (EXTREME, 1.0 - EXTREME), axis=0)
    turned = np.array(SIDES) < 0.0  # as far to the left as to the right
    most_state = np.maximum(np.abs(low), np.abs(high))
    low, high = np.where(turned, -most_state, low), np.where(turned, most_state, high)
    wider = MARGIN * np.maximum(high - low, np.r_[np.full(6, 2.0 * LEAST_RANGE), 0.01])
    low, high = low - wider, high + wider
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    half = np.maximum(half, np.r_[np.full(6, LEAST_RANGE), 0.01])
    return Statistics(low=(*(-most).tolist(), 0.0), high=(*most.tolist(), 1.0),
                      mask=(True,) * 7, state_low=tuple((middle - half).tolist()),
                      state_high=tuple((middle + half).tolist()))


def labels(dataset: Dataset) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Actions [E, F, A, 7] in the units of the robot, and where there are any [E, F, A].

    Offsets in rad from the measured joints to the command LOOKAHEAD later; gripper 0..1. One for
    each sentence that the expert was asked about; without those what it did, where it did.
    """
    told = dataset.arrays
    state = np.asarray(told['state'], np.float64)
    if 'advice' in told:
        targets = np.asarray(told['advice'], np.float64)
        valid = np.ones(targets.shape[:3], np.bool_)
    else:
        targets = np.asarray(told['targets'], np.float64)[:, :, None]
        valid = np.all(told['valid'][:, :, :LOOKAHEAD + 1], axis=-1)[..., None]
    offsets = targets[..., LOOKAHEAD, :6] - state[:, :, None, :6]
    return np.concatenate([offsets, targets[..., GRIPPER_LOOKAHEAD, 6:]], axis=-1), valid


def mirrored(text: str) -> str:
    """The sentence that means the same in a mirror."""
    return ' '.join(WORDS.get(word, word) for word in text.split())


class Frames(Batches):
    """Frames in which the expert acts or is asked, each with all its sentences and their actions.

    Arrays of a part besides the recorded ones: `actions` [E, F, A, 7] normalized to -1..1 of the
    robot's range, `asked` [E, F, A] and `objects` [E, F, A, 6] of the same, `ids` int64
    [sentences, variants, LONGEST] padded, `lengths` of the same, `mirror` [sentences]: the sentence
    that means the same in a mirror. `state` [E, F, 7] normalized, `mirrored` the same in a mirror.
    All parts have the same A. Raises ValueError with one line.
    """

    def __init__(self, config: OpenVlaConfig, tokenizer: Tokenizer, recipe: Recipe) -> None:
        super().__init__(recipe.device)
        self._prompts = Prompts(config.prompt, tokenizer, LONGEST)
        self._pad, self._bins = config.prompt.pad, config.actions.bins
        self._statistics = config.statistics[DATA]

    def _prepared(self, dataset: Dataset) -> dict[str, Tensor]:
        said, told = self._statistics, dataset.arrays
        actions, valid = labels(dataset)
        kept = kept_out(len(dataset))
        if self._parts and self._parts[0]['asked'].shape[-1] != actions.shape[2]:
            raise ValueError(f'dataset: {actions.shape[2]} sentences a frame; the others have '
                             f'{self._parts[0]["asked"].shape[-1]}; record all with the same '
                             '--advised')
        episodes, frames = np.nonzero(valid.all(axis=-1))
        held = (episodes < kept) if len(dataset) > kept else np.ones(len(episodes), bool)
        rows = [[self._prompts.encode(text).ids for text in variants(
            sentence, np.random.default_rng([6, i]))] for i, sentence in enumerate(
                dataset.sentences)]
        ids = np.full((len(rows), PLAIN + CHATTY, LONGEST), self._pad, np.int64)
        for i, row in enumerate(rows):
            for j, each in enumerate(row):
                ids[i, j, :len(each)] = each
        lengths = np.array([[len(each) for each in row] for row in rows])
        at = np.stack([episodes, frames], axis=-1)
        state = np.asarray(told['state'])
        index = {sentence: i for i, sentence in enumerate(dataset.sentences)}
        several = 'advice' in told
        asked = np.array(told['advised'] if several else told['sentence'][..., None])
        objects = np.array(told['advised_objects'] if several else told['objects'][:, :, None])
        made = {'actions': _normalized(actions, said.low, said.high),
                'state': _normalized(state, said.state_low, said.state_high),
                'mirrored': _normalized(state * SIDES, said.state_low, said.state_high),
                'asked': asked, 'objects': objects,
                'mirror': np.array([index[mirrored(text)] for text in dataset.sentences]),
                'ids': ids, 'lengths': lengths, 'held_out': at[held],
                'kept': at[~held] if len(dataset) > kept else at}
        return {name: torch.from_numpy(value).to(self._device) for name, value in made.items()}

    def draw(self, rng: np.random.Generator, count: int, held_out: bool = False
             ) -> dict[str, Tensor]:
        """`count` frames of a few datasets, each with all that it was asked about."""
        pieces = [self._draw(rng, share, held_out) for share in
                  np.diff(np.linspace(0, count, min(MIXED, count) + 1).astype(int))]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}

    def _draw(self, rng: np.random.Generator, count: int, held_out: bool) -> dict[str, Tensor]:
        part = self._part(rng)
        places = part['held_out' if held_out and len(part['held_out']) else 'kept']
        drawn = torch.from_numpy(rng.integers(0, len(places), count)).to(self._device)
        rows, columns = places[drawn].unbind(-1)
        turned = torch.from_numpy(
            rng.random(count) < (0.0 if held_out else MIRRORED)).to(self._device)
        # A sequence of one frame, for what is written for sequences.
        batch = {'state': torch.where(turned[:, None], part['mirrored'][rows, columns],
                                      part['state'][rows, columns]),
                 'actions': part['actions'][rows, columns],
                 'objects': part['objects'][rows, columns],
                 'things': part['things'][rows, columns]}
        images = part['images'][rows, columns][:, None]
        batch['images'] = torch.where(turned.view(-1, 1, 1, 1, 1, 1), images.flip(-2), images)
        sides = torch.tensor(SIDES, device=self._device)
        across = torch.tensor((1.0, -1.0, 1.0), device=self._device)  # y
        for name, signs in (('actions', sides), ('objects', across.repeat(2)), ('things', across)):
            there = turned.view(-1, *[1] * (batch[name].ndim - 1))
            batch[name] = torch.where(there, batch[name] * signs, batch[name])
        sentence = part['asked'][rows, columns]
        sentence = torch.where(turned[:, None], part['mirror'][sentence], sentence)
        variant = torch.from_numpy(
            rng.integers(0, PLAIN + CHATTY, tuple(sentence.shape))).to(self._device)
        batch['ids'] = part['ids'][sentence, variant]
        batch['lengths'] = part['lengths'][sentence, variant]
        batch['told'] = batch['actions']
        if not held_out:
            size = batch['told'].shape
            off = rng.normal(0.0, TOLD_OFF * 2.0 / (self._bins - 1), size)
            off = np.where(rng.random(size) < TOLD_WRONG, rng.uniform(-2.0, 2.0, size), off)
            noise = torch.from_numpy(off.astype(np.float32)).to(self._device)
            batch['told'] = (batch['told'] + noise).clamp(-1.0, 1.0)
        return batch


class Told(nn.Module):
    """The model with its own past actions told: one causal pass for all action tokens.

    What comes before the sentence is seen once, however much is asked about it.
    """

    def __init__(self, model: OpenVla) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor, ids: Tensor, state: Tensor, at: Tensor
                ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of all ids [B, A, K, vocabulary], the hidden states [B, A, W] that begin them, and
        the visual tokens [B, V, W].

        `pixels` [B, 6n, S, S]; `ids` [B, A, L] are prompt, action ids but the last, padding, and
        all begin alike; `at` [B, A, K]: which of `ids` say the action ids, never the first.
        """
        model, (count, asked) = self.model, ids.shape[:2]
        begin = model.prefix(pixels, ids[:, 0, :1], state)
        seen: Cache = []
        model.language_model(begin, seen)
        for layer, (keys, values) in enumerate(seen):
            seen[layer] = (keys.repeat_interleave(asked, 0), values.repeat_interleave(asked, 0))
        hidden = model.language_model(model.embed(ids[..., 1:].flatten(0, 1)), seen)
        hidden = hidden.unflatten(0, (count, asked))
        found = hidden.gather(2, (at - 1)[..., None].expand(-1, -1, -1, hidden.shape[-1]))
        visual = begin[:, 1:1 + model.config.vision.patches * model.config.vision.images]
        return model.language_model.lm_head(found), found[:, :, 0], visual


class OpenVlaHelpers(Helpers):
    """As the others, and the action in plain numbers."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.offset = nn.Linear(width, 7)


class OpenVlaTrainer(Trainer):
    """Trains an OpenVLA; `tokenizer` goes into its checkpoint.

    `start`: a checkpoint to go on from; what it has in the same shape is taken over.
    """

    def __init__(self, batches: Frames, config: OpenVlaConfig, tokenizer: Tokenizer,
                 recipe: Recipe, start: Path | None = None) -> None:
        torch.manual_seed(recipe.seed)
        self.config, self._tokenizer = config, tokenizer
        model = OpenVla(config)
        initialize(model)
        if start is not None:
            taken_over(model, checkpoint.load(start, dtype=torch.float32).state_dict())
        super().__init__(batches, model, OpenVlaHelpers(config.llama.width), recipe,
                         () if start is None else stages(start))
        towers = config.vision.dino, config.vision.siglip
        self._mean, self._std = (torch.tensor(
            [getattr(tower, name) for tower in towers], device=self._device).view(1, 1, 6, 1, 1)
            for name in ('mean', 'std'))
        said = config.statistics[DATA]
        self._mrad = 500.0 * torch.tensor(
            np.subtract(said.high, said.low)[:6], dtype=torch.float32, device=self._device)

    def _as_network(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, OpenVla)
        return Told(model)

    def _inputs(self, images: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        actions, lengths = self.config.actions, batch['lengths']
        pixels = images[:, 0].permute(0, 1, 4, 2, 3).repeat(1, 1, 2, 1, 1)  # [B, n, 6, h, w]
        pixels = ((pixels - self._mean) / self._std).to(images.dtype).flatten(1, 2)
        told = actions.top - 1 - places(batch['told'], actions.bins)
        steps = torch.arange(actions.tokens, device=lengths.device)
        ids = functional.pad(batch['ids'], (0, actions.tokens - 1), value=self.config.prompt.pad)
        ids = ids.scatter(-1, lengths[..., None] + steps[:-1], told[..., :-1])
        return pixels, ids, batch['state'], lengths[..., None] - 1 + steps

    def _losses(self, output: Any, batch: Mapping[str, Tensor]
                ) -> tuple[Tensor, dict[str, Tensor]]:
        logits, readout, visual = output
        actions, wanted = self.config.actions, batch['actions']
        off = divergence(logits.float(), wanted, actions.first, actions.bins)  # [B, A, K]
        said = self._helpers.offset(readout).float()
        offset = functional.smooth_l1_loss(said, wanted, beta=OFFSET_BEND)
        objects, things = self._helpers(readout, visual)
        helped, parts = helper_losses(objects, things, batch)
        highest = logits[..., actions.first:actions.top].argmax(-1)
        found = _centers(actions.bins, logits.device)[
            (actions.bins - 1 - highest).clamp(max=actions.bins - 2)]
        missed = (found - wanted)[..., :6].abs() * self._mrad
        return off.mean() + OFFSET_WEIGHT * offset + helped, {
            'joints': off[..., :6].mean(), 'gripper': off[..., 6].mean(), 'offset': offset, **parts,
            'joints_mrad': missed.mean(),
            'gripper_wrong': ((found[..., 6] > 0) != (wanted[..., 6] > 0)).float().mean()}

    def _readout(self, output: Any) -> Tensor:
        readout: Tensor = output[1]
        return readout

    def _empty(self) -> nn.Module:
        return OpenVla(self.config)

    def _write(self, folder: Path, model: Any) -> None:
        checkpoint.save(folder, model, dtype=torch.bfloat16)
        self._tokenizer.save(folder)


def tokenizer_of(sentences: Sequence[str]) -> Tokenizer:
    """The tokenizer of a policy that is told these sentences."""
    return build_tokenizer(sentences, VOCABULARY)


def initialize(model: OpenVla) -> None:
    """Drawn weights from which training gets going; places in an image are known from the start."""
    depths = {'vision_backbone': model.config.vision.dino.blocks,
              'language_model': model.config.llama.layers}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight.flatten(1))
            if name.endswith(('attn.proj', 'mlp.fc2', 'o_proj', 'down_proj')):
                depth = depths[name.split('.')[0]]
                with torch.no_grad():
                    module.weight.mul_((2 * depth) ** -0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.3)
    side = model.config.vision.image // model.config.vision.patch
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith('scale_factor'):
                value.fill_(1.0)
            elif name.endswith('pos_embed'):
                value.copy_(0.5 * waves(side, side, value.shape[-1]))
            elif name.endswith('_token'):
                value.normal_(std=0.3)
        # Neighbouring bins mean nearly the same.
        actions, embedding = model.config.actions, model.language_model.model.embed_tokens.weight
        embedding[actions.first:actions.top] = 0.4 * waves(
            1, actions.bins, 2 * embedding.shape[1])[:, embedding.shape[1]:]


def divergence(logits: Tensor, wanted: Tensor, first: int, bins: int) -> Tensor:
    """Kullback-Leibler divergence [..., K] of what is said from what is wanted, a bell over bins.

    `logits` [..., K, vocabulary], `wanted` [..., K] in -1..1. All other ids are as wrong as can be.
    """
    away = (_centers(bins, logits.device) - wanted.clamp(-1.0, 1.0)[..., None]) * (bins - 1) / 2.0
    share = (-0.5 * (away / SMOOTHING).square()).softmax(-1)  # [..., K, bins - 1], lowest first
    # The highest id is the lowest bin; the lowest id stands for the same value as the next one.
    said = logits.log_softmax(-1)[..., first + 1:first + bins].flip(-1)
    return (share * (share.clamp_min(1e-12).log() - said)).sum(-1)


def places(wanted: Tensor, bins: int) -> Tensor:
    """The bin of each value in -1..1, int64, 0 the lowest."""
    return ((wanted + 1.0) * ((bins - 1) / 2.0)).floor().long().clamp(0, bins - 2)


def _centers(bins: int, device: torch.device) -> Tensor:
    return (2.0 * torch.arange(bins - 1, device=device) + 1.0) / (bins - 1) - 1.0


def _normalized(values: NDArray[Any], low: Sequence[float], high: Sequence[float]
                ) -> NDArray[np.float32]:
    lowest, highest = np.asarray(low), np.asarray(high)
    scaled = 2.0 * (values - lowest) / (highest - lowest) - 1.0
    return np.asarray(np.clip(scaled, -1.0, 1.0), np.float32)
