"""What an index learns from its own captions: their scale, the weights of the rankings, and when a hit is sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from densecap_search.collection.questions import MEANINGS, PROTOCOLS, Question, choose_protocol
from densecap_search.collection.records import Record
from densecap_search.model.text_encoder import TextEncoder
from densecap_search.retrieval.captioned import SAMPLE, Captioned, Scale, Texts, read_texts
from densecap_search.retrieval.fuse import RANKINGS, Weights, choose_weights, combine, equal_weights
from densecap_search.retrieval.index import ImageIndex
from densecap_search.retrieval.ranking import Asked, rank
from densecap_search.retrieval.strength import Foreign, shares
from densecap_search.retrieval.vectors import Numbers, some_of
from densecap_search.retrieval.words import tokens
from densecap_search.talk import SILENT, Talk

GALLERY, QUERIES = 2000, 500  # pictures whose captions are taken apart, and of how many one half asks
FOREIGN_SCORES = 20_000_000  # pictures times queries that are scored to learn what foreign captions find
LEAST_FOREIGN, MOST_FOREIGN = 60, 400


@dataclass(frozen=True)
class Calibration:
    """weights; what captions of other pictures find; how many captions there were; and, of the queries that chose the
    weights, what share in percent is called what, of LEVELS: ``right`` where the best hit is the right one,
    ``foreign`` where their own picture was taken out."""

    weights: Weights
    foreign: Foreign
    learned_from: int
    strengths: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.strengths:
            return f"captions: {self.weights}"
        right, foreign = self.strengths["right"], self.strengths["foreign"]
        return (f"captions: {self.weights}. The best hit is called weak or none for "
                f"{foreign['weak'] + foreign['none']:.0f} % of captions whose picture is not there (none: "
                f"{foreign['none']:.0f} %), and for {right['weak'] + right['none']:.0f} % of those whose picture comes "
                f"first (none: {right['none']:.0f} %)")

    def as_json(self) -> dict[str, Any]:
        """What the index keeps."""
        return asdict(self)


def learn_scale(encoder: TextEncoder, index: ImageIndex, numbers: Numbers, talk: Talk = SILENT) -> Scale:
    """From the captions of some of the pictures of these numbers, and from some of all pictures."""
    some = index.rows.many(some_of(numbers, SAMPLE).tolist())
    captions = read_texts(encoder, [row.captions for row in some], talk=talk)
    return Scale.of(captions, index.stored.take(some_of(index.numbers, SAMPLE)))


def calibrate(encoder: TextEncoder, index: ImageIndex, captioned: Captioned, numbers: Numbers,
              trained: frozenset[str] = frozenset(), talk: Talk = SILENT) -> Calibration:
    """numbers: of the pictures with a caption. trained: content hashes of pictures that do not ask."""
    rows = index.rows.many(some_of(numbers, GALLERY).tolist())
    records = [Record(row.image_id, Path(row.image), row.captions) for row in rows]
    protocol = choose_protocol(records)
    questions = [PROTOCOLS[protocol](record) for record in records]
    able = [place for place, question in enumerate(questions)
            if question is not None and rows[place].hash not in trained]
    own = np.array(able[:QUERIES], np.int64)
    if not able:
        unseen = " that the model was not trained on" if trained else ""
        return Calibration(equal_weights(f"no picture{unseen} has a description that can be taken in two"),
                           Foreign((), ()), len(numbers))
    asks = [question.asks for place in own if (question := questions[place]) is not None]
    asking = read_texts(encoder, [[text] for text in asks], talk=talk)
    stored = read_texts(encoder, [_stored(*pair) for pair in zip(records, questions, strict=True)], talk=talk)
    pictures = index.stored.take(np.array([row.number for row in rows], np.int64))
    signals = Captioned.of(stored, pictures).signals(asking, pictures)
    how = MEANINGS[protocol]
    weights = choose_weights(signals, own, f"{how}, of pictures that the model was not trained on" if trained else how)
    foreign = _foreign(index, captioned, asking, [rows[place].number for place in own], weights)
    return Calibration(weights, foreign, len(numbers), measure_strengths(signals, own, asking, weights))


def _stored(record: Record, question: Question | None) -> tuple[str, ...]:
    return record.captions if question is None else question.stored


def _foreign(index: ImageIndex, captioned: Captioned, asking: Texts, own: Sequence[int], weights: Weights) -> Foreign:
    """What each query finds in the whole index once its own picture is taken out."""
    count = int(np.clip(FOREIGN_SCORES // max(1, len(index)), LEAST_FOREIGN, MOST_FOREIGN))
    if len(index) < 2:
        return Foreign((), ())
    some = asking.take(range(min(count, len(asking.texts))))
    ranked = rank(index, captioned, Asked.plain(some), weights.values, 2)
    best = [next(match.match for match in matches if match.number != number)
            for matches, number in zip(ranked, own[:count], strict=True)]
    return Foreign(tuple(len(tokens(text)) for text in some.texts), tuple(best))


def measure_strengths(signals: Mapping[str, np.ndarray], own: Numbers, asking: Texts, weights: Weights
                      ) -> dict[str, dict[str, float]]:
    """Of the queries by turns one half is compared with the other: no query with itself."""
    if len(own) < 2:
        return {}
    scores = combine({name: signals[name] for name in RANKINGS}, weights.values)
    rows, words = np.arange(len(own)), [len(tokens(text)) for text in asking.texts]
    right = scores[rows, own]
    scores[rows, own] = -np.inf
    best = scores.max(axis=1)
    halves: dict[str, list[dict[str, float]]] = {"right": [], "foreign": []}
    for turn in (0, 1):
        known, asked = rows[rows % 2 == turn], rows[rows % 2 != turn]
        foreign = Foreign(tuple(words[row] for row in known), tuple(best[known].tolist()))
        hits = [row for row in asked if right[row] > best[row]]
        halves["right"].append(shares(foreign, [right[row] for row in hits], [words[row] for row in hits]))
        halves["foreign"].append(shares(foreign, best[asked].tolist(), [words[row] for row in asked]))
    return {kind: {name: sum(each[name] for each in both) / 2 for name in both[0]} for kind, both in halves.items()}
