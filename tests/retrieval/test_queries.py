from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from densecap_search.errors import ConfigError
from densecap_search.retrieval.queries import Query, count_sentences, read_queries


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_sentences_that_count_otherwise_are_left_out_or_asked_once_more():
    query = Query("A red bus. It rains! Night.", also=((0.5, "fog"),))
    assert count_sentences(query, [1, 1]) == count_sentences(query, []) == query
    assert count_sentences(query, [2, 0]) == Query("A red bus. Night.", also=((0.5, "fog"), (1.0, "A red bus.")))
    assert count_sentences(query, [0, 0, 3, 5]) == Query("Night.", also=((0.5, "fog"), (2.0, "Night.")))


def test_a_text_file_has_a_caption_a_line(tmp_path: Path):
    path = write(tmp_path, "q.txt", "\ufeffa red bus, far left\r\n\n 10:30 train\n")
    assert list(read_queries(path)) == [Query("a red bus, far left"), Query(" 10:30 train")]
    latin = write(tmp_path, "l.txt", "Müller-Straße\n".encode("cp1252"))
    assert [query.caption for query in read_queries(latin)] == ["Müller-Straße"]
    late = write(tmp_path, "late.txt", b"a red bus\n" * 5000 + "Müller\n".encode("cp1252"))
    assert len(list(read_queries(late))) == 5001


def test_every_field_survives_csv_and_json_lines(tmp_path: Path):
    expected = Query('a "bus",\nred', tmp_path / "a.jpg", ((2.0, "rain"), (0.5, "at night")), ("no people", "cars"), ("1984.23",))
    cells = ['"a ""bus"",\nred"', "a.jpg", '"2 rain\n0.5 at night"', '"no people\ncars"', "1984.23"]
    table = write(tmp_path, "q.csv", "caption,image,also,without,must,other\n" + ",".join(cells) + ",x\n")
    assert list(read_queries(table)) == [expected]
    lines = write(tmp_path, "q.jsonl", json.dumps({
        "caption": expected.caption, "image": "a.jpg", "also": [[2, "rain"], [0.5, "at night"]],
        "without": ["no people", "cars"], "must": "1984.23"}) + "\n\n\"only a caption\"\n")
    assert list(read_queries(lines)) == [expected, Query("only a caption")]
    assert list(read_queries(write(tmp_path, "q.json", '["one", "two\\nlines"]'))) == [Query("one"), Query("two\nlines")]


def test_a_list_is_told_by_its_bracket_and_a_pipe_is_refused(tmp_path: Path):
    assert list(read_queries(write(tmp_path, "q.txt", '\ufeff ["one", {"must": "two"}]'))) == [Query("one"), Query(must=("two",))]
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(ConfigError, match="cannot read the queries"):
        list(read_queries(tmp_path / "pipe.txt"))


def test_only_what_is_asked_for_is_read(tmp_path: Path):
    path = write(tmp_path, "q.jsonl", '"one"\n"two"\nbroken\n')
    queries = read_queries(path)
    assert (next(queries), next(queries)) == (Query("one"), Query("two"))
    with pytest.raises(ConfigError, match="line 3 is no JSON"):
        next(queries)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("q.csv", "picture\na.jpg\n", "no column caption, image or must; it has: picture"),
    ("q.csv", "caption,also\na,much rain\n", "line 2: a term in `also` is a weight, a space and a text"),
    ("q.jsonl", "[1]\n", "line 1: a query is a text or an object"),
    ("q.jsonl", '{"caption": 3}\n', "caption and image are texts"),
    ("q.jsonl", '{"caption": "a", "also": [["x", 1]]}\n', "also is a list of"),
    ("q.jsonl", '{"without": ["a"], "caption": " "}', None),
    ("q.jsonl", "{}\n", "asks for nothing"),
    ("q.json", '{"a": 1}', "must be a JSON list"),
    ("q.txt", b"\x00\x01", "is not a text file"),
])
def test_what_cannot_be_read_is_named_with_its_line(tmp_path: Path, name: str, content: str | bytes, message: str | None):
    path = write(tmp_path, name, content)
    if message is None:
        assert len(list(read_queries(path))) == 1
        return
    with pytest.raises(ConfigError, match=message):
        list(read_queries(path))
    with pytest.raises(ConfigError, match="cannot read the queries"):
        list(read_queries(tmp_path / "missing.txt"))
