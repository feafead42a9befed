from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import load, make_tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from densecap_search.collection.captions import sentences
from densecap_search.embedding.texts import embed_queries, embed_texts
from densecap_search.errors import ConfigError
from densecap_search.model.checkpoint import load_run, save_encoder
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.segments import Truncation, best_of, mean_of, split_text

TINY = make_tiny()
DENSE = " ".join(f"Sentence {number} speaks of a red bus, two trees and a dog." for number in range(53))  # 636 words
LONG = DENSE + " " + "and so on " * 38  # 750 words; its last sentence alone has 114


def words(texts):
    """A tokenizer that a person can follow: a token a word, and one around each end."""
    return [len(text.split()) + 2 for text in texts]


def treated(long_text: str, context_length: int = 77) -> DualEncoder:
    tiny = make_tiny(context_length)
    return DualEncoder(tiny.model, replace(tiny.spec, long_text=long_text), tiny.tokenizer)


def letters(text: str) -> str:
    return "".join(text.split())


def test_sentences_end_at_full_stops_closing_quotes_and_lines():
    text = 'A red bus. It is 3.5 m high! "Is it?" (Yes…) He said "no." Then\na list\n\nof things'
    assert sentences(text) == ["A red bus.", "It is 3.5 m high!", '"Is it?"', "(Yes…)", 'He said "no."', "Then", "a list", "of things"]
    assert sentences("赤いバス。左に木がある！「何？」犬") == ["赤いバス。", "左に木がある！", "「何？」", "犬"]
    assert sentences("no end") == ["no end"]
    assert sentences(" \n ") == []


def test_whole_sentences_are_packed_into_as_few_segments_as_fit():
    # lengths 3, 2, 4 in room for 5
    assert split_text("A b c. D e. F g h i.", 7, words) == ["A b c. D e.", "F g h i."]


def test_segments_are_as_equal_as_they_can_be():
    # lengths 4, 1, 1, 1, 1 in room for 7: filling the first would leave one word alone
    assert split_text("A b c d. E. F. G. H.", 9, words) == ["A b c d.", "E. F. G. H."]


def test_a_sentence_longer_than_the_window_is_cut_between_words_and_a_word_between_letters():
    assert split_text("one two three four five", 4, words) == ["one two", "three four", "five"]
    def around_letters(texts):
        return [len(letters(text)) + 2 for text in texts]
    assert split_text("abcdefgh", 5, around_letters) == ["abc", "def", "gh"]


def test_the_text_keeps_its_white_space_within_a_segment():
    assert split_text("A  b.\n\nC d. E f g.", 6, words) == ["A  b.\n\nC d.", "E f g."]


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("ab Z.!?\n\"'。東🙂é,"), max_size=400), st.sampled_from([12, 20, 77]))
def test_nothing_is_lost_and_every_segment_fits_whatever_is_written(text: str, window: int):
    if TINY.lengths([text])[0] <= window:
        return
    segments = split_text(text, window, TINY.lengths)
    assert letters("".join(segments)) == letters(text)
    assert max(TINY.lengths(segments)) <= window


@pytest.mark.parametrize("window", [77, 128, 248, 512])
def test_a_caption_of_750_words_is_read_whole_at_every_window(window: int):
    assert len(LONG.split()) == 750
    found = treated("mean", window).segments([LONG, "short"])
    assert " ".join(found.texts[0]).split() == LONG.split()
    assert max(TINY.lengths(found.texts[0])) <= window
    assert found.texts[1] == ("short",)
    tokens = TINY.lengths([LONG])[0] - 2
    assert len(found.texts[0]) <= -(-tokens // (window - 2)) + 1
    assert found.truncation == Truncation(2, 0, tokens + 2 + 3, 0, tokens + 2, window, 1, len(found.texts[0]))


def test_a_window_of_two_tokens_and_an_unknown_treatment_are_refused():
    from densecap_search.config import load_config

    with pytest.raises(ConfigError, match=r"model\.context_length must be 3 or more, not 2"):
        load_config(overrides=[("model.context_length", 2)])
    with pytest.raises(ConfigError, match=r"model\.long_text must be one of cut, mean, best, not 'pool'"):
        load_config(overrides=[("model.long_text", "pool")])
    with pytest.raises(ConfigError, match=r"model\.resize must be one of crop, pad, squash, not 'stretch'"):
        load_config(overrides=[("model.resize", "stretch")])


def test_the_report_says_how_many_were_split_and_into_how_many():
    assert str(Truncation.of_split([10, 300, 500], 248, [1, 2, 3])) == (
        "2 of 3 captions are longer than the window of 248 tokens and were split into 5 segments; the longest has 500")
    assert str(Truncation.of_split([10], 77, [1])) == "no caption is longer than the window of 77 tokens (the longest has 10)"


def test_the_mean_is_that_of_a_loop_and_a_single_segment_stays_as_it_is():
    rows = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = mean_of(rows, np.array([1, 3, 2]))
    for vector, (start, stop) in zip(found, [(0, 1), (1, 4), (4, 6)], strict=True):
        total = sum(rows[number].astype(float) for number in range(start, stop))
        assert np.allclose(vector, total / np.sqrt((total**2).sum()), atol=1e-6)
    assert np.array_equal(found[0], rows[0])


def test_the_best_segment_decides_and_ties_keep_the_order_of_rows():
    lists = [[(4, 0.9), (1, 0.5), (0, 0.4)], [(1, 0.9), (2, 0.7), (0, 0.6)]]
    assert best_of(lists, 3) == [(1, 0.9), (4, 0.9), (2, 0.7)]


@pytest.mark.parametrize("treatment", ["mean", "best"])
def test_a_caption_that_fits_has_exactly_the_vector_it_had(treatment: str):
    captions = ["a red bus", "a dog under two trees, seen from the left"]
    cut, _ = embed_texts(treated("cut"), captions, cached=False)
    found = embed_queries(treated(treatment), captions, cached=False)
    assert np.array_equal(found.rows, cut)
    mixed, _ = embed_texts(treated(treatment), [*captions, LONG], cached=False)
    assert np.allclose(mixed[:2], cut, atol=1e-6)


def test_a_long_caption_is_the_mean_of_its_segments():
    encoder = treated("mean")
    vector = embed_texts(encoder, [DENSE], cached=False)[0][0]
    with torch.no_grad():
        parts = encoder.encode_text(encoder.tokenize(encoder.segments([DENSE]).texts[0]).ids).sum(0)
    assert np.allclose(vector, (parts / parts.norm()).numpy(), atol=1e-5)
    other = embed_texts(encoder, [DENSE + " At last a yellow boat."], cached=False)[0][0]
    assert not np.allclose(vector, other, atol=1e-4)  # what stands at the end counts


def test_the_treatment_is_stored_with_the_model_and_an_old_folder_cuts(tmp_path: Path):
    save_encoder(treated("best"), tmp_path / "run")
    assert load_run(tmp_path / "run").spec.long_text == "best"
    assert load(str(tmp_path / "run")).spec.long_text == "best"
    assert load(str(tmp_path / "run"), long_text="mean").spec.long_text == "mean"
    model = (tmp_path / "run" / "model.json").read_text()
    (tmp_path / "run" / "model.json").write_text(model.replace('"long_text": "best",', ""))
    assert load_run(tmp_path / "run").spec.long_text == "cut"


def test_the_treatment_changes_no_fingerprint():
    assert treated("mean").fingerprint() == treated("cut").fingerprint() == make_tiny(77).fingerprint()
