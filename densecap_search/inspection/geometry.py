"""How alike a model finds the captions of a collection, how long they are in its tokens, and what follows.

The predictions are of the captions alone: if every picture lay exactly where its caption does, on what share of random
batches would InfoNCE be solved? Real pictures lie less well, so this is the most that training can reach; what they
are on now is measured in :mod:`pair_fit`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from densecap_search.collection.caption_flaws import UNSPACED, language_of
from densecap_search.collection.records import Collection
from densecap_search.collection.splits import group_numbers
from densecap_search.embedding.cache import Array
from densecap_search.embedding.neighbours import near_vectors, nearest
from densecap_search.embedding.texts import embed_texts
from densecap_search.embedding.towers import token_keys
from densecap_search.inspection.duplicates import Near, near
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.letters import UnknownWords
from densecap_search.model.segments import Ints, Truncation
from densecap_search.model.window import longest_window
from densecap_search.talk import SILENT, Talk

SOLVED = 1e-3  # nats: below it a batch counts as solved
PERCENTILES = (1, 5, 50, 95, 99)
SHARES = (0.8, 0.9, 0.95, 0.98)
WINDOWS = (77, 128, 248, 512)  # tokens: CLIP's own, Long-CLIP's, and what else --context-length is commonly set to
NEAR_COSINE = 0.98  # captions at least this similar are near-duplicates
SAMPLED = 4000  # captions whose pairs are all compared
TRIED = 200  # random batches of a prediction
BATCH_SIZES, LOGIT_SCALE = (16, 128, 512), 100.0  # of the table of predictions, beside the model's own scale


@dataclass(frozen=True)
class Histogram:
    """counts[i] values lie between edges[i] and edges[i + 1]."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Prediction:
    """solved: share of random batches, percent, on which InfoNCE would be below SOLVED were pictures where captions
    are; loss: its median in nats. None where the collection has fewer different captions than a batch."""

    batch_size: int
    logit_scale: float
    solved: float | None
    loss: float | None


@dataclass(frozen=True)
class Spelled:
    """Different captions of a language, and the tokens that a word of theirs takes, or a letter where words are not set
    apart: about 1.3 where a vocabulary was made for the language, and more the less it knows of it."""

    language: str
    captions: int
    tokens: float


@dataclass(frozen=True)
class Geometry:
    """How alike a model finds the captions. All similarities are cosines of different captions.

    truncation, windows, tokens, lengths: of all captions, in the model's tokens; windows: were the window another.
    same_when_cut: captions that differ only beyond the window. longest_window: what --context-length may be.
    similarity: percentiles over pairs; centred: the same after the mean embedding is taken off, which most captions
    share; shares: of pairs at least this similar, percent. hardest: percentiles of each caption's most similar
    companion, in the whole collection; hardest_in_batch: their mean in a random batch. near: rows of captioned
    records whose captions have at least NEAR_COSINE; its pairs are the most similar of all, near or not.
    unknown_words: of different captions, those that hold words or signs that the model's vocabulary lacks.
    languages: those that captions are plainly in, the most frequent first.
    batch_size, logit_scale: what solved was asked for; a batch holds at most the different captions that there are.
    """

    model: str
    truncation: Truncation
    windows: tuple[Truncation, ...]
    tokens: dict[str, float]
    lengths: Histogram
    longest_window: int | None
    same_when_cut: int
    mean: float
    deviation: float
    similarity: dict[str, float]
    centred: dict[str, float]
    shares: dict[str, float]
    hardest: dict[str, float]
    hardest_mean: float
    companions: Histogram
    hardest_in_batch: float
    near: Near
    logit_scale: float
    batch_size: int
    solved: float
    predictions: tuple[Prediction, ...]
    unknown_words: UnknownWords = field(default_factory=UnknownWords)
    languages: tuple[Spelled, ...] = ()


def look_at_captions(collection: Collection, encoder: DualEncoder, *, model: str, batch_size: int, logit_scale: float,
                     talk: Talk = SILENT) -> Geometry:
    """The captions' geometry under a model, and what it means for training with this batch size and logit_scale.

    A record stands with its first caption; of records that share one (or a group) the first stands for all.
    """
    records = collection.captioned
    captions = list(dict.fromkeys(caption for record in records for caption in record.captions))
    lengths, keys = token_keys(encoder, captions)
    unknown = UnknownWords()
    unknown.add(encoder.tokenizer, captions)
    length_of = dict(zip(captions, lengths, strict=True))
    every = [caption for record in records for caption in record.captions]
    tokens = [length_of[caption] for caption in every]
    is_cut = encoder.spec.long_text == "cut"  # else captions beyond the window are split, and nothing is lost
    windows = tuple(Truncation.of(tokens, window) for window in WINDOWS)
    groups = np.array(group_numbers(records), dtype=np.int64)
    rows = np.flatnonzero(groups == np.arange(len(groups)))  # one of each group
    vectors, _ = embed_texts(encoder, [records[row].captions[0] for row in rows], talk=talk)
    pairs, centred = _pair_similarities(vectors), _pair_similarities(_centred(vectors))
    companions = nearest(vectors, 1)[:, 0] if len(vectors) > 1 else np.empty(0, np.int64)
    hardest = np.einsum("nd,nd->n", vectors[: len(companions)], vectors[companions])
    scales = dict.fromkeys((round(logit_scale, 6), LOGIT_SCALE))
    sizes = sorted({*BATCH_SIZES, min(batch_size, len(vectors))})
    predictions = tuple(predict(vectors, size, scale) for scale in scales for size in sizes)
    solved = _asked(vectors, batch_size, logit_scale)
    return Geometry(
        model=model,
        truncation=Truncation.of(tokens, encoder.context_length) if is_cut else encoder.segments(every).truncation,
        windows=windows, tokens=percentiles(tokens, (5, 50, 95, 100)), lengths=histogram(tokens),
        longest_window=longest_window(encoder.model.text),
        same_when_cut=_same_when_cut(lengths, keys, encoder.context_length) if is_cut else 0,
        mean=_mean(pairs), deviation=float(pairs.std()) if len(pairs) else math.nan,
        similarity=percentiles(pairs, PERCENTILES), centred=percentiles(centred, PERCENTILES),
        shares={f"{share:g}": 100 * _mean(pairs >= share) for share in SHARES},
        hardest=percentiles(hardest, (50, 90, 100)), hardest_mean=_mean(hardest), companions=histogram(hardest),
        hardest_in_batch=_hardest_in_batch(vectors, batch_size),
        near=_near(vectors, companions, hardest, rows, len(records)),
        logit_scale=logit_scale, batch_size=min(batch_size, len(vectors)), solved=solved, predictions=predictions,
        unknown_words=unknown, languages=spelled(captions, lengths),
    )


def spelled(captions: Sequence[str], lengths: Sequence[int]) -> tuple[Spelled, ...]:
    """How a model spells each language. lengths: of the captions, in its tokens."""
    counts: dict[str, list[int]] = {}  # captions, tokens, words or letters
    for caption, length in zip(captions, lengths, strict=True):
        language = language_of(caption)
        if language:
            units = len("".join(caption.split()) if language in UNSPACED else caption.split())
            counts[language] = [sum(pair) for pair in zip(counts.get(language, (0, 0, 0)), (1, length, units),
                                                          strict=True)]
    ordered = sorted(counts.items(), key=lambda item: -item[1][0])
    return tuple(Spelled(language, count, tokens / units) for language, (count, tokens, units) in ordered)


def predict(vectors: Array, batch_size: int, logit_scale: float) -> Prediction:
    """On what share of random batches of different captions InfoNCE would be solved."""
    if len(vectors) < batch_size:
        return Prediction(batch_size, logit_scale, None, None)
    losses = _losses(vectors, batch_size, logit_scale)
    return Prediction(batch_size, logit_scale, 100 * float(np.mean(losses < SOLVED)), float(np.median(losses)))


def ideal_loss(vectors: Array, groups: Ints, logit_scale: float) -> float:
    """InfoNCE of a batch whose pictures lie where their captions do, nats: CE(s·Ḡ) with the diagonal as labels."""
    logits = logit_scale * (vectors @ vectors.T).astype(np.float64)
    logits[(groups[:, None] == groups[None, :]) & ~np.eye(len(groups), dtype=bool)] = -np.inf
    gaps = logits - logit_scale  # of every column to the pair's own
    np.fill_diagonal(gaps, 0.0)
    return float(np.log(np.exp(gaps).sum(axis=1)).mean())


def advise(solved: float) -> str:
    """What the share of batches, percent, suggests on which InfoNCE is solved by these pictures and captions."""
    if solved >= 50:
        return ("InfoNCE is solved on most batches and has nothing left to teach: hn_clip with gamma 0.5, or "
                "--batches neighbours, or larger batches")
    if solved >= 10:
        return "InfoNCE is solved on some batches: hn_clip with gamma 0.25 to 0.5 is worth a try beside info_nce"
    return "InfoNCE has enough to teach on these pictures and captions with this batch size"


def percentiles(values: Sequence[float] | Array, which: Sequence[int]) -> dict[str, float]:
    """p5, p50 … of values; not a number where there are none."""
    levels = np.percentile(values, which) if len(values) else [math.nan] * len(which)
    return {f"p{number}": float(value) for number, value in zip(which, levels, strict=True)}


def histogram(values: Sequence[float] | Array, bins: int = 40) -> Histogram:
    """Equal bins from the least to the greatest value; whole numbers get bins of whole numbers."""
    if not len(values):
        return Histogram((), ())
    low, high = min(values), max(values)
    if all(isinstance(value, int) for value in values):
        width = max(1, math.ceil((high - low + 1) / bins))
        edges = np.arange(low, high + width + 1, width)
    else:
        edges = np.linspace(low, high if high > low else low + 1e-3, bins + 1)
    counts, _ = np.histogram(values, edges)
    return Histogram(tuple(float(edge) for edge in edges), tuple(int(count) for count in counts))


def _same_when_cut(lengths: Sequence[int], keys: Sequence[bytes], window: int) -> int:
    """How many of different captions have the tokens of another within the window, because one of them is cut."""
    groups: dict[bytes, list[int]] = {}
    for length, key in zip(lengths, keys, strict=True):
        groups.setdefault(key, []).append(length)
    return sum(len(group) - 1 for group in groups.values() if max(group) > window)


def _asked(vectors: Array, batch_size: int, logit_scale: float) -> float:
    """The prediction for the batches that training would take: all captions where there are fewer."""
    losses = _losses(vectors, min(batch_size, len(vectors)), logit_scale)
    return 100 * float(np.mean(losses < SOLVED))


def _losses(vectors: Array, batch_size: int, logit_scale: float) -> Array:
    generator, groups = np.random.default_rng(0), np.arange(batch_size)
    batches = [generator.choice(len(vectors), batch_size, replace=False) for _ in range(TRIED)]
    return np.array([ideal_loss(vectors[rows], groups, logit_scale) for rows in batches])


def _pair_similarities(vectors: Array) -> Array:
    """Cosines of all pairs of at most SAMPLED captions."""
    rows = np.random.default_rng(0).permutation(len(vectors))[:SAMPLED]
    similarity = vectors[rows] @ vectors[rows].T
    pairs: Array = similarity[np.triu_indices(len(rows), 1)]
    return pairs


def _centred(vectors: Array) -> Array:
    moved = vectors - vectors.mean(axis=0, keepdims=True) if len(vectors) else vectors
    unit: Array = moved / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-12)
    return unit


def _hardest_in_batch(vectors: Array, batch_size: int) -> float:
    if len(vectors) < 2:
        return math.nan
    generator = np.random.default_rng(0)
    hardest = []
    for _ in range(20):
        batch = vectors[generator.permutation(len(vectors))[:batch_size]]
        similarity = batch @ batch.T
        np.fill_diagonal(similarity, -2.0)
        hardest.append(float(similarity.max(axis=1).mean()))
    return float(np.mean(hardest))


def _near(vectors: Array, companions: Ints, hardest: Array, rows: Ints, count: int) -> Near:
    """Groups at NEAR_COSINE, and the most similar pairs whatever their cosine, as rows of the records."""
    groups = near(count, ((int(rows[row]), rows[others], values)
                          for row, others, values in near_vectors(vectors, NEAR_COSINE)), larger_is_closer=True).groups
    closest = {}
    for row, companion, value in zip(range(len(companions)), companions.tolist(), hardest.tolist(), strict=True):
        first, second = sorted((int(rows[row]), int(rows[companion])))
        closest[first, second] = value
    pairs = sorted(((first, second, value) for (first, second), value in closest.items()), key=lambda pair: -pair[2])
    return Near(groups, tuple(pairs))


def _mean(values: Any) -> float:
    return float(values.mean()) if values.size else math.nan
