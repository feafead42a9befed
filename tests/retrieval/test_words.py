from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
from rank_bm25 import BM25Okapi

from densecap_search.retrieval.words import WordPart, Words, holds, load_part, save_part, tokens

VOCABULARY = [f"w{number}" for number in range(40)]


def random_texts(count: int, seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    weights = [1 / (1 + number) for number in range(len(VOCABULARY))]
    return [" ".join(generator.choices(VOCABULARY, weights, k=generator.randint(1, 30))) for _ in range(count)]


def test_bm25_of_two_texts_worked_by_hand():
    found = Words.of(["red bus", "Red, red car here!"]).scores("a red car")
    short, long = 1.2 * (0.25 + 0.75 * 2 / 3), 1.2 * (0.25 + 0.75 * 4 / 3)  # the mean length is 3
    red, car = math.log(1 + 0.5 / 2.5), math.log(1 + 1.5 / 1.5)
    assert found.tolist() == pytest.approx([red * 2.2 / (1 + short), red * 4.4 / (2 + long) + car * 2.2 / (1 + long)])


def test_bm25_agrees_with_another_library():
    texts = random_texts(200)
    oracle = BM25Okapi([text.split() for text in texts], k1=1.2, b=0.75)
    for word in VOCABULARY:  # its logarithm is Robertson's, which falls below 0; ours is Lucene's
        holding = sum(word in text.split() for text in texts)
        oracle.idf[word] = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
    words = Words.of(texts)
    for query in random_texts(20, seed=1):
        assert np.allclose(words.scores(query), oracle.get_scores(query.split()), rtol=1e-5)


def test_texts_in_parts_and_texts_that_were_removed_score_as_if_they_had_been_written_so():
    texts = random_texts(60)
    parts = tuple(WordPart.of(texts[start:start + 20]) for start in (0, 20, 40))
    counted = np.ones(60, bool)
    counted[[3, 25, 59]] = False
    whole = Words.of([text for row, text in enumerate(texts) if counted[row]])
    split = Words(parts, counted)
    for query in random_texts(10, seed=2):
        assert np.allclose(split.scores(query)[counted], whole.scores(query), rtol=1e-5)
        assert np.allclose(split.surprise(query)[counted], whole.surprise(query), atol=1e-4)
        assert not split.surprise(query)[~counted].any()
        assert not split.scores(query)[~counted].any()


def test_what_a_text_usually_scores_is_the_mean_over_the_other_texts_as_queries():
    texts = random_texts(30)
    words = Words.of(texts)
    scores = np.array([words.scores(text) for text in texts])
    np.fill_diagonal(scores, 0)
    mean = scores.sum(axis=0)
    assert np.allclose(words.usual, mean / mean.mean(), rtol=1e-4)


def test_surprise_is_counted_in_spreads_from_a_mean_of_0():
    found = Words.of(random_texts(50)).surprise("w5 w9 w30")
    assert found.mean() == pytest.approx(0, abs=1e-5)
    assert found.std() == pytest.approx(1, abs=1e-5)
    assert not Words.of(random_texts(50)).surprise("nothing of this stands anywhere").any()


def test_pictures_without_a_caption_are_in_no_mean_and_score_0():
    with_empty = Words.of(["red bus", "", "red red car here", " … "])
    assert with_empty.scores("red car")[[0, 2]].tolist() == pytest.approx(
        Words.of(["red bus", "red red car here"]).scores("red car").tolist())
    assert with_empty.surprise("red car")[[1, 3]].tolist() == [0, 0]
    assert not Words.of(["", ""]).surprise("red").any()
    assert not Words.of(["red red", "red red"]).surprise("red").any()


@pytest.mark.parametrize(("text", "words"), [
    ("A Café, naïve!", ["a", "cafe", "naive"]),
    ("IMG_1984-23.7b", ["img", "1984", "23", "7b"]),
    ("STRASSE Straße ﬁne", ["strasse", "strasse", "fine"]),
    ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
    ("iPhone15で撮影", ["iphone15", "て撮", "撮影"]),
    ("в Москве", ["в", "москве"]),
    (" …!? ", []),
])
def test_words_are_letters_and_digits_without_case_and_accents(text: str, words: list[str]):
    assert tokens(text) == words


def test_required_words_stand_one_after_the_other():
    text = tokens("Inv. 1984.23-7, a red bus")
    assert holds(text, tokens("1984.23"))
    assert holds(text, tokens("red BUS"))
    assert not holds(text, tokens("23.1984"))
    assert not holds(text, tokens("red bus stop"))


def test_a_part_survives_the_disk_and_damage_is_told(tmp_path: Path):
    part = WordPart.of(["red bus", "", "日本 red red"])
    save_part(part, tmp_path / "a.npz")
    loaded = load_part(tmp_path / "a.npz")
    assert loaded.terms == part.terms
    assert Words((loaded,), loaded.lengths > 0).scores("red").tolist() == Words((part,), part.lengths > 0).scores("red").tolist()
    save_part(WordPart.of([]), tmp_path / "empty.npz")
    assert load_part(tmp_path / "empty.npz").terms == ()
    broken = WordPart(part.terms, part.starts, part.rows + 5, part.counts, part.lengths)
    save_part(broken, tmp_path / "b.npz")
    with pytest.raises(ValueError, match="does not fit together"):
        load_part(tmp_path / "b.npz")
