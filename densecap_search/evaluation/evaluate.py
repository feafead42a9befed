"""Captions whose pictures are known → a Report of retrieval in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from densecap_search.collection.records import Record, Skipped
from densecap_search.embedding.content import read_contents
from densecap_search.embedding.texts import embed_queries
from densecap_search.embedding.towers import embed_images
from densecap_search.errors import CollectionError
from densecap_search.evaluation.metrics import METRICS, Figure, Ints, Ranks, summarise
from densecap_search.evaluation.pairs import Pairs, in_order
from densecap_search.evaluation.slices import Parts, Slice, measure_parts, part_queries
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.segments import Truncation
from densecap_search.talk import SILENT, Talk

DIRECTIONS = {"text_to_image": "text→image", "image_to_text": "image→text"}
RULE = "every caption is a query; a picture's rank is that of its best caption"
RANKING = (
    "A rank is 1 + the wrong answers that score higher + half of the wrong ones that score the same, by cosine in "
    "float32. The same picture twice (by content, or by group) and the identical caption twice are right answers "
    "together. R@K, MRR and ranks count the best right answer; nDCG and mAP count all, each at the number of right "
    "answers up to it + the wrong ones that score higher + half of the wrong ones that score the same. Intervals: "
    "95 %, bootstrap over pictures, all queries of a picture together; where no two pictures differ, the exact bound."
)


@dataclass(frozen=True)
class Direction:
    """Retrieval in one direction: figures (percent for R@K), and the rank of every query that they are made of.

    clusters [Q]: queries with the same number belong to one picture.
    """

    queries: int
    gallery: int
    ties: int  # queries whose right answer has the same score as a wrong one
    figures: Mapping[str, Figure]
    ranks: Ranks = field(compare=False, repr=False)
    clusters: Ints = field(compare=False, repr=False)

    @classmethod
    def of(cls, ranks: Ranks, clusters: Ints, gallery: int) -> Direction:
        """Every figure of METRICS."""
        return cls(len(ranks.rank), gallery, int((ranks.ties > 0).sum()), summarise(ranks, clusters, gallery),
                   ranks, clusters)

    @property
    def median_rank(self) -> float:
        """The median of the ranks."""
        return self.figures["median_rank"].value

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts read; the median rank is a number, its interval stands beside it."""
        figures: dict[str, Any] = {name: asdict(self.figures[name]) for name in METRICS if name != "median_rank"}
        median = self.figures["median_rank"]
        return {"queries": self.queries, "gallery": self.gallery, "ties": self.ties, **figures,
                "median_rank": median.value, "median_rank_interval": {"low": median.low, "high": median.high}}


@dataclass(frozen=True)
class Report:
    """What was measured, on what, and by which rule: enough to repeat it."""

    model: str
    fingerprint: str
    precision: str
    collection: str
    splits: tuple[str, ...]
    truncation: Truncation
    text_to_image: Direction
    image_to_text: Direction
    skipped: tuple[Skipped, ...] = ()
    trained_on: int = 0
    slices: tuple[Slice, ...] = ()
    rule: str = RULE
    gallery: str = "split"  # or all: the galleries hold the whole collection
    parts: tuple[Parts, ...] = field(default=(), compare=False, repr=False)  # which queries are in which slice
    pairs: Pairs | None = field(default=None, compare=False, repr=False)  # what the ranks came from

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts read."""
        return {
            "model": self.model, "fingerprint": self.fingerprint, "precision": self.precision,
            "collection": self.collection, "splits": list(self.splits), "gallery": self.gallery,
            "rule": self.rule, "ranking": RANKING,
            "truncated": asdict(self.truncation), "skipped": len(self.skipped), "trained_on": self.trained_on,
            "text_to_image": self.text_to_image.as_json(), "image_to_text": self.image_to_text.as_json(),
            **({"slices": [each.as_json() for each in self.slices]} if self.slices else {}),
        }

    @property
    def gallery_words(self) -> str:
        """What is to be said of galleries that hold more than what is asked."""
        return ", which search the whole collection" if self.gallery == "all" else ""

    def directions(self) -> dict[str, Direction]:
        """By their names in the JSON."""
        return {"text_to_image": self.text_to_image, "image_to_text": self.image_to_text}


def evaluate(
    encoder: DualEncoder, records: Sequence[Record], *, model: str, collection: str, splits: Sequence[str],
    trained: frozenset[str] = frozenset(), workers: int | None = None, others: Sequence[Record] = (),
    skipped: Sequence[Skipped] = (), slices: Sequence[str] | Sequence[Parts] = (), talk: Talk = SILENT,
) -> Report:
    """Retrieval among the captioned records, in both directions, by exact cosine in float32.

    trained: content hashes of the pictures that the model was trained on; those among the records are counted.
    Records that carry their content are not read again. others: records that are only in the galleries. skipped: what
    was left out before, and is to be told with the rest.
    slices: by what the queries are also measured in parts (:func:`part_queries`), or the parts of another report.
    """
    readable, unreadable = read_contents([*records, *others], talk=talk, workers=workers)
    embeddings, broken = embed_images(encoder, readable, workers=workers, talk=talk)
    kept = in_order(readable, embeddings.image_ids)
    asked = len({record.image_id for record in records} & set(embeddings.image_ids))
    if not asked:
        first = next(iter((*unreadable, *broken)), None)
        raise CollectionError(f"{collection}: none of the {len(records)} pictures could be opened"
                              + (f"; the first: {first}" if first else ""))
    text = embed_queries(encoder, [caption for record in kept[:asked] for caption in record.captions], talk=talk)
    if more := [caption for record in kept[asked:] for caption in record.captions]:
        text = text.followed_by(embed_queries(encoder, more, talk=talk))
    pairs = Pairs.of(kept, embeddings.vectors, text, asked)
    parts = _parts(encoder, pairs, slices)
    text_ranks, image_ranks = pairs.text_to_image(), pairs.image_to_text()
    return Report(
        model, encoder.fingerprint(), encoder.precision, collection, tuple(splits), text.truncation,
        text_to_image=Direction.of(text_ranks, pairs.query_pictures, len(kept)),
        image_to_text=Direction.of(image_ranks, pairs.picture[:asked], len(pairs.captions)),
        skipped=(*skipped, *unreadable, *broken), trained_on=sum(record.hash in trained for record in kept[:asked]),
        slices=measure_parts(parts, pairs, text_ranks, image_ranks), parts=parts, pairs=pairs,
        gallery="all" if others else "split",
    )


def _parts(encoder: DualEncoder, pairs: Pairs, slices: Sequence[str] | Sequence[Parts]) -> tuple[Parts, ...]:
    given = [each for each in slices if isinstance(each, Parts)]
    names = [each for each in slices if isinstance(each, str)]
    return (*given, *part_queries(encoder, pairs, names))
