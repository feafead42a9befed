"""Heads: the last projection of each tower, into the space that pictures and captions share."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from open_clip.hf_model import HFTextEncoder
from open_clip.timm_model import TimmModel
from torch import Tensor, nn


class Standardise(nn.Module):
    """(x − mean) / std with fixed statistics: tower outputs differ in scale by orders of magnitude."""

    mean: Tensor
    std: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, width] → [B, width]."""
        return (x - self.mean) / self.std

    def fit(self, x: Tensor) -> None:
        """Take the statistics of the rows of x [N, width]."""
        self.mean.copy_(x.mean(0))
        self.std.copy_(x.std(0).clamp_min(1e-6))


class SkipHead(nn.Module):
    """[B, width] → [B, dim]: a linear map plus one hidden layer, both of standardised inputs.

    The linear path learns fast from few pairs, the hidden layer adds what it cannot say.
    """

    def __init__(self, width: int, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.standardise = Standardise(width)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, dim, bias=False)
        self.hidden = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """[B, width] → [B, dim]."""
        x = self.dropout(self.standardise(x))
        bent = self.out(self.dropout(nn.functional.gelu(self.hidden(x))))
        embedding: Tensor = bent + self.linear(x)
        return embedding


@dataclass(frozen=True)
class HeadSlot:
    """Where a tower keeps its head: an attribute that holds a matrix (x @ it) or a module."""

    tower: nn.Module
    attribute: str

    @property
    def head(self) -> Any:
        """The nn.Parameter or nn.Module in the slot."""
        return getattr(self.tower, self.attribute)

    def apply(self, x: Tensor) -> Tensor:
        """[B, width] → [B, dim]."""
        head = self.head
        return x @ head if isinstance(head, nn.Parameter) else head(x)

    @contextmanager
    def removed(self) -> Iterator[None]:
        """Within the block the tower returns what its head would be given."""
        head = self.head
        setattr(self.tower, self.attribute, nn.Identity() if isinstance(head, nn.Module) else None)
        try:
            yield
        finally:
            setattr(self.tower, self.attribute, head)


def headless(tower: nn.Module) -> nn.Module:
    """A tower with the same modules and weights that returns what its head would be given; the tower stays as it is."""
    made = copy.copy(tower)
    made.__dict__.update(_modules=dict(tower._modules), _parameters=dict(tower._parameters))
    slot = head_slot(tower)
    if slot is not None:
        setattr(made, slot.attribute, nn.Identity() if isinstance(slot.head, nn.Module) else None)
    return made


def head_slot(tower: nn.Module) -> HeadSlot | None:
    """The slot of an open_clip tower's head; None where the tower has no head of its own."""
    if isinstance(tower, TimmModel):
        return HeadSlot(tower, "head") if any(True for _ in tower.head.parameters()) else None
    if isinstance(tower, HFTextEncoder):
        return HeadSlot(tower, "proj") if not isinstance(tower.proj, nn.Identity) else None
    for attribute in ("proj", "text_projection"):  # VisionTransformer, TextTransformer
        if isinstance(getattr(tower, attribute, None), (nn.Parameter, nn.Linear)):
            return HeadSlot(tower, attribute)
    return None
