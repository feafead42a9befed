"""What was asked → what the page shows of it. Plain functions on a searcher; no server, no gradio."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any

from densecap_search.errors import DensecapError, ModelError
from densecap_search.model.letters import letters_hint
from densecap_search.model.text_encoder import TextEncoder
from densecap_search.retrieval import queries
from densecap_search.retrieval.explain import Explanation
from densecap_search.retrieval.filters import columns_of, parse_filter
from densecap_search.retrieval.heat import Heat
from densecap_search.retrieval.rows import Row
from densecap_search.retrieval.searcher import ALL, Hit, Narrowed
from densecap_search.ui.gallery import changed, is_missing
from densecap_search.ui.live import Shown, picture_name

MOST_LETTERS = 20_000  # of a caption: some 4,000 words, far beyond every window
FIELDS = ("the field Must contain", "the field Without")  # as the page calls them
MOST_HITS = 5_000  # to which a ranking can be paged


@dataclass(frozen=True)
class Query:
    """What is asked for, and hits up to which rank.

    near: pictures of the index by the names that :func:`picture_name` gives, with their weights. picture: the bytes of
    another one.
    """

    last: int
    asked: queries.Query = field(default_factory=queries.Query)
    near: tuple[tuple[float, str], ...] = ()
    picture: bytes = b""
    mode: str = "auto"
    narrowed: Narrowed = ALL
    stacks: bool = False
    sort: str = "score"

    @property
    def alike(self) -> tuple[str, Narrowed, bool, str]:
        """What queries that are answered together have in common. What is ranked is put in order of date page by page,
        so that no page repeats another."""
        ranked = bool(self.asked.texts or self.near or self.picture)
        return self.mode, self.narrowed, self.stacks, "score" if ranked else self.sort


@dataclass(frozen=True)
class Found:
    """Hits of one query from rank 1 on, and what its caption says that a field would say better.

    note: what should be known of the caption; "" where there is nothing.
    """

    shown: Shown
    hits: list[Hit]
    hints: list[str]
    note: str = ""


def check_asked(query: Query) -> Query:
    """The query, or a sentence about what is wrong with it. A caption may lack where something else is asked for."""
    narrows = query.narrowed.must or query.narrowed.where is not None
    if not query.asked.texts and not query.near and not query.picture and not narrows:
        raise DensecapError("describe the picture you look for")
    longest = max((len(text) for _, text in query.asked.texts), default=0)
    if longest > MOST_LETTERS:
        raise DensecapError(f"the caption has {longest:,} letters; at most {MOST_LETTERS:,} are read")
    return query


def check_caption(caption: str) -> str:
    """The caption, or a sentence about what is wrong with it."""
    check_asked(Query(0, queries.Query(caption)))
    return caption


def check_filter(where: str | None, absolute: bool) -> None:
    """Refuse a filter that cannot be read; and one by whole paths unless they may be seen, for it could guess them."""
    if where is not None and "path" in map(str.casefold, columns_of(parse_filter(where))) and not absolute:
        raise DensecapError("whole paths are not shown here, so a filter cannot ask for them; ask for folder or id")


def answer(shown: Shown, asked: Sequence[Query]) -> list[Found]:
    """The hits of each query; those that are searched alike go through the text tower together."""
    hits: dict[int, list[Hit]] = {}
    for mode, narrowed, stacks, sort in {query.alike for query in asked if not query.picture}:
        own = [query for query in asked if not query.picture and query.alike == (mode, narrowed, stacks, sort)]
        find = shown.searcher.stacks if stacks else shown.searcher.find
        ranked_lists, _ = find([_resolved(shown, query) for query in own], max(query.last for query in own), mode=mode,
                               narrowed=narrowed, sort=sort)
        hits.update({id(query): ranked for query, ranked in zip(own, ranked_lists, strict=True)})
    return [Found(shown, (_by_picture(shown, query) if query.picture else hits[id(query)])[:query.last],
                  [f"{hint[0].upper()}{hint[1:]}." for hint in queries.hints(query.asked.caption, *FIELDS)],
                  _note(shown, query)) for query in asked]


def _note(shown: Shown, query: Query) -> str:
    """That the text tower cannot read words of a caption, where it is searched by them."""
    if not query.asked.caption or shown.searcher.mode(query.mode) == "words":
        return ""
    hint = letters_hint(shown.searcher.encoder.tokenizer, query.asked.caption)
    return f"{hint[0].upper()}{hint[1:]}." if hint else ""


def _resolved(shown: Shown, query: Query) -> queries.Query:
    """The query with the numbers that its pictures have in this generation. Errors: where one is not in the index."""
    near = tuple((weight, row_of(shown, name).number) for weight, name in query.near)
    return replace(query.asked, near=near) if near else query.asked


def row_of(shown: Shown, picture: str) -> Row:
    """What the index knows of a picture, or a sentence that it has none such."""
    row = shown.row(picture)
    if row is None:
        raise DensecapError("the index has no such picture")
    return row


def explained(shown: Shown, asked: queries.Query, pictures: Sequence[str]) -> Explanation:
    """What each sentence of a query says of some pictures, by their names."""
    return shown.searcher.explain(asked, [row_of(shown, name).number for name in pictures])


def heated(shown: Shown, picture: str, text: str) -> Heat | str:
    """Where in a picture a text fits, or a sentence why that cannot be told."""
    row = row_of(shown, picture)
    if problem := changed(row):
        return problem
    try:
        return shown.searcher.heat(Path(row.image), text)
    except ModelError:
        return "The model looks at a picture as a whole; it cannot tell where in it a sentence fits."
    except DensecapError:
        return "The picture cannot be opened."


def cards(hits: Sequence[Hit], shown: Shown, absolute: bool,
          captions: Callable[[Row], Sequence[str]] = attrgetter("captions")) -> list[dict[str, Any]]:
    """Hits as the page and the API give them. absolute: whether their whole paths may be seen; captions: of a row, as
    they are to be read.
    """
    numbers = [one.number for hit in hits for one in (hit, *hit.under)]
    rows = {row.number: row for row in shown.index.rows.many(numbers)}

    def card(hit: Hit) -> dict[str, Any]:
        row = rows[hit.number]
        return {**_card(hit, picture_name(row), shown, absolute), "caption": "\n".join(captions(row)),
                "under": [card(one) for one in hit.under]}

    return [card(hit) for hit in hits]


def _card(hit: Hit, picture: str, shown: Shown, absolute: bool) -> dict[str, Any]:
    return {
        "rank": hit.rank, "score": None if hit.score is None else round(hit.score, 6), "image_id": hit.image_id,
        "match": None if hit.match is None else round(hit.match, 4), "by": hit.by, "strength": hit.strength,
        "name": PurePath(hit.image).name, "path": shown.path(hit.image, absolute),
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
    text += f"{first:,} to {first + len(cards) - 1:,} of {total:,} pictures, {order} first"
    under = sum(len(one["under"]) for one in cards)
    text += f"; {under:,} more that are nearly the same lie under them." if under else "."
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
    segments = encoder.segments([caption])
    tokens = segments.truncation.longest
    if tokens <= window:
        return Reading(words, tokens, window)
    if segments.truncation.split:
        return Reading(words, tokens, window, segments=segments.truncation.segments)
    low, high = 0, len(caption)  # the longest beginning that fits; tokens grow with letters but for the last word
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if encoder.lengths([caption[:middle]])[0] <= window else (low, middle - 1)
    return Reading(words, tokens, window, end=low)


def _by_picture(shown: Shown, query: Query) -> list[Hit]:
    with tempfile.NamedTemporaryFile(prefix="densecap-query-") as file:
        file.write(query.picture)
        file.flush()
        find = shown.searcher.stacks if query.stacks else shown.searcher.find
        asked = replace(_resolved(shown, query), image=Path(file.name))
        try:
            return find([asked], query.last, mode=query.mode, narrowed=query.narrowed)[0][0]
        except DensecapError as error:  # names our temporary file, which says nothing to who asked
            raise DensecapError(str(error).replace(file.name, "the picture")) from error
