"""Hundreds of thousands of queries from a file, answered in blocks; what was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from densecap_search.errors import ConfigError
from densecap_search.files import csv_text, hash_text, json_lines, write_json
from densecap_search.model.letters import UnknownWords
from densecap_search.model.segments import Truncation
from densecap_search.retrieval.hits import COLUMNS, MATCH_COLUMNS
from densecap_search.retrieval.queries import Query, read_queries
from densecap_search.retrieval.searcher import ALL, Hit, Narrowed, Searcher
from densecap_search.talk import SILENT, Talk

BLOCK = 64  # queries that go through the text tower together


def answers(searcher: Searcher, queries: Iterator[Query], k: int, *, mode: str = "auto", narrowed: Narrowed = ALL,
            sort: str = "score", first: int = 1, talk: Talk = SILENT) -> Iterator[tuple[int, Query, list[Hit]]]:
    """(number, query, hits) of each query; the numbers begin at ``first``, and queries are read as they are needed."""
    truncation = Truncation.of([], searcher.encoder.context_length)
    unknown = UnknownWords()
    while block := list(islice(queries, BLOCK)):
        lists, own = searcher.find(block, k, mode=mode, narrowed=narrowed, sort=sort)
        truncation = truncation.and_of(own)
        if searcher.mode(mode) != "words":
            unknown.add(searcher.encoder.tokenizer, (" ".join(text for _, text in query.texts) for query in block))
        yield from zip(range(first, first + len(block)), block, lists, strict=True)
        first += len(block)
    if truncation.longer:
        talk.say(str(truncation))
    if unknown.unread:
        talk.say(str(unknown))


def search_file(searcher: Searcher, queries: Path, output: Path, k: int, *, mode: str = "auto",
                narrowed: Narrowed = ALL, sort: str = "score", inert: bool = False, talk: Talk = SILENT
                ) -> tuple[int, int]:
    """Write the hits of all queries to a .csv or .jsonl; how many hits, and of how many queries.

    inert: cells of a .csv that a spreadsheet would run get an apostrophe before them.

    Until it is whole, the file is called OUTPUT.unfinished, and OUTPUT.unfinished.json says how far it is. The same
    search of the same file in the same generation of the index goes on from there. Errors: ConfigError where the file
    holds no query or cannot be written.
    """
    mode, table = searcher.mode(mode), output.suffix.lower() == ".csv"
    columns = ["query_number", "query", *COLUMNS, *(() if mode == "image" else MATCH_COLUMNS)]
    part, place = (output.with_name(output.name + ending) for ending in (".unfinished", ".unfinished.json"))
    key = _key(searcher, queries, output, k, mode, narrowed, sort, inert)
    done = _done(place, part, key)
    if done.asked:
        talk.say(f"{done.asked} queries were answered before; {output} goes on from there")
    try:
        with part.open("r+b" if done.size else "wb") as file:
            file.truncate(done.size)
            file.seek(done.size)
            if table and not done.size:
                file.write(csv_text(columns, []).encode())
            left = islice(read_queries(queries), done.asked, None)
            answered = answers(searcher, left, k, mode=mode, narrowed=narrowed, sort=sort,
                               first=done.asked + 1, talk=talk)
            while block := list(islice(answered, BLOCK)):
                rows = [{"query_number": number, "query": str(query), **hit.told()}
                        for number, query, hits in block for hit in hits]
                file.write(_lines(rows, columns, table, inert))
                file.flush()
                done = _Done(done.asked + len(block), done.hits + len(rows), file.tell())
                write_json(place, {"key": key, **asdict(done)})
        if not done.asked:
            part.unlink()
            raise ConfigError(f"{queries} holds no query")
        part.replace(output)
        place.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror or error}") from error
    return done.hits, done.asked


@dataclass(frozen=True)
class _Done:
    """Queries that have been answered, their hits, and the bytes that these take."""

    asked: int = 0
    hits: int = 0
    size: int = 0


def _done(place: Path, part: Path, key: str) -> _Done:
    try:
        said = json.loads(place.read_bytes())
        done = _Done(int(said["asked"]), int(said["hits"]), int(said["size"]))
        return done if said["key"] == key and part.stat().st_size >= done.size else _Done()
    except (OSError, ValueError, KeyError, TypeError):
        return _Done()


def _key(searcher: Searcher, queries: Path, output: Path, k: int, mode: str, narrowed: Narrowed, sort: str,
         inert: bool) -> str:
    """Of all that decides what is written."""
    try:
        status = queries.stat()
    except OSError as error:
        raise ConfigError(f"cannot read the queries {queries}: {error.strerror}") from error
    index = searcher.index
    return hash_text(str(queries.resolve()), str(status.st_size), str(status.st_mtime_ns), str(k), mode, sort,
                     output.suffix, str(inert), str(index.place.resolve()), index.manifest.fingerprint,
                     json.dumps(asdict(narrowed)))


def _lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], table: bool, inert: bool) -> bytes:
    if not table:
        return json_lines(rows).encode("utf-8", "surrogatepass")
    text = csv_text(columns, ([row.get(name) for name in columns] for row in rows), inert=inert)
    return text.partition("\r\n")[2].encode("utf-8", "surrogatepass")  # the header stands once
