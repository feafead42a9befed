"""Pairs in batches: which rows come together, with which caption, and their pictures ahead of time.

An epoch is a function of (seed, epoch) alone, so that a resumed run sees what an uninterrupted one would.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from densecap_search.collection.records import Record, Skipped
from densecap_search.model.encoder import DualEncoder
from densecap_search.retrieval.embeddings import Array, ahead, read_pixels

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class Batch:
    """Pairs that are each other's negatives, except within a group.

    images: float32 [B, 3, H, W], or tower outputs [B, W]; tokens: int64 [B, L], or tower outputs [B, W];
    groups: int64 [B].
    """

    images: Tensor
    tokens: Tensor
    groups: Tensor


@dataclass(frozen=True)
class Plan:
    """The rows of each batch of an epoch and the caption of each row."""

    batches: tuple[Ints, ...]
    caption: Ints  # [rows] which of the record's captions


class Batches(Protocol):
    """Where the training loop gets its batches from."""

    @property
    def steps(self) -> int:
        """Batches in an epoch."""

    def epoch(self, number: int, start: int = 0) -> Generator[Batch, None, None]:
        """The batches of an epoch, from the given step on."""


def plan_epoch(caption_counts: Sequence[int], batch_size: int, seed: int, epoch: int) -> Plan:
    """Every pair once, shuffled, in batches as equal as can be and never larger than batch_size.

    Equal batches, because a small last one would have few negatives, and one of a single pair none.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(caption_counts))
    caption = np.array([generator.integers(count) for count in caption_counts], dtype=np.int64)
    return Plan(tuple(np.array_split(order, steps_per_epoch(len(order), batch_size))), caption)


def steps_per_epoch(pairs: int, batch_size: int) -> int:
    """Batches in an epoch; at least one."""
    return max(1, -(-pairs // batch_size))


@dataclass
class PixelBatches:
    """Batches of pictures and token numbers, for towers that train."""

    encoder: DualEncoder
    records: Sequence[Record]
    groups: Sequence[int]
    batch_size: int
    seed: int
    workers: int | None = None
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return steps_per_epoch(len(self.records), self.batch_size)

    def epoch(self, number: int, start: int = 0) -> Generator[Batch, None, None]:
        """Decode ahead of the training step; a picture that has become unreadable leaves its batch."""
        plan = plan_epoch([len(record.captions) for record in self.records], self.batch_size, self.seed, number)
        batches = plan.batches[start:]
        paths = [self.records[row].image for rows in batches for row in rows]
        loaded = ahead(lambda path: read_pixels(self.encoder, path), paths, self.workers, window=2 * self.batch_size)
        for rows in batches:
            pairs = list(zip(rows.tolist(), islice(loaded, len(rows)), strict=True))
            self.skipped.extend(pixels for _, pixels in pairs if isinstance(pixels, Skipped))
            kept = [(row, pixels) for row, pixels in pairs if not isinstance(pixels, Skipped)]
            if not kept:
                continue
            captions = [self.records[row].captions[plan.caption[row]] for row, _ in kept]
            groups = torch.tensor([self.groups[row] for row, _ in kept])
            yield Batch(torch.stack([pixels for _, pixels in kept]), self.encoder.tokenize(captions).ids, groups)


@dataclass(frozen=True)
class RowBatches:
    """Batches of tower outputs, for heads: nothing is left to decode or to encode."""

    image_rows: Array  # [N, W]
    text_rows: Array  # [captions, W], those of a record together
    caption_counts: Sequence[int]
    groups: Sequence[int]
    batch_size: int
    seed: int

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return steps_per_epoch(len(self.caption_counts), self.batch_size)

    def epoch(self, number: int, start: int = 0) -> Generator[Batch, None, None]:
        """Rows are gathered, no more."""
        plan = plan_epoch(self.caption_counts, self.batch_size, self.seed, number)
        first = np.concatenate([[0], np.cumsum(self.caption_counts)])
        groups = np.asarray(self.groups, dtype=np.int64)
        for rows in plan.batches[start:]:
            yield Batch(
                torch.from_numpy(self.image_rows[rows]),
                torch.from_numpy(self.text_rows[first[rows] + plan.caption[rows]]),
                torch.from_numpy(groups[rows]),
            )
