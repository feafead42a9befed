"""What was asked → what the page shows of it. Plain functions on a searcher; no server, no gradio."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from densecap_search.errors import DensecapError
from densecap_search.model.text_encoder import TextEncoder
from densecap_search.retrieval import queries
from densecap_search.retrieval.filters import columns_of, parse_filter
from densecap_search.retrieval.rows import Row
from densecap_search.retrieval.searcher import ALL, Hit, Narrowed
from densecap_search.ui.gallery import is_missing
from densecap_search.ui.live import Shown, picture_name

MOST_LETTERS = 20_000  # of a caption: some 4,000 words, far beyond every window
MOST_HITS = 5_000  # to which a ranking can be paged


@dataclass(frozen=True)
class Query:
    """One of: a caption, an indexed picture, the bytes of another. last: hits up to this rank.

    mode, narrowed: of a caption, which may be empty where ``narrowed`` asks for something.
    """

    last: int
    caption: str = ""
    like: Row | None = None
    picture: bytes = b""
    mode: str = "auto"
    narrowed: Narrowed = ALL
    sort: str = "score"

    @property
    def by_words(self) -> bool:
        """Whether no picture is searched by."""
        return self.like is None and not self.picture


@dataclass(frozen=True)
class Found:
    """Hits of one query from rank 1 on, and of a caption how the tower reads it."""

    shown: Shown
    hits: list[Hit]


def check_caption(caption: str, narrowed: Narrowed = ALL) -> str:
    """The caption, or a sentence about what is wrong with it. It may be empty where something else is asked for."""
    if not caption.strip() and narrowed == ALL:
        raise DensecapError("describe the picture you look for")
    if len(caption) > MOST_LETTERS:
        raise DensecapError(f"the caption has {len(caption):,} letters; at most {MOST_LETTERS:,} are read")
    return caption


def check_filter(where: str | None, absolute: bool) -> None:
    """Refuse a filter that cannot be read; and one by whole paths unless they may be seen, for it could guess them."""
    if where is not None and "path" in map(str.casefold, columns_of(parse_filter(where))) and not absolute:
        raise DensecapError("whole paths are not shown here, so a filter cannot ask for them; ask for folder or id")


def answer(shown: Shown, asked: Sequence[Query]) -> list[Found]:
    """The hits of each query; captions that are searched alike go through the text tower together."""
    hits: dict[int, list[Hit]] = {}
    for way in {_way(query) for query in asked if query.by_words}:
        own = [query for query in asked if query.by_words and _way(query) == way]
        mode, narrowed, sort = way
        found, _ = shown.searcher.find([queries.Query(query.caption) for query in own],
                                       max(query.last for query in own), mode=mode, narrowed=narrowed, sort=sort)
        hits.update({id(query): ranked for query, ranked in zip(own, found, strict=True)})
    return [Found(shown, (hits[id(query)] if query.by_words else _like(shown, query))[:query.last])
            for query in asked]


def _way(query: Query) -> tuple[str, Narrowed, str]:
    """How it is searched; what is ranked is put in order of date page by page, so that no page repeats another."""
    return query.mode, query.narrowed, query.sort if not query.caption.strip() else "score"


def cards(hits: Sequence[Hit], shown: Shown, absolute: bool) -> list[dict[str, Any]]:
    """Hits as the page and the API give them. absolute: whether their whole paths may be seen."""
    rows = shown.index.rows.many([hit.number for hit in hits])
    return [_card(hit, picture_name(row), shown, absolute) for hit, row in zip(hits, rows, strict=True)]


def _card(hit: Hit, picture: str, shown: Shown, absolute: bool) -> dict[str, Any]:
    return {
        "rank": hit.rank, "score": None if hit.score is None else round(hit.score, 6), "image_id": hit.image_id,
        "match": None if hit.match is None else round(hit.match, 4), "by": hit.by, "strength": hit.strength,
        "name": PurePath(hit.image).name, "path": shown.path(hit.image, absolute), "caption": hit.caption,
        "picture": picture, "missing": is_missing(hit.image),
    }


def message(first: int, cards: Sequence[dict[str, Any]], total: int, sort: str = "score") -> str:
    """The sentence above the hits."""
    if not cards and first == 1:
        return f"None of the {total:,} pictures meets the conditions."
    if not cards:
        return f"No more pictures; the index has {total:,}."
    missing = sum(one["missing"] for one in cards)
    text = "Nothing here fits well. " if first == 1 and cards[0]["strength"] == "none" else ""
    order = "best" if sort == "score" else "newest"
    text += f"{first:,} to {first + len(cards) - 1:,} of {total:,} pictures, {order} first."
    if missing:
        text += (" One of them is no longer where it was indexed." if missing == 1
                 else f" {missing:,} of them are no longer where they were indexed.")
    return text


@dataclass(frozen=True)
class Reading:
    """How the text tower reads a caption. end: letters of it that are read, where it is cut; segments: where split."""

    words: int
    tokens: int
    context_length: int
    end: int | None = None
    segments: int = 1


def reading(encoder: TextEncoder, caption: str) -> Reading:
    """Words and tokens of a caption, and where the window ends."""
    words, window = len(caption.split()), encoder.context_length
    found = encoder.segments([caption])
    tokens = found.truncation.longest
    if tokens <= window:
        return Reading(words, tokens, window)
    if found.truncation.split:
        return Reading(words, tokens, window, segments=found.truncation.segments)
    low, high = 0, len(caption)  # the longest beginning that fits; tokens grow with letters but for the last word
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if encoder.lengths([caption[:middle]])[0] <= window else (low, middle - 1)
    return Reading(words, tokens, window, end=low)


def _like(shown: Shown, query: Query) -> list[Hit]:
    if query.like is not None:
        return shown.searcher.by_image(Path(query.like.image), query.last)
    with tempfile.NamedTemporaryFile(prefix="densecap-query-") as file:
        file.write(query.picture)
        file.flush()
        try:
            return shown.searcher.by_image(Path(file.name), query.last)
        except DensecapError as error:  # names our temporary file, which says nothing to who asked
            raise DensecapError(str(error).replace(file.name, "the picture")) from error
