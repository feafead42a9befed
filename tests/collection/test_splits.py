from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from densecap_search.collection.records import Collection, Content, Record
from densecap_search.collection.splits import group_numbers, select_splits, split_collection, take_fraction
from densecap_search.errors import CollectionError


def record(name: str, caption: str = "", **fields: str) -> Record:
    return Record(name, Path(f"/{name}.jpg"), (caption or f"caption of {name}",), **fields)


def ids(records) -> list[str]:
    return [item.image_id for item in records]


def test_a_made_split_takes_ten_per_cent_each_and_is_the_same_for_the_same_seed():
    collection = Collection("c", tuple(record(f"{n:03d}") for n in range(200)))
    first = split_collection(collection, val_share=0.1, test_share=0.1, seed=5)
    again = split_collection(collection, val_share=0.1, test_share=0.1, seed=5)
    other = split_collection(collection, val_share=0.1, test_share=0.1, seed=6)
    assert [len(part) for part in (first.train, first.val, first.test)] == [160, 20, 20]
    assert sorted(ids(first.train) + ids(first.val) + ids(first.test)) == ids(collection.records)
    assert first == again
    assert ids(first.test) != ids(other.test)


def test_no_split_goes_through_a_burst_a_group_a_caption_or_a_picture():
    records = [record(f"{n:03d}", burst=f"b{n // 4}") for n in range(40)]
    records += [record(f"g{n}", group=f"g{n // 2}") for n in range(20)]
    records += [record(f"c{n}", caption=f"twin {n // 2}") for n in range(20)]
    records += [replace(record(f"h{n}"), content=Content(f"hash {n // 2}", 1, 0)) for n in range(20)]
    made = split_collection(Collection("c", tuple(records)), val_share=0.2, test_share=0.2, seed=0)
    place = {name: part for part in ("train", "val", "test") for name in ids(getattr(made, part))}
    for unit in [[f"{n + k:03d}" for k in range(4)] for n in range(0, 40, 4)] + [
        [f"{letter}{n}", f"{letter}{n + 1}"] for letter in "gch" for n in range(0, 20, 2)
    ]:
        assert len({place[name] for name in unit}) == 1, unit
    assert all(len(getattr(made, part)) >= 10 for part in ("train", "val", "test"))


def test_a_split_column_is_used_as_it_is_and_val_is_taken_from_train():
    records = [record(f"t{n}", split="train") for n in range(20)] + [record(f"e{n}", split="test") for n in range(5)]
    made = split_collection(Collection("c", tuple(records)), val_share=0.1, test_share=0.5, seed=0)
    assert (len(made.train), len(made.val), len(made.test)) == (18, 2, 5)
    assert made.made == "val taken from train"


def test_a_tiny_collection_keeps_something_to_train_on():
    for count in (1, 2, 3):
        collection = Collection("c", tuple(record(str(n)) for n in range(count)))
        made = split_collection(collection, val_share=0.1, test_share=0.1, seed=0)
        assert made.train
        assert len(made.train) + len(made.val) + len(made.test) == count


def test_a_missing_split_lists_those_present():
    collection = Collection("c", (record("a", split="train"), record("b", split="val")))
    with pytest.raises(CollectionError, match=r"c has no split named test; splits here: train \(1\), val \(1\)"):
        select_splits(collection, ["test"])
    assert ids(select_splits(collection, ["train", "val"])) == ["a", "b"]
    assert ids(select_splits(collection, ["all"])) == ["a", "b"]


def test_the_splits_of_a_run_are_used_where_the_table_has_none():
    collection = Collection("c", (record("a"), record("b")))
    assert ids(select_splits(collection, ["test"], {"a": "train", "b": "test"})) == ["b"]


def test_groups_are_the_same_picture_or_the_same_caption():
    records = [record("a", "x"), record("b", "y"), record("c", "x"), record("d", "z", group="g"), record("e", "w", group="g"),
               record("f", "v", burst="s"), record("g", "u", burst="s"), record("h", "t")]
    read = [replace(item, content=Content("same", 1, 0)) if item.image_id in "bh" else item for item in records]
    numbers = group_numbers(read)
    same = {(i, j) for i in range(8) for j in range(i) if numbers[i] == numbers[j]}
    assert same == {(2, 0), (4, 3), (7, 1)}


def test_val_taken_from_train_can_be_evaluated(tmp_path: Path):
    collection = Collection("c", (record("a", split="train"), record("b", split="train"), record("t", split="test")))
    chosen = {"a": "train", "b": "val", "t": "test"}
    assert ids(select_splits(collection, ["val"], chosen)) == ["b"]
    assert ids(select_splits(collection, ["train"], chosen)) == ["a"]


def test_what_a_run_trained_on_is_not_tested_whatever_the_table_says(tmp_path: Path):
    collection = Collection("c", (record("a", split="test"), record("b", split="train"), record("new", split="test")))
    chosen = {"a": "train", "b": "test"}  # data.use_split=false, or the table was changed since
    assert ids(select_splits(collection, ["test"], chosen)) == ["b", "new"]
    assert ids(select_splits(collection, ["train"], chosen)) == ["a"]


def test_a_smaller_fraction_lies_within_a_larger_one_and_another_seed_draws_others():
    records = [record(f"{n:03d}") for n in range(200)]
    tenth, half = take_fraction(records, 0.1, seed=1), take_fraction(records, 0.5, seed=1)
    assert (len(tenth), len(half)) == (20, 100)
    assert set(ids(tenth)) < set(ids(half))
    assert set(ids(tenth)) != set(ids(take_fraction(records, 0.1, seed=2)))
    assert ids(take_fraction(records, 1.0, seed=1)) == ids(records)
    assert len(take_fraction(records[:3], 0.0, seed=1)) == 1
