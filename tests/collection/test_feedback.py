from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from PIL import Image

from densecap_search.collection.feedback import Answer, feedback_file, held_out, keep_answer
from densecap_search.collection.readers import read_collection
from densecap_search.files import hash_file


def pictures(folder: Path, *, asked: bool, count: int = 2) -> list[Path]:
    """Pictures whose questions are all asked, or all trained on."""
    found: list[Path] = []
    for number in range(256):
        path = folder / f"{asked}-{number}.png"
        Image.new("RGB", (4, 4), (number, 7, 7)).save(path)
        if len(found) < count and held_out(hash_file(path)) == asked:
            found.append(path)
        else:
            path.unlink()
    return found


def keep(file: Path, query: str, answer: str = "this", picture: Path | None = None) -> None:
    keep_answer(file, Answer(query, answer, "2026-05-31T14:03:59+00:00", "/indexes/mine/gen-000001", "starter", "f" * 32,
                             *((picture.name, str(picture), hash_file(picture)) if picture else ()), rank=3, shown=24))


def test_answers_lie_beside_the_index_and_not_in_it(tmp_path: Path):
    assert feedback_file(tmp_path / "indexes" / "mine") == tmp_path / "indexes" / "mine.feedback.jsonl"


def test_an_answer_is_one_line_that_says_what_was_meant_by_whom_and_when(tmp_path: Path):
    (picture,) = pictures(tmp_path, asked=True, count=1)
    keep(tmp_path / "f", "two\nlines", "this", picture)
    assert json.loads((tmp_path / "f").read_text()) == {
        "densecap": "feedback", "query": "two\nlines", "answer": "this", "time": "2026-05-31T14:03:59+00:00",
        "index": "/indexes/mine/gen-000001", "model": "starter", "fingerprint": "f" * 32, "image_id": picture.name,
        "image": str(picture), "hash": hash_file(picture), "rank": 3, "shown": 24}


def test_about_two_of_five_pictures_are_held_out_and_the_content_alone_decides():
    counts = Counter(held_out(f"{number * 2654435761 % 2**32:08x}{'0' * 24}") for number in range(5000))
    assert 1900 < counts[True] < 2100
    assert [held_out(f"0000000{digit}{'0' * 24}") for digit in "01234567"] == [True, True, False, False, False, True, True, False]


def test_questions_of_a_picture_are_its_captions_and_all_on_one_side(tmp_path: Path):
    asked, trained = pictures(tmp_path, asked=True, count=1) + pictures(tmp_path, asked=False, count=1)
    Image.open(trained).save(copy := tmp_path / "copy.png")
    copy.write_bytes(trained.read_bytes())
    for query, picture in [("one", asked), ("two", trained), ("three", asked), ("four", copy), ("one", asked)]:
        keep(tmp_path / "f", query, "this", picture)
    found = read_collection(tmp_path / "f")
    assert {(record.image.name, record.captions, record.split) for record in found.records} == {
        (asked.name, ("one", "three"), "test"), (trained.name, ("two",), "train"), ("copy.png", ("four",), "train")}
    assert (found.format, found.skipped) == ("feedback", ())


def test_what_asks_for_nothing_and_what_was_taken_back_is_left_out_with_a_reason(tmp_path: Path):
    first, second = pictures(tmp_path, asked=True)
    keep(tmp_path / "f", "meant", "this", first)
    keep(tmp_path / "f", "wrong", "this", second)
    keep(tmp_path / "f", "wrong", "undo", second)
    keep(tmp_path / "f", "nothing", "none")
    keep(tmp_path / "f", "again", "this", first)
    keep(tmp_path / "f", "again", "undo", first)
    keep(tmp_path / "f", "again", "this", first)
    with (tmp_path / "f").open("a") as file:
        file.write('{"densecap": "feedback", "answer": "this", "query": "x", "image": "/x.png", "hash": "../.."}\n[1]\n{"x"\n')
    found = read_collection(tmp_path / "f")
    assert [record.captions for record in found.records] == [("meant", "again")]
    assert [(skip.row, skip.reason.partition(" (")[0]) for skip in found.skipped] == [
        (2, "an answer that was taken back"), (3, "an answer that was taken back"),
        (4, "a search that found none of what was looked for"), (5, "an answer that was taken back"),
        (6, "an answer that was taken back"), (8, "no answer to a search"),
        (9, "an object was expected, not list"), (10, "not JSON")]


def test_a_question_in_the_words_of_one_that_is_asked_is_not_trained_on(tmp_path: Path):
    asked, trained = pictures(tmp_path, asked=True, count=1) + pictures(tmp_path, asked=False, count=1)
    for query, picture in [("a bus", trained), ("a tram", trained), (" a bus ", asked)]:
        keep(tmp_path / "f", query, "this", picture)
    found = read_collection(tmp_path / "f")
    assert {record.image.name: record.captions for record in found.records} == {
        asked.name: (" a bus ",), trained.name: ("a tram",)}
    assert [(skip.row, skip.reason) for skip in found.skipped] == [(1, "the same words ask for a picture that is held out")]


def test_a_picture_that_another_file_has_replaced_is_not_asked_for(tmp_path: Path):
    (picture,) = pictures(tmp_path, asked=True, count=1)
    keep(tmp_path / "f", "a bus", "this", picture)
    Image.new("RGB", (5, 5)).save(picture)
    found = read_collection(tmp_path / "f")
    assert (found.records, [skip.reason for skip in found.skipped]) == (
        (), ["the picture has changed since it was asked for"])
