"""What splits share."""

from __future__ import annotations

from pathlib import Path

from densecap_search.collection.records import Record
from densecap_search.inspection.leakage import find_leaks
from densecap_search.inspection.pictures import Pictures

PICTURES = Pictures(
    hashes={"a": "x", "b": "x", "c": "y", "d": "z", "e": "v", "f": "w"},
    codes={"a": 0, "b": 0, "c": 2**64 - 1, "d": 1, "e": 2**64 - 8, "f": 0xFF00FF00}, blank=(), broken=(),
)


def record(name: str, split: str | None, caption: str, **more: str) -> Record:
    return Record(name, Path(f"{name}.png"), (caption,), split, **more)


def counts(records: list[Record], pictures: Pictures | None) -> dict[tuple[str, str, str], tuple[int, tuple[tuple[int, int], ...]]]:
    leaks = find_leaks(records, pictures)
    assert leaks is not None
    return {(leak.kind, leak.later, leak.earlier): (leak.count, leak.twins) for leak in leaks}


def test_the_same_picture_a_nearly_same_one_and_a_caption_in_train_and_test_are_flagged():
    table = [record("a", "train", "one"), record("b", "test", "two"), record("c", None, "A dog."),
             record("d", "val", "a  DOG"), record("e", "test", "three"), record("f", "test", "four")]
    assert counts(table, PICTURES) == {
        ("same picture", "test", "train"): (1, ((1, 0),)),
        ("nearly the same picture", "val", "train"): (1, ((3, 0),)),  # d is 1 bit from a
        ("nearly the same picture", "test", "val"): (1, ((1, 3),)),  # and from b, which is a's copy
        ("nearly the same picture", "test", "train"): (1, ((4, 2),)),  # e is 3 bits from c; no word means train
        ("nearly the same caption", "val", "train"): (1, ((3, 2),)),
    }


def test_a_smaller_copy_beside_an_exact_one_is_still_a_leak_of_its_own():
    pictures = Pictures({"a": "x", "b": "x", "s": "small"}, {"a": 5, "b": 5, "s": 5}, (), ())
    table = [record("a", "train", "one"), record("b", "test", "two"), record("s", "test", "three")]
    assert counts(table, pictures) == {("same picture", "test", "train"): (1, ((1, 0),)),
                                       ("nearly the same picture", "test", "train"): (1, ((2, 0),))}


def test_groups_and_bursts_must_not_cross_splits_and_clean_splits_leak_nothing():
    table = [record("a", "train", "one", burst="k"), record("b", "test", "two", burst="k"),
             record("c", "val", "three", group="g"), record("d", "test", "four", group="g")]
    assert counts(table, None) == {("same burst", "test", "train"): (1, ((1, 0),)), ("same group", "test", "val"): (1, ((3, 2),))}
    assert find_leaks(table[:1] + table[3:], None) == ()


def test_without_a_split_column_there_is_nothing_to_leak():
    assert find_leaks([record("a", None, "same"), record("b", None, "same")], PICTURES) is None
