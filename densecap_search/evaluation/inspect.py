"""A collection looked at before training: what is there, how long the captions are, and how alike.

The risk of saturation is predicted from the captions alone: if every picture lay exactly where its caption does, on
what share of random batches would InfoNCE be solved? Real pictures lie less well, so this is where training can end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from densecap_search.collection.records import Collection
from densecap_search.collection.splits import group_numbers
from densecap_search.evaluation.metrics import Ints
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.window import Truncation
from densecap_search.retrieval.embeddings import Array, embed_texts
from densecap_search.retrieval.index import nearest
from densecap_search.talk import SILENT, Talk

SOLVED = 1e-3  # nats: below it a batch counts as solved
PERCENTILES = (1, 5, 50, 95, 99)
SHARES = (0.8, 0.9, 0.95, 0.98)
SAMPLED = 4000  # captions whose pairs are all compared
TRIED = 200  # random batches of the prediction


@dataclass(frozen=True)
class Inventory:
    """What a collection holds, without a model. words: percentiles of caption length, by str.split."""

    name: str
    pictures: int
    captions: int
    without_caption: int
    skipped: int
    splits: dict[str, int]
    words: dict[str, float]
    sharing_a_caption: int  # pictures whose caption, or group, another picture has too


@dataclass(frozen=True)
class Geometry:
    """How alike a model finds the captions. All similarities are cosines of different captions.

    similarity: percentiles over pairs; shares: of pairs at least this similar, percent; hardest: percentiles of each
    caption's most similar companion, in the whole collection and in a random batch.
    solved: share of random batches, percent, on which InfoNCE would be below SOLVED were pictures where captions are.
    """

    model: str
    truncation: Truncation
    mean: float
    deviation: float
    similarity: dict[str, float]
    shares: dict[str, float]
    hardest: dict[str, float]
    hardest_in_batch: float
    logit_scale: float
    batch_size: int
    solved: float
    advice: str


def take_inventory(collection: Collection) -> Inventory:
    """Counts and lengths."""
    captions = [caption for record in collection.records for caption in record.captions]
    captioned = collection.captioned
    numbers = Counter(group_numbers(captioned))
    return Inventory(
        collection.name, len(collection), len(captions), len(collection) - len(captioned), len(collection.skipped),
        dict(Counter(record.split or "(none)" for record in captioned)),
        _percentiles([len(caption.split()) for caption in captions], (5, 50, 95, 100)),
        sum(count for count in numbers.values() if count > 1),
    )


def look_at_captions(collection: Collection, encoder: DualEncoder, *, model: str, batch_size: int, logit_scale: float,
                     talk: Talk = SILENT) -> Geometry:
    """The captions' geometry under a model, and what it means for training with this batch size and logit_scale."""
    records = collection.captioned
    vectors, truncation = embed_texts(encoder, [record.captions[0] for record in records], talk=talk)
    groups = np.array(group_numbers(records), dtype=np.int64)
    pairs = _pair_similarities(vectors, groups)
    hardest = _hardest(vectors)
    generator = np.random.default_rng(0)
    batches = [generator.permutation(len(records))[:batch_size] for _ in range(TRIED)]
    losses = [ideal_loss(vectors[rows], groups[rows], logit_scale) for rows in batches]
    solved = 100 * float(np.mean([loss < SOLVED for loss in losses]))
    in_batch = math.nan
    if len(records) > 1:
        in_batch = float(np.mean([_hardest(vectors[rows]).mean() for rows in batches[:20]]))
    return Geometry(
        model, truncation, float(pairs.mean()) if pairs.size else math.nan,
        float(pairs.std()) if pairs.size else math.nan, _percentiles(pairs, PERCENTILES),
        {f"{share:g}": 100 * float((pairs >= share).mean()) if pairs.size else math.nan for share in SHARES},
        _percentiles(hardest, (50, 90, 100)), in_batch, logit_scale, batch_size, solved, advise(solved),
    )


def ideal_loss(vectors: Array, groups: Ints, logit_scale: float) -> float:
    """InfoNCE of a batch whose pictures lie where their captions do, nats: CE(s·Ḡ) with the diagonal as labels."""
    logits = logit_scale * (vectors @ vectors.T).astype(np.float64)
    logits[(groups[:, None] == groups[None, :]) & ~np.eye(len(groups), dtype=bool)] = -np.inf
    gaps = logits - logit_scale  # of every column to the pair's own
    np.fill_diagonal(gaps, 0.0)
    return float(np.log(np.exp(gaps).sum(axis=1)).mean())


def advise(solved: float) -> str:
    """What the share of solved batches, percent, suggests."""
    if solved >= 50:
        return ("InfoNCE can be solved on most batches and will then stop teaching: hn_clip with gamma 0.5, or "
                "--batches neighbours, or larger batches")
    if solved >= 10:
        return "InfoNCE can be solved on some batches: hn_clip with gamma 0.25 to 0.5 is worth a try beside info_nce"
    return "InfoNCE will not run dry on these captions with this batch size: begin with info_nce"


def as_json(inventory: Inventory, geometry: Geometry | None) -> dict[str, Any]:
    """The shape that scripts read."""
    return {**asdict(inventory), "captions_by_model": None if geometry is None else asdict(geometry)}


def _pair_similarities(vectors: Array, groups: Ints) -> Array:
    """Cosines of all pairs of different captions, of at most SAMPLED of them."""
    rows = np.random.default_rng(0).permutation(len(vectors))[:SAMPLED]
    similarity = vectors[rows] @ vectors[rows].T
    different = (groups[rows][:, None] != groups[rows][None, :]) & np.triu(np.ones_like(similarity, dtype=bool), 1)
    pairs: Array = similarity[different]
    return pairs


def _hardest(vectors: Array) -> Array:
    """Each caption's cosine with its most similar companion, [N]."""
    if len(vectors) < 2:
        return np.empty(0, np.float32)
    best: Array = np.einsum("nd,nd->n", vectors, vectors[nearest(vectors, 1)[:, 0]])
    return best


def _percentiles(values: Sequence[float] | Array, which: Sequence[int]) -> dict[str, float]:
    found = np.percentile(values, which) if len(values) else [math.nan] * len(which)
    return {f"p{number}": float(value) for number, value in zip(which, found, strict=True)}
