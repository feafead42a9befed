"""Whether captions fit their pictures, by a model's own vectors: which pairs to look at first, how hard batches are.

A pair is judged by its cosine against those of its neighbours, for some pictures and captions are near to everything:
c − ½(r + q), where c is the pair's own cosine, r the mean of the picture's ten best captions of other pictures, q the
mean of the caption's ten best other pictures. What random pairs have under the same measure says what "wrong" looks
like here, and whether the model can tell at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from densecap_search.collection.records import Collection
from densecap_search.collection.splits import group_numbers
from densecap_search.embedding.cache import Array
from densecap_search.embedding.content import with_contents
from densecap_search.embedding.texts import embed_texts
from densecap_search.embedding.towers import embed_images
from densecap_search.inspection.geometry import SOLVED, TRIED
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.segments import Ints
from densecap_search.talk import SILENT, Talk

NEIGHBOURS = 10
SAMPLED = 4000  # pictures and captions among which neighbours are looked for
SURE = 0.9  # of right pairs that a model must put above random ones, before its judgement is told
FEWEST = 20  # pairs that can be judged against each other
LISTED = 100  # pairs in the list
_DRAWS = 20  # random captions for each picture
_BLOCK = 1024


@dataclass(frozen=True)
class Pair:
    """A caption and its picture. row: of the captioned records; cosine: their own; score: against their neighbours."""

    row: int
    image_id: str
    caption: str
    cosine: float
    score: float


@dataclass(frozen=True)
class PairFit:
    """told_apart: how often a right pair scores above a random one (0.5: the model knows nothing); nan below FEWEST.

    wrong: pairs that score below the middle random one, 0 where the model cannot tell; of the pairs that are really
    wrong about half do. worst: the pairs in the order in which to look at them. solved: percent of random batches
    on which InfoNCE is below SOLVED before any training; loss: its median, nats.
    """

    model: str
    pairs: int
    told_apart: float
    wrong: int
    worst: tuple[Pair, ...]
    batch_size: int
    logit_scale: float
    solved: float
    loss: float

    @property
    def can_tell(self) -> bool:
        """Whether the model knows these pictures and captions well enough to judge them."""
        return self.told_apart >= SURE


def look_at_pairs(collection: Collection, encoder: DualEncoder, *, model: str, batch_size: int, logit_scale: float,
                  talk: Talk = SILENT) -> PairFit | None:
    """Encode pictures and captions, and judge every pair; None where no captioned picture can be opened."""
    records = collection.captioned
    read = with_contents(Collection(collection.name, records), talk=talk).records
    pictures, _ = embed_images(encoder, read, talk=talk)
    if not pictures.image_ids:
        return None
    rows = {record.image_id: row for row, record in enumerate(records)}
    own = [rows[image_id] for image_id in pictures.image_ids]
    captions = [(place, caption) for place, row in enumerate(own) for caption in records[row].captions]
    vectors, _ = embed_texts(encoder, [caption for _, caption in captions], talk=talk)
    places = np.array([place for place, _ in captions], np.int64)
    groups = np.array(group_numbers([records[row] for row in own]), np.int64)
    judged = judge_pairs(pictures.image_ids, groups, pictures.vectors, captions, vectors)
    worst = tuple(replace(pair, row=own[pair.row]) for pair in judged.worst)
    firsts = np.searchsorted(places, np.arange(len(own)))  # captions stand in the order of their pictures
    losses = batch_losses(pictures.vectors, vectors[firsts], groups, batch_size, logit_scale)
    size = min(batch_size, len(np.unique(groups)))
    return PairFit(model, len(captions), judged.told_apart, judged.wrong, worst, size, logit_scale,
                   solved=100 * float(np.mean(losses < SOLVED)), loss=float(np.median(losses)))


@dataclass(frozen=True)
class Judged:
    """As in :class:`PairFit`; the row of a pair is the number of its picture."""

    told_apart: float
    wrong: int
    worst: tuple[Pair, ...]

    @property
    def can_tell(self) -> bool:
        """As in :class:`PairFit`."""
        return self.told_apart >= SURE


def judge_pairs(image_ids: Sequence[str], groups: Ints, pictures: Array, captions: Sequence[tuple[int, str]],
                vectors: Array) -> Judged:
    """How well captions fit their pictures, by vectors that are known.

    image_ids, groups, pictures: of N pictures, groups as in :func:`score_pairs`, pictures [N, D]. captions: the number
    of its picture and the text of each, vectors: [M, D] theirs. All are unit rows.
    """
    places = np.array([place for place, _ in captions], np.int64)
    cosines, scores, random = score_pairs(pictures, vectors, places, groups)
    told = told_apart(scores, random) if len(scores) >= FEWEST else float("nan")
    order = np.argsort(scores, kind="stable")[:LISTED]
    worst = tuple(Pair(place, image_ids[place], caption, float(cosines[j]), float(scores[j]))
                  for j in order.tolist() for place, caption in [captions[j]])
    return Judged(told, int((scores < np.median(random)).sum()) if told >= SURE else 0, worst)


def score_pairs(pictures: Array, captions: Array, places: Ints, groups: Ints) -> tuple[Array, Array, Array]:
    """Cosines and scores of pairs [M], and scores of random pairs, of which there may be none.

    pictures: [N, D]; captions: [M, D]; both unit rows; places: [M] the picture of each caption; groups: [N], equal
    numbers are the same picture or caption.
    """
    generator = np.random.default_rng(0)
    some_captions = generator.permutation(len(captions))[:SAMPLED]
    some_pictures = generator.permutation(len(pictures))[:SAMPLED]
    of_captions = groups[places]
    around_pictures = _around(pictures, groups, captions[some_captions], of_captions[some_captions])
    around_captions = _around(captions, of_captions, pictures[some_pictures], groups[some_pictures])
    cosines = np.einsum("md,md->m", pictures[places], captions)
    random = []
    for _ in range(_DRAWS):
        others = generator.permutation(len(captions))
        apart = of_captions != of_captions[others]
        drawn = np.einsum("md,md->m", pictures[places], captions[others])
        random.append((drawn - (around_pictures[places] + around_captions[others]) / 2)[apart])
    return cosines, cosines - (around_pictures[places] + around_captions) / 2, np.concatenate(random)


def told_apart(right: Array, random: Array) -> float:
    """How often a right pair scores above a random one, ties half: the area under the ROC curve."""
    if not len(right) or not len(random):
        return float("nan")
    ordered = np.sort(random)
    below = (np.searchsorted(ordered, right, "left") + np.searchsorted(ordered, right, "right")) / 2
    return float(below.mean() / len(ordered))


def batch_losses(pictures: Array, captions: Array, groups: Ints, batch_size: int, logit_scale: float) -> Array:
    """InfoNCE, nats, both directions, of random batches of pairs of different groups. pictures, captions: [N, D]."""
    rows = np.unique(groups, return_index=True)[1]
    generator, size = np.random.default_rng(0), min(batch_size, len(rows))
    losses = []
    for _ in range(TRIED):
        batch = generator.choice(rows, size, replace=False)
        logits = logit_scale * (pictures[batch] @ captions[batch].T).astype(np.float64)
        losses.append((_cross_entropy(logits) + _cross_entropy(logits.T)) / 2)
    return np.array(losses)


def _cross_entropy(logits: Any) -> float:
    """Mean over rows of −log softmax at the diagonal."""
    gaps = logits - np.diag(logits)[:, None]
    most = gaps.max(axis=1)
    return float((most + np.log(np.exp(gaps - most[:, None]).sum(axis=1))).mean())


def _around(vectors: Array, groups: Ints, others: Array, their_groups: Ints) -> Array:
    """For each row the mean cosine of its nearest others that are of another group [rows]; 0 where there are none."""
    means: list[Array] = []
    for start in range(0, len(vectors), _BLOCK):
        cosines = vectors[start:start + _BLOCK] @ others.T
        cosines[groups[start:start + _BLOCK, None] == their_groups[None, :]] = -np.inf
        best = np.sort(np.partition(cosines, -min(NEIGHBOURS, cosines.shape[1]), axis=1)[:, -NEIGHBOURS:], axis=1)
        real = np.isfinite(best)
        means.append(np.where(real, best, 0).sum(axis=1) / np.maximum(real.sum(axis=1), 1))
    return np.concatenate(means) if means else np.empty(0, np.float32)


def in_order(pairs: Sequence[Pair], captions: int = 60) -> list[str]:
    """A line a pair: cosine, picture, the beginning of the caption."""
    return [f"cosine {pair.cosine:.2f}, {pair.image_id}: {' '.join(pair.caption.split())[:captions]}" for pair in pairs]
