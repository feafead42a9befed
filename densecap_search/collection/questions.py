"""Captions taken apart into what asks and what is stored, so that a search can be tested by an archive's own words.

A question is made of one record, once, and nothing of what it asks is left in what is stored: whoever tests a ranking
of captions gives it `stored` and has no way to the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from densecap_search.collection.captions import sentences
from densecap_search.collection.records import Record

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Question:
    """What asks, and the captions that stay with the picture. No sentence is in both, whatever its punctuation."""

    image_id: str
    asks: str
    stored: tuple[str, ...]


def halves(record: Record) -> Question | None:
    """The first, third, … sentence asks, the others are stored; None where there are not two different ones."""
    parts = [part for caption in record.captions for part in sentences(caption)]
    return _question(record, parts[0::2], parts[1::2], joined=True)


def captions(record: Record) -> Question | None:
    """The first caption asks, the others are stored; None where there are not two different ones."""
    return _question(record, list(record.captions[:1]), list(record.captions[1:]), joined=False)


# name → how a record is taken apart
PROTOCOLS: Mapping[str, Callable[[Record], Question | None]] = {"captions": captions, "halves": halves}
MEANINGS: Mapping[str, str] = {
    "captions": "the first caption of each picture asks, its other captions are stored",
    "halves": "every other sentence of each description asks, the remaining ones are stored",
}


def choose_protocol(records: Sequence[Record]) -> str:
    """captions where most of the captioned pictures have several, halves elsewhere."""
    several = sum(len(record.captions) > 1 for record in records)
    return "captions" if 2 * several > sum(bool(record.captions) for record in records) else "halves"


def _question(record: Record, asks: list[str], stored: list[str], joined: bool) -> Question | None:
    said = {_plain(sentence) for text in asks for sentence in sentences(text)}
    kept = [left for text in stored if (left := _without(text, said))]
    if not kept or not any(said):
        return None
    return Question(record.image_id, "\n".join(asks), ("\n".join(kept),) if joined else tuple(kept))


def _without(text: str, said: set[str]) -> str:
    """A text less the sentences that are asked; as it is where none of them is."""
    parts = sentences(text)
    kept = [part for part in parts if _plain(part) not in said]
    return text if len(kept) == len(parts) else "\n".join(kept)  # a space would make one sentence of two


def _plain(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))
