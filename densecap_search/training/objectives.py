"""The losses. Pure functions of embeddings; OBJECTIVES is the one place for the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


def info_nce(
    image: Tensor, text: Tensor, logit_scale: Tensor, *, all_image: Tensor | None = None,
    all_text: Tensor | None = None, labels: Tensor | None = None, groups: Tensor | None = None,
    all_groups: Tensor | None = None,
) -> Tensor:
    """Symmetric cross-entropy of picking the pair's own partner among all of the batch.

    L = ½[CE(sS) + CE(sSᵀ)];  S = image·textᵀ.

    image, text: [B, D] unit rows, row i of both is a pair; logit_scale: [] the s above, not its log.
    all_image, all_text: [N, D] the columns, where they are more than the rows (other ranks); labels: [B] own column.
    groups, all_groups: [B], [N]; equal numbers are never each other's negatives.
    Returns [] nats, the mean of both directions.  Source: Radford et al. 2021, arXiv:2103.00020, Fig. 3.
    """
    return _symmetric(image, text, logit_scale, 0.0, all_image, all_text, labels, groups, all_groups)


def hn_clip(
    image: Tensor, text: Tensor, logit_scale: Tensor, *, gamma: float = 0.5, all_image: Tensor | None = None,
    all_text: Tensor | None = None, labels: Tensor | None = None, groups: Tensor | None = None,
    all_groups: Tensor | None = None,
) -> Tensor:
    """InfoNCE in which a negative must be beaten by a margin that grows with its caption's similarity.

    L = ½[CE(s(S + γḠ)) + CE(s(S + γḠ)ᵀ)];  S = image·textᵀ;  Ḡ = text·textᵀ, no gradient, zero at the labels.

    image, text: [B, D] unit rows, row i of both is a pair; logit_scale: [] the s above, not its log.
    gamma: cosine of margin per cosine of caption similarity.
    all_image, all_text: [N, D] the columns, where they are more than the rows (other ranks); labels: [B] own column.
    groups, all_groups: [B], [N]; equal numbers are never each other's negatives.
    Returns [] nats, the mean of both directions.  Source: Liu et al. 2026, arXiv:2608.18521, Eq. 2.
    """
    return _symmetric(image, text, logit_scale, gamma, all_image, all_text, labels, groups, all_groups)


@dataclass(frozen=True)
class Objective:
    """A loss and the settings it takes, named as in the configuration."""

    loss: Callable[..., Tensor]
    settings: tuple[str, ...] = ()


OBJECTIVES: Mapping[str, Objective] = {
    "info_nce": Objective(info_nce),
    "hn_clip": Objective(hn_clip, ("gamma",)),
}


def _symmetric(
    image: Tensor, text: Tensor, logit_scale: Tensor, gamma: float, all_image: Tensor | None, all_text: Tensor | None,
    labels: Tensor | None, groups: Tensor | None, all_groups: Tensor | None,
) -> Tensor:
    """½[CE(s(S + γḠ)) + CE(s(Sᵀ + γḠ))], −∞ between different rows of one group.

    The same Ḡ serves both directions, because caption j stands for picture j. In float32 even under autocast:
    bfloat16 near 0.9 is no finer than 0.004, which s·γ = 50 makes 0.2 in the logits.
    """
    with torch.autocast(image.device.type, enabled=False):
        image, text, scale = _at_least_float32(image), _at_least_float32(text), _at_least_float32(logit_scale)
        columns_image = image if all_image is None else _at_least_float32(all_image)
        columns_text = text if all_text is None else _at_least_float32(all_text)
        if labels is None:
            labels = torch.arange(len(image), device=image.device)
        own = F.one_hot(labels, len(columns_text)).bool()
        image_to_text = scale * (image @ columns_text.T)
        text_to_image = scale * (text @ columns_image.T)
        if gamma:
            margin = scale * gamma * (text @ columns_text.T).detach().masked_fill(own, 0.0)
            image_to_text, text_to_image = image_to_text + margin, text_to_image + margin
        if groups is not None:
            same = groups[:, None] == (groups if all_groups is None else all_groups)[None, :]
            # after the scale, whose gradient would otherwise be 0 · ∞
            image_to_text = image_to_text.masked_fill(same & ~own, -torch.inf)
            text_to_image = text_to_image.masked_fill(same & ~own, -torch.inf)
        return (F.cross_entropy(image_to_text, labels) + F.cross_entropy(text_to_image, labels)) / 2


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
