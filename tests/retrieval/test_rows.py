from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from densecap_search.errors import IndexFolderError
from densecap_search.retrieval.rows import Row, Rows, add_rows, changing, create_rows, end_rows


def row(number: int, **values: object) -> Row:
    return replace(Row(number, "c", f"{number}.jpg", f"/p/{number}.jpg", (f"caption {number}",), f"{number:032x}"), **values)


def ids(path: Path, generation: int) -> list[str]:
    return [found.image_id for found in Rows(path, generation, 0)]


def test_a_row_comes_back_as_it_was_given(tmp_path: Path):
    given = row(0, image_id=os.fsdecode(b"caf\xe9.jpg"), image=os.fsdecode(b"/p/caf\xe9.jpg"), captions=("a\nb", "\ud800 half", "", "東京 \x1e"),
                size=1 << 40, modified=1_700_000_000_123_456_789, signature=b"12345678", split="val", group="g", burst="b",
                taken="2019-05-31", folder="x/y", columns={"a b": "text", "c": 3, "d": 0.5, "huge": 1 << 70, "'; --": "x"})
    create_rows(tmp_path / "r", 1, [given, row(1)])
    rows = Rows(tmp_path / "r", 1, 2)
    assert rows[0] == replace(given, columns={**given.columns, "huge": str(1 << 70)})
    assert [found.number for found in rows.many([1, 0, 1])] == [1, 0, 1]
    assert (len(rows), rows[1].columns) == (2, {})
    with pytest.raises(IndexFolderError, match="does not name picture 7"):
        rows.many([0, 7])


def test_each_generation_sees_its_own_rows(tmp_path: Path):
    path = tmp_path / "r"
    create_rows(path, 1, [row(0), row(1), row(2)])
    with changing(path, 1, 2) as connection:
        end_rows(connection, 2, [1, 2])
        add_rows(connection, 2, [row(2, image_id="moved.jpg"), row(3)])
    assert (ids(path, 1), ids(path, 2)) == (["0.jpg", "1.jpg", "2.jpg"], ["0.jpg", "moved.jpg", "3.jpg"])
    with changing(path, 1, 3) as connection:  # after an undo, or where 2 was killed before it was named
        add_rows(connection, 3, [row(3, image_id="other.jpg")])
    assert ids(path, 3) == ["0.jpg", "1.jpg", "2.jpg", "other.jpg"]
    assert ids(path, 1) == ["0.jpg", "1.jpg", "2.jpg"]


def test_what_raises_in_a_transaction_leaves_no_trace(tmp_path: Path):
    path = tmp_path / "r"
    create_rows(path, 1, [row(0)])
    with suppress(KeyError), changing(path, 1, 2) as connection:
        end_rows(connection, 2, [0])
        add_rows(connection, 2, [row(1)])
        raise KeyError
    assert (ids(path, 1), ids(path, 2)) == (["0.jpg"], ["0.jpg"])


def test_readers_go_on_while_a_writer_writes(tmp_path: Path):
    path = tmp_path / "r"
    create_rows(path, 1, [row(0)])
    rows, seen = Rows(path, 1, 1), []
    with changing(path, 1, 2) as connection:
        end_rows(connection, 2, [0])
        reader = threading.Thread(target=lambda: seen.append(rows[0].image_id))
        reader.start()
        reader.join(5)
        assert seen == [rows[0].image_id] == ["0.jpg"]


def test_words_of_captions_and_file_names_are_found_in_their_generation(tmp_path: Path):
    path = tmp_path / "r"
    create_rows(path, 1, [row(0, captions=("Two red boats",)), row(1, captions=("a café",)), row(2, image="/p/IMG_77 boat.jpg")])
    with changing(path, 1, 2) as connection:
        end_rows(connection, 2, [0])
    sql = "SELECT number FROM words JOIN pictures ON pictures.key = words.rowid WHERE words MATCH ? ORDER BY number"
    for generation, boats in ((1, [(0,), (2,)]), (2, [(2,)])):
        rows = Rows(path, generation, 0)
        assert rows.query(sql, ["boat"]) == boats
        assert rows.query(sql, ["cafe"]) == [(1,)]
        assert rows.query(sql, ["name : 77"]) == [(2,)]


def test_a_schema_from_elsewhere_runs_nothing(tmp_path: Path):
    create_rows(tmp_path / "r", 1, [row(0)])
    with sqlite3.connect(tmp_path / "r") as connection:
        connection.execute("CREATE TEMP TABLE x (y)")
        connection.execute("ALTER TABLE columns RENAME TO hidden")
        connection.execute("CREATE VIEW columns AS SELECT number, load_extension('/tmp/x.so') AS name FROM hidden")
        connection.execute("INSERT INTO hidden VALUES (1, 'a')")
    with pytest.raises(IndexFolderError, match="cannot read or write"):
        Rows(tmp_path / "r", 1, 1)


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100])
def test_a_file_that_holds_no_rows_is_told(content: bytes, tmp_path: Path):
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(IndexFolderError, match=r"r\b"):
        Rows(tmp_path / "r", 1, 1)
