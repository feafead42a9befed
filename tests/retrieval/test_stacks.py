"""Bursts and near-duplicates under the best of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_indexes import MANIFEST, rows_of, vectors

from densecap_search.config import ModelConfig
from densecap_search.retrieval.approximate import Asked
from densecap_search.retrieval.hits import Hit
from densecap_search.retrieval.index import ImageIndex, load_index
from densecap_search.retrieval.queries import Query
from densecap_search.retrieval.searcher import Narrowed, Searcher
from densecap_search.retrieval.stacks import stack
from densecap_search.retrieval.writing import write_new


def hits_of(count: int) -> list[Hit]:
    return [Hit(place + 1, 1 - place / 10, f"i{place}", f"/i{place}.jpg", "", place) for place in range(count)]


def shape(hits: list[Hit]) -> list[tuple[int, list[int]]]:
    return [(hit.rank, [under.rank for under in hit.under]) for hit in hits]


def test_hits_join_the_best_before_them_of_the_same_burst_group_or_file():
    rows = rows_of(6)
    rows[1] = replace(rows[1], burst="b")
    rows[2] = replace(rows[2], group="b")  # another word for another thing
    rows[3] = replace(rows[3], burst="b", group="g")
    rows[4] = replace(rows[4], hash=rows[0].hash)
    rows[5] = replace(rows[5], group="g")  # only 3 has it, which lies under 1
    found = stack(hits_of(6), rows, np.eye(6, dtype=np.float32), np.zeros(6, np.float32))
    assert shape(found) == [(1, [5]), (2, [4]), (3, []), (6, [])]


def test_vectors_that_are_near_without_the_mean_join_and_what_all_share_joins_none():
    """Angles of 0°, 20°, 40°, 180°: cos 20° = 0.94, cos 40° = 0.77."""
    angles = np.deg2rad([0, 20, 40, 180])
    plane = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert shape(stack(hits_of(4), rows_of(4), plane, np.zeros(2, np.float32))) == [(1, [2]), (3, []), (4, [])]
    narrow = np.concatenate([plane, np.full((4, 1), 20, np.float32)], axis=1)
    narrow /= np.linalg.norm(narrow, axis=1, keepdims=True)  # cosines of 0.99 and more
    assert (narrow @ narrow.T).min() > 0.99
    assert shape(stack(hits_of(4), rows_of(4), narrow, np.array([0, 0, narrow[0, 2]], np.float32))) == [(1, [2]), (3, []), (4, [])]


@pytest.fixture
def searcher(tiny, tmp_path: Path) -> Searcher:
    """60 pictures in 20 bursts of three; those of a burst have one vector."""
    rows = [replace(row, burst=f"b{row.image_id[1:]}" if int(row.image_id[1:]) < 20 else f"b{int(row.image_id[1:]) % 20}")
            for row in rows_of(60)]
    write_new(tmp_path / "i", replace(MANIFEST, model=ModelConfig("tiny")), [(rows, np.tile(vectors(20), (3, 1)))],
              lambda *_: Asked(vectors(20), "pictures"))
    index: ImageIndex = load_index(tmp_path / "i")
    return Searcher(tiny, index)


def test_as_many_stacks_are_given_as_hits_were_asked_for_and_none_is_lost(searcher: Searcher):
    query = Query("a red bus")
    (plain,), _ = searcher.find([query], 60)
    (found,), _ = searcher.stacks([query], 5)
    assert shape(found) == [(1, [2, 3]), (4, [5, 6]), (7, [8, 9]), (10, [11, 12]), (13, [14, 15])]
    assert [replace(hit, under=()) for top in found for hit in (top, *top.under)] == plain[:15]
    (all_of_them,), _ = searcher.stacks([query], 30)
    assert [len(top.under) for top in all_of_them] == [2] * 20
    (narrowed,), _ = searcher.stacks([query], 30, narrowed=Narrowed("id in ('i1', 'i21', 'i2')"))
    assert sorted(len(top.under) for top in narrowed) == [0, 1]


def test_pictures_that_are_searched_by_and_their_like_can_be_left_out(searcher: Searcher):
    """Of 20 bursts of three with one vector each, the one that is searched by goes with both its twins."""
    query = Query(near=((1.0, 4),))
    (all_of_them,), _ = searcher.find([query], 60)
    assert {hit.number for hit in all_of_them[:3]} == {4, 24, 44}
    (others,), _ = searcher.find([query], 60, narrowed=Narrowed(others=True))
    assert [hit.number for hit in others] == [hit.number for hit in all_of_them[3:]]
    (some,), _ = searcher.find([query], 60, narrowed=Narrowed("id in ('i4', 'i24', 'i7')", others=True))
    assert [hit.number for hit in some] == [7]


def test_it_looks_deeper_where_the_first_stacks_are_large(tiny, tmp_path: Path):
    """100 pictures of one burst before three others: two stacks need the 101st hit."""
    near = np.tile(np.array([[1] + [0] * 15], np.float32), (100, 1))
    rows = [replace(row, burst="all" if number < 100 else None) for number, row in enumerate(rows_of(103))]
    write_new(tmp_path / "i", MANIFEST, [(rows, np.concatenate([near, vectors(3)]))], lambda *_: Asked(near, "pictures"))
    searcher = Searcher(tiny, load_index(tmp_path / "i"))
    (found,), _ = searcher.stacks([Query(near=((1.0, 0),))], 2)
    assert [len(top.under) for top in found] == [99, 0]
    assert found[1].rank == 101
