"""An index → the pairs of picture and caption to look at first, by the vectors that it has; no picture is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from densecap_search.collection.corrections import corrections_file, read_corrections
from densecap_search.collection.splits import group_numbers
from densecap_search.inspection.pair_fit import Judged, judge_pairs
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.vectors import some_of
from densecap_search.talk import SILENT, Talk
from densecap_search.workflows.index import corrected_collection

MOST = 20_000  # pictures that are judged against each other


@dataclass(frozen=True)
class Doubtful:
    """A caption and the number of its picture in the index. cosine: their own."""

    number: int
    caption: str
    cosine: float


@dataclass(frozen=True)
class Review:
    """pairs: those that fit least, the worst first, without what somebody found right. looked_at: captioned pictures
    that were judged, of how many. wrong: as in :class:`PairFit`; can_tell: whether the model knows these pictures and
    captions well enough. generation: of the index.
    """

    pairs: tuple[Doubtful, ...]
    looked_at: int
    captioned: int
    wrong: int
    can_tell: bool
    generation: str


def review(folder: Path, talk: Talk = SILENT) -> Review:
    """Judge the pairs of an index as ``inspect --model`` judges those of a collection."""
    from densecap_search.embedding.texts import embed_texts
    from densecap_search.retrieval.searcher import open_searcher  # loads the model

    index = load_index(folder)
    collection = corrected_collection(folder)
    captioned = [(number, record) for number, record in zip(index.numbers.tolist(), collection.records, strict=True)
                 if record.captions]
    some = [captioned[place] for place in some_of(np.arange(len(captioned)), MOST).tolist()]
    if not some:
        return Review((), 0, 0, 0, False, index.place.name)
    captions = [(place, caption) for place, (_, record) in enumerate(some) for caption in record.captions]
    vectors, _ = embed_texts(open_searcher(folder).encoder, [caption for _, caption in captions], talk=talk)
    records, numbers = [record for _, record in some], np.array([number for number, _ in some])
    judged = judge_pairs([record.image_id for record in records], np.array(group_numbers(records), np.int64),
                         index.stored.take(numbers), captions, vectors)
    return Review(_unless_right(folder, judged, [(number, str(record.image)) for number, record in some]), len(some),
                  len(captioned), judged.wrong, judged.can_tell, index.place.name)


def _unless_right(folder: Path, judged: Judged, pictures: list[tuple[int, str]]) -> tuple[Doubtful, ...]:
    corrections = read_corrections(corrections_file(folder)) if corrections_file(folder).is_file() else {}
    right = {(image, one.before) for image, own in corrections.items() for one in own if one.before == one.after}
    return tuple(Doubtful(pictures[pair.row][0], pair.caption, pair.cosine) for pair in judged.worst
                 if (pictures[pair.row][1], pair.caption) not in right)
