"""The losses: pure functions of embeddings, and one module for other people's training loops.

OBJECTIVES is the one place for the next. Every objective takes image, text and logit_scale, and these keywords:

all_image, all_text: [N, D] the columns, where they are more than the rows (other ranks); labels: [B] own column.
groups, all_groups: [B], [N]; equal numbers are never each other's negatives.

Rows of one process averaged over processes of equal share give the loss of the whole batch. All of them compute in
float32 outside autocast: bfloat16 near 0.9 is no finer than 0.004, which s·γ = 50 makes 0.2 in the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Similarity = Literal["live", "frozen", "centred"]


def info_nce(
    image: Tensor, text: Tensor, logit_scale: Tensor, *, all_image: Tensor | None = None,
    all_text: Tensor | None = None, labels: Tensor | None = None, groups: Tensor | None = None,
    all_groups: Tensor | None = None,
) -> Tensor:
    """Symmetric cross-entropy of picking the pair's own partner among all of the batch.

    L = ½[CE(sS) + CE(sSᵀ)];  S = image·textᵀ.

    image, text: [B, D] unit rows, row i of both is a pair; logit_scale: [] the s above, not its log.
    Returns [] nats, the mean of both directions.  Source: Radford et al. 2021, arXiv:2103.00020, Fig. 3.
    """
    with torch.autocast(image.device.type, enabled=False):
        pairs = _pairs(image, text, all_image, all_text, labels, groups, all_groups)
        return _cross_entropy(pairs, _float(logit_scale))


def hn_clip(
    image: Tensor, text: Tensor, logit_scale: Tensor, *, gamma: float = 0.5, similarity: Similarity = "live",
    guard: float | None = None, reference: Tensor | None = None, all_reference: Tensor | None = None,
    all_image: Tensor | None = None, all_text: Tensor | None = None, labels: Tensor | None = None,
    groups: Tensor | None = None, all_groups: Tensor | None = None,
) -> Tensor:
    """InfoNCE in which a negative must be beaten by a margin that grows with its caption's similarity.

    L = ½[CE(s(S + γḠ)) + CE(s(S + γḠ)ᵀ)];  S = image·textᵀ;  Ḡ = text·textᵀ, no gradient, zero at the labels.

    image, text: [B, D] unit rows, row i of both is a pair; logit_scale: [] the s above, not its log.
    gamma: cosine of margin per cosine of caption similarity.
    similarity: ``live``, Ḡ from text as it is; ``frozen``, from reference, the captions' unit rows [B, D′] by the
    text tower before training (all_reference [N, D′] for the columns); ``centred``, live less its mean over all pairs.
    guard: a caption at least this similar (cosine) is a false negative and becomes no negative at all.
    Returns [] nats, the mean of both directions.  Source: Liu et al. 2026, arXiv:2608.18521, Eq. 2 and Table 3c.
    """
    with torch.autocast(image.device.type, enabled=False):
        pairs = _pairs(image, text, all_image, all_text, labels, groups, all_groups)
        same = _caption_similarity(pairs, similarity, reference, all_reference)
        if guard is not None:
            pairs.excluded |= (same >= guard) & ~pairs.own
        if similarity == "centred":
            same = same - _mean_similarity(pairs.all_text)
        return _cross_entropy(pairs, _float(logit_scale), margin=gamma * same)


def constant_margin(
    image: Tensor, text: Tensor, logit_scale: Tensor, *, gamma: float = 0.5, margin: float | None = None,
    all_image: Tensor | None = None, all_text: Tensor | None = None, labels: Tensor | None = None,
    groups: Tensor | None = None, all_groups: Tensor | None = None,
) -> Tensor:
    """InfoNCE in which every negative must be beaten by the same margin: the control for hn_clip.

    L = ½[CE(s(S + m)) + CE(s(S + m)ᵀ)], m at the negatives only.

    image, text: [B, D] unit rows, row i of both is a pair; logit_scale: [] the s above, not its log.
    margin: m in cosine; None takes γ times the mean similarity of the batch's different captions, without gradient.
    Returns [] nats, the mean of both directions.  Source: Wang et al. 2018 (CosFace), arXiv:1801.09414, Eq. 4.
    """
    with torch.autocast(image.device.type, enabled=False):
        pairs = _pairs(image, text, all_image, all_text, labels, groups, all_groups)
        value = gamma * _mean_similarity(pairs.all_text) if margin is None else pairs.text.new_tensor(margin)
        return _cross_entropy(pairs, _float(logit_scale), margin=value.expand(pairs.own.shape))


def label_smoothing(
    image: Tensor, text: Tensor, logit_scale: Tensor, *, smoothing: float = 0.1, all_image: Tensor | None = None,
    all_text: Tensor | None = None, labels: Tensor | None = None, groups: Tensor | None = None,
    all_groups: Tensor | None = None,
) -> Tensor:
    """InfoNCE whose target leaves a share of the probability to all candidates alike.

    L = ½[CE(sS, q) + CE(sSᵀ, q)];  q = (1 − ε) at the label + ε/K at each of the K candidates.

    image, text: [B, D] unit rows, row i of both is a pair; logit_scale: [] the s above, not its log.
    smoothing: ε. Candidates are all columns but those that the groups exclude.
    Returns [] nats, the mean of both directions.  Source: Szegedy et al. 2016, arXiv:1512.00567, §7.
    """
    with torch.autocast(image.device.type, enabled=False):
        pairs = _pairs(image, text, all_image, all_text, labels, groups, all_groups)
        return _cross_entropy(pairs, _float(logit_scale), smoothing=smoothing)


def siglip(
    image: Tensor, text: Tensor, logit_scale: Tensor, *, logit_bias: Tensor, gamma: float = 0.0,
    all_image: Tensor | None = None, all_text: Tensor | None = None, labels: Tensor | None = None,
    groups: Tensor | None = None, all_groups: Tensor | None = None,
) -> Tensor:
    """Every pair of the batch by itself: is this the picture's caption or not?

    L = −(1/B) Σᵢⱼ ln σ(zᵢⱼ(s(S + γḠ) + b)ᵢⱼ);  z = 1 at the labels, −1 elsewhere; Ḡ as in :func:`hn_clip`.

    image, text: [B, D] unit rows, row i of both is a pair; logit_scale: [] the s above, not its log;
    logit_bias: [] the b above. gamma: cosine of margin per cosine of caption similarity; 0 is plain SigLIP.
    Returns [] nats a picture.  Source: Zhai et al. 2023, arXiv:2303.15343, Eq. 1.
    """
    with torch.autocast(image.device.type, enabled=False):
        pairs = _pairs(image, text, all_image, all_text, labels, groups, all_groups)
        logits = pairs.image @ pairs.all_text.T
        if gamma:
            logits = logits + gamma * _caption_similarity(pairs, "live", None, None).masked_fill(pairs.own, 0.0)
        logits = _float(logit_scale) * logits + _float(logit_bias)
        losses = -F.logsigmoid(torch.where(pairs.own, logits, -logits))
        return losses.masked_fill(pairs.excluded, 0.0).sum(1).mean()


def late_interaction(
    patches: Tensor, words: Tensor, word_mask: Tensor, logit_scale: Tensor, *, groups: Tensor | None = None,
    block_scores: int = 1 << 22,
) -> Tensor:
    """InfoNCE on scores that match every patch with its best word and every word with its best patch.

    L = ½[CE(sA) + CE(sBᵀ)];  Aᵢⱼ = meanₚ maxₜ pᵢₚ·wⱼₜ;  Bᵢⱼ = meanₜ maxₚ pᵢₚ·wⱼₜ, over the caption's own words t.

    patches: [B, P, D], words: [B, T, D] unit rows; word_mask: [B, T], False at padding; logit_scale: [] s, not its log.
    groups: [B]; equal numbers are never each other's negatives. block_scores: how many of the B²·P·T scores are in
    memory at once; they are computed again in the backward pass.
    Returns [] nats.  Source: Yao et al. 2022 (FILIP), arXiv:2111.07783, Eq. 3-6; in HN-CLIP the term L_tok.
    """
    with torch.autocast(patches.device.type, enabled=False):
        patches, words, scale = _float(patches), _float(words), _float(logit_scale)
        size = max(1, block_scores // (patches.shape[0] * patches.shape[1] * words.shape[1]))
        blocks = [
            checkpoint(_token_scores, patches, words[at:at + size], word_mask[at:at + size], use_reentrant=False)
            for at in range(0, len(words), size)
        ]
        by_patch, by_word = (torch.cat(parts, dim=1) for parts in zip(*blocks, strict=True))
        labels = torch.arange(len(patches), device=patches.device)
        image_to_text, text_to_image = scale * by_patch, scale * by_word.T
        if groups is not None:
            excluded = (groups[:, None] == groups[None, :]) & (labels[:, None] != labels[None, :])
            image_to_text = image_to_text.masked_fill(excluded, -torch.inf)
            text_to_image = text_to_image.masked_fill(excluded, -torch.inf)
        return (F.cross_entropy(image_to_text, labels) + F.cross_entropy(text_to_image, labels)) / 2


def _token_scores(patches: Tensor, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """A and B of :func:`late_interaction` for all pictures and some captions, [B, b] each."""
    scores = torch.einsum("ipd,jtd->ijpt", patches, words)
    by_patch = scores.masked_fill(~mask[None, :, None, :], -torch.inf).amax(dim=3).mean(dim=2)
    best = scores.amax(dim=2).masked_fill(~mask[None], 0.0)
    return by_patch, best.sum(dim=2) / mask.sum(dim=1).clamp_min(1)


@dataclass(frozen=True)
class Objective:
    """A loss, and what it takes beside the common keywords.

    settings: keys of the configuration, named as there. needs: ``reference`` (embeddings of the captions before
    training, where similarity is frozen) or ``logit_bias`` (a model that has one).
    """

    loss: Callable[..., Tensor]
    settings: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


OBJECTIVES: Mapping[str, Objective] = {
    "info_nce": Objective(info_nce),
    "hn_clip": Objective(hn_clip, ("gamma", "similarity", "guard"), ("reference",)),
    "constant_margin": Objective(constant_margin, ("gamma", "margin")),
    "label_smoothing": Objective(label_smoothing, ("smoothing",)),
    "siglip": Objective(siglip, ("gamma",), ("logit_bias",)),
}


class HNClipLoss(nn.Module):
    """:func:`hn_clip` with the constructor and the call of open_clip's ``ClipLoss``, to take its place in any loop.

    gamma: as in hn_clip. The others are ClipLoss's: with local_loss each process scores its own rows, without it
    every process scores all; gather_with_grad lets gradients through the gathering; cache_labels is accepted and
    changes nothing (labels are made on the device in no time).
    """

    def __init__(
        self, local_loss: bool = False, gather_with_grad: bool = False, cache_labels: bool = False, rank: int = 0,
        world_size: int = 1, use_horovod: bool = False, *, gamma: float = 0.5, guard: float | None = None,
    ) -> None:
        super().__init__()
        if use_horovod:
            raise ValueError("HNClipLoss gathers through torch.distributed; horovod is not supported")
        del cache_labels
        self.local_loss, self.gather_with_grad = local_loss, gather_with_grad
        self.rank, self.world_size = rank, world_size
        self.gamma, self.guard = gamma, guard

    def forward(
        self, image_features: Tensor, text_features: Tensor, logit_scale: Tensor, logit_bias: Tensor | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """image_features, text_features [B, D] unit rows; logit_scale [] already exponentiated → [] nats.

        logit_bias is accepted for the signature: a constant changes no softmax.
        """
        del logit_bias
        loss = hn_clip(*self._rows(image_features, text_features), logit_scale, gamma=self.gamma, guard=self.guard,
                       **self._columns(image_features, text_features))
        return {"contrastive_loss": loss} if output_dict else loss

    def _rows(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        if self.world_size == 1 or self.local_loss:
            return image, text
        return self._gathered(image), self._gathered(text)

    def _columns(self, image: Tensor, text: Tensor) -> dict[str, Any]:
        if self.world_size == 1 or not self.local_loss:
            return {}
        labels = torch.arange(len(image), device=image.device) + self.rank * len(image)
        return {"all_image": self._gathered(image), "all_text": self._gathered(text), "labels": labels}

    def _gathered(self, rows: Tensor) -> Tensor:
        import torch.distributed.nn as with_grad
        from torch import distributed

        if self.gather_with_grad:
            return torch.cat(with_grad.all_gather(rows))  # type: ignore[no-untyped-call]
        parts = [torch.zeros_like(rows) for _ in range(self.world_size)]
        distributed.all_gather(parts, rows)
        if not self.local_loss:
            parts[self.rank] = rows  # as ClipLoss does: gradients at least for the own rows
        return torch.cat(parts)


@dataclass
class _Pairs:
    """The common arguments, made ready: float32 rows and columns, and what is excluded [B, N]."""

    image: Tensor
    text: Tensor
    all_image: Tensor
    all_text: Tensor
    labels: Tensor
    own: Tensor
    excluded: Tensor


def _pairs(
    image: Tensor, text: Tensor, all_image: Tensor | None, all_text: Tensor | None, labels: Tensor | None,
    groups: Tensor | None, all_groups: Tensor | None,
) -> _Pairs:
    image, text = _float(image), _float(text)
    columns_image = image if all_image is None else _float(all_image)
    columns_text = text if all_text is None else _float(all_text)
    if labels is None:
        labels = torch.arange(len(image), device=image.device)
    own = F.one_hot(labels, len(columns_text)).bool()
    excluded = torch.zeros_like(own)
    if groups is not None:
        excluded = (groups[:, None] == (groups if all_groups is None else all_groups)[None, :]) & ~own
    return _Pairs(image, text, columns_image, columns_text, labels, own, excluded)


def _cross_entropy(pairs: _Pairs, scale: Tensor, *, margin: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
    """½[CE(s(S + margin)) + CE(s(Sᵀ + margin))], the margin [B, N] at the negatives, no probability at the excluded.

    One margin serves both directions, because caption j stands for picture j.
    """
    losses = []
    extra = None if margin is None else scale * margin.detach().masked_fill(pairs.own, 0.0)
    for rows, columns in ((pairs.image, pairs.all_text), (pairs.text, pairs.all_image)):
        logits = scale * (rows @ columns.T)
        if extra is not None:
            logits = logits + extra
        # after the scale, whose gradient would otherwise be 0 · ∞
        logits = logits.masked_fill(pairs.excluded, -torch.inf)
        loss = F.cross_entropy(logits, pairs.labels)
        if smoothing:
            spread = -F.log_softmax(logits, dim=1).masked_fill(pairs.excluded, 0.0)
            candidates = (~pairs.excluded).sum(1)
            loss = (1 - smoothing) * loss + smoothing * (spread.sum(1) / candidates).mean()
        losses.append(loss)
    return (losses[0] + losses[1]) / 2


def _caption_similarity(pairs: _Pairs, similarity: Similarity, reference: Tensor | None, all_reference: Tensor | None
                        ) -> Tensor:
    """Ḡ [B, N] with its diagonal, without gradient."""
    if similarity != "frozen":
        return (pairs.text @ pairs.all_text.T).detach()
    if reference is None:
        raise ValueError("similarity 'frozen' needs reference: the captions' embeddings before training")
    columns = reference if all_reference is None else all_reference
    return (_float(reference) @ _float(columns).T).detach()


def _mean_similarity(text: Tensor) -> Tensor:
    """Mean cosine of all pairs of different rows [N, D], without gradient: (|Σt|² − Σ|t|²) / N(N − 1)."""
    text = text.detach()
    count = len(text)
    return (text.sum(0).square().sum() - text.square().sum()) / max(1, count * (count - 1))


def _float(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
