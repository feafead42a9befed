"""Sentences of a query by their percentile in the archive, and the words that a caption has of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_indexes import index_of, vectors

from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.retrieval import explain as module
from densecap_search.retrieval.caption_store import update_captions
from densecap_search.retrieval.explain import MOST_PARTS, explain, marked, parts_of, percentiles
from densecap_search.retrieval.queries import Query
from densecap_search.retrieval.searcher import Searcher
from densecap_search.retrieval.update import update_index
from densecap_search.retrieval.words import Words, tokens


def test_percentiles_are_shares_of_the_other_pictures_that_fit_less_well(tmp_path: Path):
    """Cosines with (1, 0): 1, 0.6, 0, −1; with (0, 1): 0, 0.8, 1, 0. Equal ones count half."""
    index = index_of(np.array([[1, 0], [0.6, 0.8], [0, 1], [-1, 0]], np.float32), tmp_path / "i")
    found = explain(index, ["across", "up"], np.eye(2, dtype=np.float32), [1, 0, 3])
    assert found.parts == ("across", "up")
    assert found.percentiles == (pytest.approx((200 / 3, 200 / 3)), pytest.approx((100, 50 / 3)), pytest.approx((0, 50 / 3)))


def test_a_picture_outside_of_the_sample_is_compared_with_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SAMPLE", 40)
    matrix, query = vectors(200), vectors(3, seed=1)
    index = index_of(matrix, tmp_path / "i")
    found = explain(index, ["a", "b", "c"], query, range(200))
    some = module.some_of(index.numbers, 40)
    assert 0 < len(set(range(200)) - set(some.tolist())) == 160
    for number in range(200):
        others = [other for other in some if other != number]
        shares = [100 * np.mean(matrix[others] @ vector < matrix[number] @ vector) for vector in query]
        assert found.percentiles[number] == pytest.approx(shares, abs=1e-3)


def test_an_archive_of_one_picture_has_nothing_to_compare_with(tmp_path: Path):
    found = explain(index_of(vectors(1), tmp_path / "i"), ["a"], vectors(1, seed=1), [0])
    assert found.percentiles == ((None,),)
    assert np.isnan(percentiles(np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32), np.array([True]))).all()


def test_words_of_the_query_are_marked_in_the_caption_whatever_their_case_and_accents():
    assert marked("A Red bus, the red-brick Café.", {"red", "cafe"}) == (
        ("A ", False), ("Red", True), (" bus, the ", False), ("red", True), ("-brick ", False), ("Café", True), (".", False))
    assert marked("Mu\u0308ller lief", {"muller"}) == (("Mu\u0308ller", True), (" lief", False))
    assert marked("赤い電車が走る🚌", set(tokens("電車が"))) == (("赤い", False), ("電車が", True), ("走る🚌", False))
    assert marked("", {"a"}) == ()
    assert marked("bus", {"bus"}) == (("bus", True),)


def test_words_that_most_captions_have_say_nothing(tmp_path: Path):
    index = index_of(vectors(3), tmp_path / "i")  # captions: caption i0, caption i1, caption i2
    words = Words.of(["caption i0", "caption i1", "caption i2"])
    found = explain(index, ["caption i1"], vectors(1), [1, 2], words)
    assert found.captions == ((("caption ", False), ("i1", True)), (("caption i2", False),))


def test_the_parts_of_a_query_are_its_sentences_and_further_texts_up_to_a_limit():
    asked = Query("A red bus. It rains!", also=((2.0, "Night. Fog"), (0.0, "not asked")), without=("people",))
    assert parts_of(asked) == ("A red bus.", "It rains!", "Night. Fog", "people")
    assert len(parts_of(Query("One. " * 500))) == MOST_PARTS
    assert parts_of(Query(must=("x",))) == ()


def test_a_searcher_explains_by_the_vectors_that_the_text_tower_makes_of_each_sentence(collection, tiny, tmp_path: Path, photos: Path):
    made = update_index(read_collection(photos), tiny, ModelConfig("tiny"), tmp_path / "i").index
    searcher = Searcher(tiny, made, update_captions(made, lambda: tiny))
    for image in photos.glob("*.png"):  # nothing is opened
        image.unlink()
    query = "A red ball lies there. It is on the left."
    found = searcher.explain(Query(query), [5, 7])
    for row, part in enumerate(("A red ball lies there.", "It is on the left.")):
        (hits,), _ = searcher.by_captions([part], 24, mode="image")
        ranks = {hit.number: hit.rank for hit in hits}
        assert [own[row] for own in found.percentiles] == pytest.approx([100 * (24 - ranks[n]) / 23 for n in (5, 7)], abs=1e-3)
    assert ["".join(text for text, _ in pieces) for pieces in found.captions] == ["\n".join(made.rows[n].captions) for n in (5, 7)]
