"""What is the same and what is nearly the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from densecap_search.collection.records import Record
from densecap_search.inspection.duplicates import near, near_pictures, normal_caption, same
from densecap_search.inspection.pictures import Pictures


def records(count: int) -> list[Record]:
    return [Record(f"r{number}", Path(f"r{number}.png")) for number in range(count)]


def test_rows_that_share_a_key_are_one_group_the_largest_first():
    assert same([["a"], ["b", "c"], [], ["c"], ["b", "b"], ["c"]]) == [[1, 3, 5], [1, 4]]


@pytest.mark.parametrize(("first", "second"), [
    ("A cat, asleep.", "a  CAT asleep"), ("Straße — nachts", "STRASSE nachts"), ("ﬁve “dogs”", "five dogs"),
    ("caf\u00e9", "cafe\u0301"), ("東京。夜", "東京 夜"),
])
def test_captions_are_compared_without_case_spaces_and_punctuation(first: str, second: str):
    assert normal_caption(first) == normal_caption(second)


@pytest.mark.parametrize(("first", "second"), [("किताब", "कतब"), ("a cat", "a cut"), ("!!!", "???"), ("😀", "😢"), ("two 12", "two 21")])
def test_letters_vowel_signs_numbers_and_symbols_keep_captions_apart(first: str, second: str):
    assert normal_caption(first) != normal_caption(second)


def test_groups_hang_together_through_pairs_and_each_row_names_its_closest():
    links = [(0, [1], [2.0]), (1, [0, 2], [2.0, 1.0]), (2, [1], [1.0]), (4, [5], [0.0]), (5, [4], [0.0])]
    found = near(6, [(row, np.array(others), np.array(values)) for row, others, values in links])
    assert found.groups == ((0, 1, 2), (4, 5))
    assert found.pairs == ((4, 5, 0.0), (1, 2, 1.0), (0, 1, 2.0))


def test_near_pictures_are_different_files_at_most_four_bits_apart():
    hashes = {"r0": "x", "r1": "x", "r2": "y", "r3": "z", "r4": "v", "r5": "w"}
    codes = {"r0": 0, "r1": 0, "r2": 0b1111, "r3": 0b11111 << 40, "r4": 2**63, "r5": 2**63}
    found = near_pictures(records(6), Pictures(hashes, codes, (), ()))
    assert found.groups == ((0, 2, 4, 5),)  # r1 is r0's copy; r3 is 5 bits from r0
    assert found.pairs == ((4, 5, 0.0), (0, 4, 1.0), (0, 2, 4.0))


def test_many_frames_of_a_still_scene_are_one_group():
    names = [f"r{number}" for number in range(3000)]
    found = near_pictures(records(3000), Pictures({name: name for name in names}, dict.fromkeys(names, 7), (), ()))
    assert found.groups == (tuple(range(3000)),)
    assert len(found.pairs) == 2999
