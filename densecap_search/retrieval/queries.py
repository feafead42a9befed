"""What is asked of an index, and files of it: a query a line, read as they are needed."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from densecap_search.collection.captions import sentences
from densecap_search.collection.text_files import decode
from densecap_search.errors import ConfigError
from densecap_search.files import open_file, read_bytes

_QUOTED = re.compile(r'"[^"]+"|“[^”]+”|„[^“”]+[“”]')
_WITHOUT = re.compile(r"\b(?:no|without|not any) \w+", re.IGNORECASE)
OTHER_ENCODING_BYTES = 1 << 28  # of a file that is not UTF-8, which is read at once
FIELDS = ("caption", "image", "also", "without", "must")


@dataclass(frozen=True)
class Query:
    """caption, or picture, or both. also: further texts with their weights, beside the caption's 1. without: texts that
    count against a picture, each −1. must: words that have to occur. near: pictures of the index by their numbers, with
    their weights, below 0 for what it should not look like."""

    caption: str = ""
    image: Path | None = None
    also: tuple[tuple[float, str], ...] = ()
    without: tuple[str, ...] = ()
    must: tuple[str, ...] = ()
    near: tuple[tuple[float, int], ...] = ()

    @property
    def texts(self) -> tuple[tuple[float, str], ...]:
        """Weights and texts; a weight of 0 is as none. The order of terms changes nothing."""
        own = ((1.0, self.caption),) if self.caption.strip() else ()
        terms = sorted((*self.also, *((-1.0, text) for text in self.without)), key=lambda term: (-term[0], term[1]))
        return (*own, *((weight, text) for weight, text in terms if weight and text.strip()))

    def __str__(self) -> str:
        return self.caption or (str(self.image) if self.image else "; ".join((*self.must, *(t for _, t in self.also))))


def count_sentences(query: Query, times: Sequence[int]) -> Query:
    """A query whose caption's first sentences count so many times: 0 not at all, 1 as they do anyway, more beside the
    caption, as texts of ``also``."""
    parts = sentences(query.caption)
    counted = [*times, *[1] * (len(parts) - len(times))][:len(parts)]
    if all(count == 1 for count in counted):
        return query
    kept = [(part, count) for part, count in zip(parts, counted, strict=True) if count > 0]
    more = tuple((float(count - 1), part) for part, count in kept if count > 1)
    return replace(query, caption=" ".join(part for part, _ in kept), also=(*query.also, *more))


def hints(caption: str, must: str = "--must WORDS", without: str = "--without TEXT") -> list[str]:
    """What a caption says that a field would say better; a caption is never taken apart by its signs.

    must, without: what the fields are called where the hint is read.
    """
    told = []
    if _QUOTED.search(caption):
        told.append(f"quotation marks in a caption are read as any other sign; {must} asks for exact words")
    if said := _WITHOUT.search(caption):
        told.append(f"“{said.group()}” in a caption does not keep it out of the hits; {without} does")
    return told


def read_queries(path: Path) -> Iterator[Query]:
    """The queries of a file, one at a time.

    .txt (or any other ending): a caption a line, empty lines left out, or a JSON list. .csv, .tsv: columns of FIELDS;
    several values of one stand on lines of their own. .jsonl: an object a line with keys of FIELDS, ``also`` a list of
    [weight, text]. .json: a list of captions. Errors: ConfigError with the line.
    """
    try:
        with open_file(path) as binary:
            start = binary.read(100).removeprefix(b"\xef\xbb\xbf").lstrip()
            binary.seek(0)
            reader = _READERS.get(path.suffix.lower(), _list if start.startswith(b"[") else _lines)
            if not _is_utf8(binary):
                text = decode(read_bytes(path, OTHER_ENCODING_BYTES))
                yield from reader(io.StringIO(text, newline=""), path)
                return
            binary.seek(0)
            with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as file:
                yield from reader(file, path)
    except OSError as error:
        raise ConfigError(f"cannot read the queries {path}: {error.strerror}") from error


def _is_utf8(file: BinaryIO) -> bool:
    """Looked at whole, before the first query is taken from it."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while block := file.read(1 << 20):
            decoder.decode(block)
        decoder.decode(b"", final=True)
        return True
    except UnicodeDecodeError:
        return False


def _lines(file: TextIO, path: Path) -> Iterator[Query]:
    for line in file:
        if "\0" in line:
            raise ConfigError(f"{path} is not a text file; give a caption a line, a .csv, a .jsonl or a .json list")
        if line.strip():
            yield Query(line.strip("\r\n"))


def _rows(file: TextIO, path: Path) -> Iterator[Query]:
    csv.field_size_limit(1 << 27)
    rows = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
    known = set(rows.fieldnames or ()) & set(FIELDS)
    if not known & {"caption", "image", "must"}:
        raise ConfigError(f"{path} has no column caption, image or must; it has: {', '.join(rows.fieldnames or ())}")
    try:
        for row in rows:
            several = {name: [text for text in (row.get(name) or "").splitlines() if text.strip()]
                       for name in ("also", "without", "must")}
            yield _query({"caption": row.get("caption") or "", "image": row.get("image") or None,
                          "also": [_term(text, path, rows.line_num) for text in several.pop("also")], **several},
                         path, rows.line_num)
    except csv.Error as error:
        raise ConfigError(f"{path}, line {rows.line_num}: {error}") from error


def _term(text: str, path: Path, line: int) -> list[Any]:
    weight, _, rest = text.partition(" ")
    try:
        return [float(weight), rest]
    except ValueError:
        raise ConfigError(f"{path}, line {line}: a term in `also` is a weight, a space and a text; this is {text!r}"
                          ) from None


def _objects(file: TextIO, path: Path) -> Iterator[Query]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{path}, line {number} is no JSON: {error}") from error
            yield _query({"caption": values} if isinstance(values, str) else values, path, number)


def _list(file: TextIO, path: Path) -> Iterator[Query]:
    try:
        values = json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a JSON list: {error}") from error
    if not isinstance(values, list):
        raise ConfigError(f"{path} must be a JSON list of texts")
    for number, value in enumerate(values, start=1):
        yield _query({"caption": value} if isinstance(value, str) else value, path, number)


def _query(values: Any, path: Path, line: int) -> Query:
    """A mapping of FIELDS → Query; paths are taken from the file's folder."""
    place = f"{path}, line {line}"
    if not isinstance(values, Mapping):
        raise ConfigError(f"{place}: a query is a text or an object with keys of {', '.join(FIELDS)}")
    caption, image = values.get("caption") or "", values.get("image")
    lists = [values.get(name) or [] for name in ("without", "must")]
    lists = [[value] if isinstance(value, str) else value for value in lists]
    if not isinstance(caption, str) or not isinstance(image, str | None) or not all(
            isinstance(each, list) and all(isinstance(text, str) for text in each) for each in lists):
        raise ConfigError(f"{place}: caption and image are texts, without and must are lists of texts")
    also = values.get("also") or []
    if not isinstance(also, list) or not all(_is_term(term) for term in also):
        raise ConfigError(f"{place}: also is a list of [weight, text]")
    query = Query(caption, path.parent / image if image else None, tuple((float(w), t) for w, t in also),
                  tuple(lists[0]), tuple(lists[1]))
    if not query.texts and query.image is None and not query.must:
        raise ConfigError(f"{place} asks for nothing: give caption, image or must")
    return query


def _is_term(term: Any) -> bool:
    return (isinstance(term, list) and len(term) == 2 and isinstance(term[0], int | float)
            and not isinstance(term[0], bool) and isinstance(term[1], str))


_READERS: Mapping[str, Callable[[TextIO, Path], Iterator[Query]]] = {
    ".csv": _rows, ".tsv": _rows, ".jsonl": _objects, ".ndjson": _objects, ".json": _list,
}
