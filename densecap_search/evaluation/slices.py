"""Queries in parts: by length of the caption, by whether it fits the window, by how alike captions are, by a column.

A part's queries are ranked in the whole gallery; only their figures are taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from densecap_search.collection.records import Record
from densecap_search.errors import ConfigError
from densecap_search.evaluation.metrics import BLOCK_SCORES, Figure, Floats, Ints, Ranks, summarise
from densecap_search.evaluation.pairs import Pairs
from densecap_search.model.encoder import DualEncoder

SLICED = ("R@1", "R@5", "R@10", "MRR", "nDCG@10", "median_rank")
MANY_VALUES = 12  # a column of more different words gets a last slice for the rest; of more numbers, three parts
Labels = list[str]  # one a query; the order of the slices is given beside it


@dataclass(frozen=True)
class Slice:
    """One part of the queries. A direction without a query in it has no figures."""

    by: str
    label: str
    queries: Mapping[str, int]  # direction → queries
    figures: Mapping[str, Mapping[str, Figure]]  # direction → metric → figure

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts read."""
        parts: dict[str, dict[str, Any]] = {}
        for direction, count in self.queries.items():
            figures = {name: asdict(figure) for name, figure in self.figures[direction].items()}
            parts[direction] = {"queries": count, **figures}
        return {"by": self.by, "label": self.label, **parts}


@dataclass(frozen=True)
class Parts:
    """The queries by one property: the labels of the parts in order, and the label of each caption and picture."""

    by: str
    order: Labels
    captions: Labels
    pictures: Labels


def part_queries(encoder: DualEncoder, pairs: Pairs, names: Sequence[str]) -> tuple[Parts, ...]:
    """names: ``words``, ``truncated``, ``hardness`` (see BUILT_IN), or columns of the records.

    A picture, as a query, is where its longest, its cut, or its least distinct caption is.
    """
    parts = []
    for name in dict.fromkeys(names):
        if name in BUILT_IN:
            values, describe = BUILT_IN[name](encoder, pairs)
            most = np.full(pairs.asked, -np.inf)
            np.maximum.at(most, pairs.owner[: len(values)], values)
            order, captions = describe(values)
            pictures = describe(most)[1]
        else:
            order, pictures = _column(pairs.records[: pairs.asked], name)
            captions = [pictures[owner] for owner in pairs.owner[: len(pairs.queries)]]
        parts.append(Parts(name, order, captions, pictures))
    return tuple(parts)


def measure_parts(parts: Sequence[Parts], pairs: Pairs, text_ranks: Ranks, image_ranks: Ranks) -> tuple[Slice, ...]:
    """The figures of every part, in both directions."""
    return tuple(
        _measure(each.by, label, {
            "text_to_image": (text_ranks, np.array(each.captions), pairs.query_pictures, len(pairs.records)),
            "image_to_text": (image_ranks, np.array(each.pictures), pairs.picture[: pairs.asked], len(pairs.captions)),
        })
        for each in parts for label in each.order
    )


def _measure(by: str, label: str, sides: Mapping[str, tuple[Ranks, Any, Ints, int]]) -> Slice:
    counts: dict[str, int] = {}
    figures: dict[str, Mapping[str, Figure]] = {}
    for direction, (ranks, labels, clusters, gallery) in sides.items():
        chosen = labels == label
        counts[direction] = int(chosen.sum())
        figures[direction] = summarise(ranks.take(chosen), clusters[chosen], gallery, names=SLICED
                                       ) if chosen.any() else {}
    return Slice(by, label, counts, figures)


Describe = Callable[[Floats], tuple[Labels, Labels]]  # a number a query → the labels in order, and each query's


def _words(encoder: DualEncoder, pairs: Pairs) -> tuple[Floats, Describe]:
    """Caption length in words, in three parts of like size."""
    counts = np.array([len(caption.split()) for caption in pairs.queries], np.float64)
    return counts, _thirds(counts, ("up to {high:g} words", "{low:g} to {high:g} words", "{low:g} words and more"))


def _truncated(encoder: DualEncoder, pairs: Pairs) -> tuple[Floats, Describe]:
    """Whether the caption is longer than the window, which then cuts it or has it in parts."""
    lengths = [length for start in range(0, len(pairs.queries), 1024)
               for length in encoder.tokenize(pairs.queries[start:start + 1024]).lengths]
    window = f"the window of {encoder.context_length} tokens"
    whole = f"read whole by {window}"
    cut = f"cut by {window}" if encoder.spec.long_text == "cut" else f"split, longer than {window}"

    def describe(values: Floats) -> tuple[Labels, Labels]:
        return [whole, cut], [cut if value > 0 else whole for value in values]

    return np.array([length > encoder.context_length for length in lengths], np.float64), describe


def _hardness(encoder: DualEncoder, pairs: Pairs) -> tuple[Floats, Describe]:
    """The cosine of the caption with the most similar caption of another picture, in three parts of like size."""
    values = hardest_companion(pairs)
    return values, _thirds(values, ("most similar other caption below {high:.2f}", "{low:.2f} to {high:.2f}",
                                    "{low:.2f} and more"), open_end=True)


BUILT_IN: Mapping[str, Callable[[DualEncoder, Pairs], tuple[Floats, Describe]]] = {
    "words": _words, "truncated": _truncated, "hardness": _hardness,
}


def hardest_companion(pairs: Pairs) -> Floats:
    """Of each caption that is asked, the highest cosine with a caption that does not belong to it; -1 where there is
    none."""
    hardest = np.empty(len(pairs.queries))
    pictures, step = pairs.picture[pairs.owner], max(1, BLOCK_SCORES // len(pairs.captions))
    for start in range(0, len(hardest), step):
        block = slice(start, min(start + step, len(hardest)))
        same = (pictures[block, None] == pictures) | (pairs.caption[block, None] == pairs.caption)
        hardest[block] = np.where(same, -1.0, pairs.text[block] @ pairs.text.T).max(axis=1)
    return hardest


def _thirds(values: Floats, forms: tuple[str, str, str], open_end: bool = False) -> Describe:
    """Three parts of like size, cut between different values; one or two where values repeat.

    forms: what to say of the first, a middle and the last part, of its lowest value and its highest one; open_end:
    of the lowest value of the next part instead.
    """
    ordered = np.unique(values)
    starts = sorted({float(ordered[0]), *(float(np.quantile(values, q, method="higher")) for q in (1 / 3, 2 / 3))})
    starts = [start for start in starts if start > ordered[0]]
    lows = [float(ordered[0]), *starts]
    highs = [start if open_end else float(ordered[ordered < start].max()) for start in starts] + [float(ordered[-1])]
    if len(lows) == 1:
        labels = ["all alike"]
    else:
        middle = len(lows) - 2
        labels = [form.format(low=low, high=high) for form, low, high in
                  zip((forms[0], *[forms[1]] * middle, forms[2]), lows, highs, strict=True)]

    def describe(of: Floats) -> tuple[Labels, Labels]:
        return labels, [labels[part] for part in np.searchsorted(starts, of, side="right")]

    return describe


def _column(records: Sequence[Record], name: str) -> tuple[Labels, Labels]:
    known = sorted({column for record in records for column in record.columns})
    if name not in known:
        raise ConfigError(f"--slice {name}: no such column; built in are {', '.join(BUILT_IN)}; columns here: "
                          f"{', '.join(known) or 'none'}")
    values = [record.columns.get(name) for record in records]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values) and len(set(numbers)) > MANY_VALUES:
        column = np.array(numbers)
        return _thirds(column, ("up to {high:g}", "{low:g} to {high:g}", "{low:g} and more"))(column)
    words = ["(none)" if value is None or value == "" else str(value) for value in values]
    frequent = sorted(set(words), key=lambda word: (-words.count(word), word))[:MANY_VALUES]
    labels = [word if word in frequent else "(others)" for word in words]
    return [*frequent, *(["(others)"] if "(others)" in labels else [])], labels
