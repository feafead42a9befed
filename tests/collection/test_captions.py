from __future__ import annotations

from pathlib import Path

import pytest

from densecap_search.collection.captions import find_weak_captions, is_placeholder, sentences
from densecap_search.collection.records import Record
from densecap_search.collection.splits import group_numbers


def record(name: str, *captions: str) -> Record:
    return Record(name, Path(name), captions)


@pytest.mark.parametrize("caption", [
    "n/a", "N.A.", "no caption", "No caption available", "untitled", "Untitled 3", "IMG_1234", "DSC0001.JPG", "P1010023", "_",
    "OLYMPUS DIGITAL CAMERA         ", "SONY DSC", "KODAK Digital Still Camera", "SAMSUNG CAMERA PICTURES", "Caption", "[none]",
    "Screenshot_20240101-120000", "holiday.png", "Minolta DSC", "Processed with VSCO with c1 preset", "Add a caption here", "???",
])
def test_placeholders_are_told(caption: str):
    assert is_placeholder(caption)


@pytest.mark.parametrize("caption", [
    "A red bus.", "Title page of a book", "Untitled painting of two boats by an unknown hand", "No people are in this picture",
    "An Olympus digital camera on a table", "Digital painting of a camera on a beach", "Sony DSC-W800 beside a phone",
    "Sam, 2000 miles from home", "Kodak advertisement on a wall", "Test tubes", "A photo of n/a written on a form", "犬", "Dog",
])
def test_captions_are_no_placeholders(caption: str):
    assert not is_placeholder(caption)


def test_every_kind_of_weak_caption_is_counted_and_named():
    records = [
        record("1", "A boat. Copyright by the archive."), record("2", "A tree. Copyright by the archive."),
        record("3", "A dog runs. Copyright by the archive."), record("4", "A cat. Copyright by the archive."),
        record("5", "Snow. Copyright by the archive."), record("6", "n/a"), record("7", "IMG_0001"), record("8"),
        record("9", "two dogs in the snow"), record("10", "two dogs in the snow", "a second one"),
        record("11", " two dogs in the snow"), record("12", "seen once"),
    ]
    found = {finding.kind: (finding.pictures, finding.examples) for finding in find_weak_captions(records)}
    assert found == {
        "empty": (1, ("8",)), "placeholder": (2, ("n/a", "IMG_0001")), "repeated": (3, ("two dogs in the snow",)),
        "boilerplate": (5, ("Copyright by the archive.",)),
    }


def test_good_captions_give_no_findings():
    assert find_weak_captions([record(str(n), f"A picture of {n} boats. It is day {n}.") for n in range(20)]) == ()


def test_a_sentence_that_few_captions_share_is_no_boilerplate():
    records = [record(str(n), f"Boats, {n} of them. {'It is sunny.' if n < 5 else f'Day {n}.'}") for n in range(26)]
    assert find_weak_captions(records) == ()  # 5 of 26 are less than a fifth


def test_sentences_are_cut_where_they_end():
    assert sentences("One. Two! Three?\nFour") == ["One.", "Two!", "Three?", "Four"]
    assert sentences("At 3.5 m only one sentence.") == ["At 3.5 m only one sentence."]


def test_a13_twelve_pictures_with_one_boilerplate_caption_are_one_group():
    records = [record(str(n), "Donated in 1984." if n < 12 else f"a picture of {n} boats") for n in range(40)]
    numbers = group_numbers(records)
    assert len(set(numbers[:12])) == 1
    assert len(set(numbers)) == 29
    (finding,) = find_weak_captions(records)
    assert str(finding) == "12 pictures have a caption that 3 or more pictures have: “Donated in 1984.”"


def test_any_caption_in_common_makes_a_group():
    records = [record("1", "a", "b"), record("2", "c", "b "), record("3", "c"), record("4", "d")]
    assert len(set(group_numbers(records)[:3])) == 1
    assert len(set(group_numbers(records))) == 2
