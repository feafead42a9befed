from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from densecap_search.cli import main
from densecap_search.collection.corrections import (
    Correction,
    corrected,
    corrections_file,
    keep_correction,
    read_corrections,
)
from densecap_search.collection.readers import read_collection
from densecap_search.config import Reading
from densecap_search.errors import CollectionError
from densecap_search.retrieval.index import load_index

OLD = "A red ball lies on the left of a white table, and nothing else can be seen."
NEW = "A tomato\nlies on a table."


def change(*pairs: tuple[str, str]) -> list[Correction]:
    return [Correction("/a.png", before, after) for before, after in pairs]


def test_corrections_are_made_in_turn_and_one_of_what_is_not_there_changes_nothing():
    assert corrected(["a", "b"], change(("a", "A"), ("A", "aa"), ("x", "y"))) == ("aa", "b")
    assert corrected(["a", "b"], change(("a", "b"))) == ("b",)
    assert corrected(["a", "b"], change(("a", ""))) == ("b",)
    assert corrected([], change(("", "new"), ("new", "newer"))) == ("newer",)
    assert corrected(["newer"], change(("new", "newer"))) == ("newer",)  # the collection has it by now


def test_a_collection_is_read_with_corrections_and_its_files_stay(photos: Path, tmp_path: Path):
    side, file = photos / "red-left-ball.txt", tmp_path / "c.jsonl"
    keep_correction(file, Correction(str(photos / "red-left-ball.png"), OLD, NEW))
    keep_correction(file, Correction(str(photos / "red-left-box.png"), "what it never said", "x"))
    with file.open("a") as lines:
        lines.write('{"densecap": "corrections", "image": 1}\n[]\nhalf a li')
    plain, found = read_collection(photos), read_collection(photos, Reading(corrections=str(file)))
    differing = [(old.image_id, new.captions) for old, new in zip(plain.records, found.records, strict=True) if old != new]
    assert differing == [("red-left-ball.png", (NEW,))]
    assert found.notes[-1] == ("captions of 1 pictures corrected by c.jsonl; 1 more are as they should be, or others than "
                               "were corrected, or not here")
    assert side.read_text() == OLD
    with pytest.raises(CollectionError, match="cannot read the corrections"):
        read_collection(photos, Reading(corrections=str(tmp_path / "none")))
    with pytest.raises(CollectionError, match="holds no corrections"):
        read_collection(photos, Reading(corrections=str(side)))


def test_index_finds_the_corrections_beside_it_and_says_so(photos: Path, tiny_run: Path, tmp_path: Path):
    index = tmp_path / "indexes" / "mine"
    words = ["index", str(photos), "--model", str(tiny_run), "-o", str(index)]
    assert CliRunner().invoke(main, words).exit_code == 0
    keep_correction(corrections_file(index), Correction(str(photos / "red-left-ball.png"), OLD, NEW))
    assert list(read_corrections(tmp_path / "indexes" / "mine.corrections.jsonl")) == [str(photos / "red-left-ball.png")]
    done = CliRunner().invoke(main, words)
    assert "captions of 1 pictures corrected by mine.corrections.jsonl" in done.output
    assert {row.captions for row in load_index(index).rows if row.image_id == "red-left-ball.png"} == {(NEW,)}
