"""What people answered beside the hits of a search ("this is the one", "none of these"), as questions to learn from.

A line an answer, in a file beside the index. A question belongs to its picture's content, which alone decides whether
it is trained on or asked: so it stays on its side however the file grows, and however often the picture is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeGuard

from densecap_search.collection.captions import caption_key
from densecap_search.collection.images import not_a_picture
from densecap_search.collection.json_tables import read_jsonl
from densecap_search.collection.page_lines import file_beside, is_line, keep_line
from densecap_search.collection.records import Skipped
from densecap_search.collection.source import Row, Rows, Source
from densecap_search.files import HASH_BYTES, hash_file, json_text

FORMAT = "feedback"
MOST_BYTES = 64 << 20  # of a file: some 100,000 answers
HELD_OUT = (2, 5)  # so many of so many pictures: their questions are asked and never trained on
FEW = 50  # questions below which a figure tells next to nothing
_HASH = re.compile(f"[0-9a-f]{{{2 * HASH_BYTES}}}")


@dataclass(frozen=True)
class Answer:
    """What somebody said of the hits of a query.

    answer: "this" is the one; "none" of them is; "undo" takes back what was said of this query and this picture.
    image, hash: of the picture, its path and content; empty with "none". shown: hits that were looked at. model: name
    and fingerprint. time: as ISO 8601 has it, with its zone.
    """

    query: str
    answer: Literal["this", "none", "undo"]
    time: str
    index: str
    model: str
    fingerprint: str
    image_id: str = ""
    image: str = ""
    hash: str = ""
    rank: int | None = None
    shown: int = 0


def feedback_file(index: Path) -> Path:
    """Where the answers to searches of an index are kept: beside its folder, whose files are the index's alone."""
    return file_beside(index, FORMAT)


def index_beside(file: Path) -> Path:
    """The index whose answers a file keeps, by its name."""
    return file.with_name(file.name.removesuffix(".jsonl").removesuffix(".feedback"))


def keep_answer(path: Path, answer: Answer) -> None:
    """Append an answer, whole or not at all."""
    said = {name: value for name, value in asdict(answer).items() if value not in ("", None)}
    keep_line(path, FORMAT, said, most_bytes=MOST_BYTES)


def held_out(content: str) -> bool:
    """Whether questions about a picture of this content are asked, and never trained on."""
    part, whole = HELD_OUT
    return int(content[:8], 16) % whole < part


def is_feedback(source: Source) -> str | None:
    """Lines that say so themselves."""
    return "answers to searches" if is_line(FORMAT, source.first) else None


def read_feedback(source: Source) -> Rows:
    """A question a row, with the split that its picture's content gives it."""
    answers = list(read_jsonl(source))
    back = set(_taken_back(answers))
    asked = {caption_key(row["query"]) for number, row in answers
             if number not in back and _is_question(row) and held_out(row["hash"])}
    for number, row in answers:
        yield number, _question(number, row, back, asked)


def _question(number: int, row: Row | Skipped, back: set[int], asked: set[str]) -> Row | Skipped:
    if isinstance(row, Skipped):
        return row
    if number in back:
        return Skipped("", "an answer that was taken back", number)
    if row.get("answer") == "none":
        return Skipped("", "a search that found none of what was looked for", number)
    if not _is_question(row):
        return Skipped("", "no answer to a search", number)
    image, split = row["image"], "test" if held_out(row["hash"]) else "train"
    if split == "train" and caption_key(row["query"]) in asked:
        return Skipped(image, "the same words ask for a picture that is held out", number)
    if _changed(Path(image), row["hash"]):
        return Skipped(image, "the picture has changed since it was asked for", number)
    return {"image": image, "caption": row["query"], "split": split}


def _taken_back(answers: Iterable[tuple[int, Row | Skipped]]) -> Iterator[int]:
    """The rows that a later one takes back, and those that do."""
    said: dict[str, list[int]] = {}
    for number, row in answers:
        if isinstance(row, Skipped):
            continue
        key = json_text([row.get("query"), row.get("hash")])
        if row.get("answer") == "undo":
            yield from said.pop(key, [])
            yield number
        else:
            said.setdefault(key, []).append(number)


def _is_question(row: Row | Skipped) -> TypeGuard[Row]:
    return (isinstance(row, Mapping) and row.get("answer") == "this" and isinstance(row.get("image"), str)
            and isinstance(row.get("query"), str) and isinstance(row.get("hash"), str)
            and _HASH.fullmatch(row["hash"]) is not None)


def _changed(image: Path, content: str) -> bool:
    """Whether another file has taken the picture's place; one that is gone is told by who looks for it."""
    try:
        return not_a_picture(image) is None and hash_file(image) != content
    except OSError:
        return False
