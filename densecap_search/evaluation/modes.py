"""Search by pictures, by their captions, and by both, measured with an archive's own words.

What asks is taken out of what is stored before anything else is made of it (:mod:`collection.questions`): the captions
that are ranked, their statistics and their spreads come from what is left. Weights that ``fused`` is scored with are
learned from queries of other pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from densecap_search.collection.questions import MEANINGS, PROTOCOLS, Question
from densecap_search.collection.records import Record, Skipped
from densecap_search.collection.splits import picture_numbers
from densecap_search.embedding.cache import Array
from densecap_search.embedding.content import read_contents
from densecap_search.embedding.towers import embed_images
from densecap_search.errors import CollectionError
from densecap_search.evaluation.compare import Difference, compare
from densecap_search.evaluation.evaluate import Direction
from densecap_search.evaluation.metrics import Ints, Relevance, rank_scores
from densecap_search.evaluation.pairs import in_order
from densecap_search.model.encoder import DualEncoder
from densecap_search.retrieval.captioned import Captioned, Texts, read_texts
from densecap_search.retrieval.fuse import RANKINGS, combine, cross_fitted, fit
from densecap_search.talk import SILENT, Talk

EQUAL = "fused, equal weights"
MODES = (*RANKINGS, EQUAL, "fused")


@dataclass(frozen=True)
class ModesReport:
    """Text→image retrieval by each of MODES, with the same queries among the same pictures.

    differences: ``fused`` minus each other mode, by metric. weights: learned from all queries; what ``fused`` was
    scored with was learned in folds. described: pictures of the gallery that have a caption left.
    """

    model: str
    fingerprint: str
    collection: str
    splits: tuple[str, ...]
    gallery: str  # of which pictures it consists, in words
    protocol: str
    described: int
    modes: Mapping[str, Direction]
    differences: Mapping[str, Mapping[str, Difference]]
    weights: Mapping[str, float]
    skipped: tuple[Skipped, ...] = ()
    trained_on: int = 0

    @property
    def rule(self) -> str:
        """What asks and what is stored."""
        return MEANINGS[self.protocol]

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts read."""
        return {
            "model": self.model, "fingerprint": self.fingerprint, "collection": self.collection,
            "splits": list(self.splits), "gallery": self.gallery, "protocol": self.protocol, "rule": self.rule,
            "described": self.described, "skipped": len(self.skipped), "trained_on": self.trained_on,
            "weights": dict(self.weights), "modes": {mode: found.as_json() for mode, found in self.modes.items()},
            "fused_minus": {mode: {name: asdict(value) for name, value in found.items()}
                            for mode, found in self.differences.items()},
        }


def measure_modes(
    encoder: DualEncoder, asked: Sequence[Record], gallery: Sequence[Record], *, protocol: str, model: str,
    collection: str, splits: Sequence[str], trained: frozenset[str] = frozenset(), workers: int | None = None,
    talk: Talk = SILENT,
) -> ModesReport:
    """Take the captions of ``asked`` (of ``gallery``, which may be more) apart, and rank the gallery's pictures."""
    readable, unreadable = read_contents(gallery, talk=talk, workers=workers)
    embeddings, broken = embed_images(encoder, readable, workers=workers, talk=talk)
    kept = in_order(readable, embeddings.image_ids)
    questions = {record.image_id: question for record in kept if (question := PROTOCOLS[protocol](record)) is not None}
    wanted = {record.image_id for record in asked}
    wanted &= questions.keys()
    columns = np.array([row for row, record in enumerate(kept) if record.image_id in wanted], np.int64)
    if not len(columns):
        raise CollectionError(f"{collection}: no description of the split {', '.join(splits)} can be taken in two for "
                              f"the protocol {protocol} ({MEANINGS[protocol]})")
    stored = read_texts(encoder, [_stored(record, questions) for record in kept], talk=talk)
    asking = read_texts(encoder, [[questions[kept[column].image_id].asks] for column in columns], talk=talk)
    signals = Captioned.of(stored, embeddings.vectors).signals(asking, embeddings.vectors)
    scores = _of_modes(signals, asking, columns, embeddings.vectors)
    relevance, clusters = _right_answers(kept, columns)
    modes = {mode: Direction.of(rank_scores(scores[mode], relevance), clusters, len(kept)) for mode in MODES}
    return ModesReport(
        model, encoder.fingerprint(), collection, tuple(splits),
        "the same pictures" if len(gallery) == len(asked) else "all pictures", protocol,
        sum(bool(text.strip()) for text in stored.texts), modes,
        {mode: compare(modes["fused"], modes[mode]) for mode in MODES if mode != "fused"},
        dict(zip(RANKINGS, map(float, fit(np.stack([signals[name] for name in RANKINGS]), columns)), strict=True)),
        (*unreadable, *broken), sum(kept[column].hash in trained for column in columns),
    )


def _stored(record: Record, questions: Mapping[str, Question]) -> tuple[str, ...]:
    """What stays with a picture: nothing of what asks for it."""
    question = questions.get(record.image_id)
    return record.captions if question is None else question.stored


def _of_modes(signals: Mapping[str, Array], asking: Texts, columns: Ints, pictures: Array) -> dict[str, Array]:
    return {
        **signals, "image": asking.vectors @ pictures.T,  # as `search --mode image` and `evaluate` rank
        EQUAL: combine(signals, dict.fromkeys(RANKINGS, 1.0)),
        "fused": cross_fitted(np.stack([signals[name] for name in RANKINGS]), columns),
    }


def _right_answers(records: Sequence[Record], columns: Ints) -> tuple[Relevance, Ints]:
    """For each query its picture and those that are the same or have the same description; and who is who."""
    picture = np.array(picture_numbers(records), np.int64)
    said: dict[tuple[str, ...], list[int]] = {}
    same: dict[int, list[int]] = {}
    for row, record in enumerate(records):
        same.setdefault(int(picture[row]), []).append(row)
        if record.captions:
            said.setdefault(tuple(" ".join(text.split()) for text in record.captions), []).append(row)
    right = [sorted({*same[int(picture[column])],
                     *said[tuple(" ".join(text.split()) for text in records[column].captions)]}) for column in columns]
    return Relevance.of_columns(right), picture[columns]
