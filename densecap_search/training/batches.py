"""Pairs in batches: which rows come together, with which caption, and their pictures ahead of time.

The plan of an epoch is made before it begins and saved with the run's state, so that a resumed run sees what an
uninterrupted one would.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from densecap_search.collection.records import Record, Skipped
from densecap_search.embedding.cache import Array
from densecap_search.embedding.content import ahead
from densecap_search.embedding.neighbours import nearest
from densecap_search.embedding.towers import read_pixels
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.segments import Ints, starts_of
from densecap_search.training.distributed import ALONE, Processes

AHEAD = 128  # pictures decoded before they are asked for
CLUSTER = 8  # nearest captions that are kept together; more make batches of one theme


@dataclass(frozen=True)
class Batch:
    """Pairs that are each other's negatives, except within a group.

    images: uint8 [B, 3, H, W]; tokens: int64 [B, L]; where encoded, what frozen towers made of both, float32 [B, W].
    groups: int64 [B]; reference: the captions' embeddings before training [B, D], where the objective needs them.
    """

    images: Tensor
    tokens: Tensor
    groups: Tensor
    reference: Tensor | None = None
    encoded: bool = False

    def __len__(self) -> int:
        return len(self.groups)

    def split(self, size: int) -> list[Batch]:
        """Micro-batches of at most this many pairs."""
        return [
            Batch(self.images[at:at + size], self.tokens[at:at + size], self.groups[at:at + size],
                  None if self.reference is None else self.reference[at:at + size], self.encoded)
            for at in range(0, len(self), size)
        ]


@dataclass(frozen=True)
class Plan:
    """An epoch: rows in their order [N], how many of them each batch has, and the caption of each row [N].

    segment: of each row's caption, which of its segments is read [N], those behind its last segment being its
    sub-captions; None: captions have but one text.
    """

    order: Ints
    sizes: Ints
    caption: Ints
    segment: Ints | None = None

    @property
    def batches(self) -> list[Ints]:
        """The rows of each batch."""
        return np.split(self.order, np.cumsum(self.sizes)[:-1])

    def as_tensors(self) -> dict[str, Tensor]:
        """For the run's state."""
        values = {name: getattr(self, name) for name in ("order", "sizes", "caption", "segment")}
        return {name: torch.from_numpy(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Plan:
        """What :meth:`as_tensors` made."""
        return cls(**{name: tensor.numpy() for name, tensor in tensors.items()})


class Batches(Protocol):
    """Where the training loop gets its batches from."""

    @property
    def steps(self) -> int:
        """Batches in an epoch."""

    def plan(self, epoch: int) -> Plan:
        """Who comes together in an epoch."""

    def read(self, plan: Plan, start: int = 0) -> Generator[Batch, None, None]:
        """The batches of a plan, from the given step on; of each, this process's share."""


def steps_per_epoch(pairs: int, batch_size: int) -> int:
    """Batches in an epoch; at least one."""
    return max(1, -(-pairs // batch_size))


def plan_epoch(
    caption_counts: Sequence[int], batch_size: int, seed: int, epoch: int,
    embed_captions: Callable[[Ints], Array] | None = None,
) -> Plan:
    """Every pair once, shuffled, in batches as equal as can be and never larger than batch_size.

    Equal batches, because a small last one would have few negatives, and one of a single pair none.
    embed_captions: the chosen caption of each row → embeddings [N, D]; then nearest captions are kept together.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(caption_counts))
    caption = np.array([generator.integers(count) for count in caption_counts], dtype=np.int64)
    if embed_captions is not None and len(order) > 1:
        order = _by_neighbours(embed_captions(caption), order, generator)
    parts = np.array_split(order, steps_per_epoch(len(order), batch_size))
    return Plan(order, np.array([len(part) for part in parts], dtype=np.int64), caption)


def _by_neighbours(vectors: Array, order: Ints, generator: np.random.Generator) -> Ints:
    """Clusters of CLUSTER rows: each of the rows in turn, if it is still free, with its nearest free ones; shuffled."""
    neighbours = nearest(vectors, 4 * CLUSTER)
    free = np.ones(len(order), dtype=bool)
    clusters: list[list[int]] = []
    for row in order.tolist():
        if not free[row]:
            continue
        free[row] = False
        members = [other for other in neighbours[row].tolist() if free[other]][: CLUSTER - 1]
        free[members] = False
        clusters.append([row, *members])
    shuffled = [clusters[number] for number in generator.permutation(len(clusters))]
    return np.concatenate([np.array(cluster, dtype=np.int64) for cluster in shuffled])


@dataclass
class _Source:
    """What both kinds of batches share. groups: [N]; reference: of all captions, those of a record together.

    segment_counts: of all captions, where any has more than one. sub_counts: of all captions, the texts behind their
    segments that may be read in their place; sub_share: the share of captions for which one is.
    """

    caption_counts: Sequence[int]
    groups: Sequence[int]
    batch_size: int
    seed: int
    processes: Processes = ALONE
    reference: Array | None = None
    embed_captions: Callable[[Ints], Array] | None = None
    segment_counts: Sequence[int] | None = None
    sub_counts: Sequence[int] | None = None
    sub_share: float = 0.0
    _first: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._first = np.concatenate([[0], np.cumsum(self.caption_counts)]).astype(np.int64)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return steps_per_epoch(len(self.caption_counts), self.batch_size)

    def plan(self, epoch: int) -> Plan:
        """See :func:`plan_epoch`."""
        embed = self.embed_captions
        chosen = None if embed is None else lambda caption: embed(self._first[:-1] + caption)
        plan = plan_epoch(self.caption_counts, self.batch_size, self.seed, epoch, chosen)
        if self.segment_counts is None and self.sub_counts is None:
            return plan
        chosen_captions = self._first[:-1] + plan.caption
        counts = self._segments_of()[chosen_captions]
        drawn = np.random.default_rng([self.seed, epoch, 1]).integers(counts)  # its own numbers: the order stays
        if self.sub_counts is not None:
            subs = np.asarray(self.sub_counts)[chosen_captions]
            generator = np.random.default_rng([self.seed, epoch, 2])
            taken = (generator.random(len(subs)) < self.sub_share) & (subs > 0)
            drawn = np.where(taken, counts + generator.integers(np.maximum(subs, 1)), drawn)
        return replace(plan, segment=drawn.astype(np.int64))

    def _segments_of(self) -> Ints:
        """Segments of each caption, without its sub-captions."""
        if self.segment_counts is None:
            return np.ones(int(self._first[-1]), np.int64)
        return np.asarray(self.segment_counts, np.int64)

    def shares(self, plan: Plan, start: int) -> list[Ints]:
        """This process's rows of each batch; in the order of ranks they are the whole batch."""
        return [np.array_split(rows, self.processes.count)[self.processes.rank] for rows in plan.batches[start:]]

    def numbers(self, rows: Any, plan: Plan) -> Ints:
        """Rows → numbers of their chosen captions among all captions."""
        chosen: Ints = self._first[rows] + plan.caption[rows]
        return chosen

    def segments(self, rows: Any, plan: Plan) -> Ints:
        """Rows → numbers of their chosen segments among all segments of all captions."""
        numbers = self.numbers(rows, plan)
        if plan.segment is None:
            return numbers
        texts = self._segments_of() + (0 if self.sub_counts is None else np.asarray(self.sub_counts, np.int64))
        chosen: Ints = starts_of(texts)[numbers] + plan.segment[rows]
        return chosen

    def extras(self, rows: Any, plan: Plan) -> tuple[Tensor, Tensor | None]:
        """Groups and reference embeddings of rows."""
        groups = torch.from_numpy(np.asarray(self.groups, dtype=np.int64)[rows])
        if self.reference is None:
            return groups, None
        return groups, torch.from_numpy(self.reference[self.numbers(rows, plan)])


@dataclass
class PixelBatches(_Source):
    """Batches of pictures and token numbers, for towers that train.

    texts: all segments of all captions, and their sub-captions. pixels: content hash → uint8 [3, H, W] of pictures
    that were opened before and need not be decoded again.
    """

    encoder: DualEncoder = field(kw_only=True)
    records: Sequence[Record] = field(kw_only=True)
    texts: Sequence[str] = field(kw_only=True)
    workers: int | None = field(default=None, kw_only=True)
    pixels: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)
    skipped: list[Skipped] = field(default_factory=list, kw_only=True)

    def read(self, plan: Plan, start: int = 0) -> Generator[Batch, None, None]:
        """Decode ahead of the training step; a picture that has become unreadable leaves its batch."""
        shares = self.shares(plan, start)
        records = [self.records[row] for rows in shares for row in rows]
        loaded = ahead(self._pixels_of, records, self.workers, window=AHEAD)
        for rows in shares:
            pixels = self.encoder.room_for(len(rows))  # filled in place: a list beside it would double it
            numbers: list[int] = []
            for row, picture in zip(rows.tolist(), islice(loaded, len(rows)), strict=True):
                if isinstance(picture, Skipped):
                    self.skipped.append(picture)
                    continue
                pixels[len(numbers)] = picture
                numbers.append(row)
            if not numbers and self.processes.count == 1:
                continue
            kept = np.array(numbers, dtype=np.int64)
            tokens = self.encoder.tokenize([self.texts[number] for number in self.segments(kept, plan)]).ids
            yield Batch(pixels[: len(numbers)], tokens, *self.extras(kept, plan))

    def _pixels_of(self, record: Record) -> Tensor | Skipped:
        known = self.pixels.get(record.hash) if self.pixels else None
        return read_pixels(self.encoder, record.image) if known is None else known


@dataclass
class RowBatches(_Source):
    """Batches of tower outputs, for heads: nothing is left to decode or to encode."""

    image_rows: Array = field(kw_only=True)  # [N, W]
    text_rows: Array = field(kw_only=True)  # [texts, W], those of a caption and of a record together

    def read(self, plan: Plan, start: int = 0) -> Generator[Batch, None, None]:
        """Rows are gathered, no more."""
        for rows in self.shares(plan, start):
            texts = torch.from_numpy(self.text_rows[self.segments(rows, plan)])
            yield Batch(torch.from_numpy(self.image_rows[rows]), texts, *self.extras(rows, plan), encoded=True)
