from __future__ import annotations

from pathlib import Path

import pytest
from helpers import load, make_tiny
from open_clip.tokenizer import HFTokenizer
from transformers import BertTokenizerFast

from densecap_search.model.letters import letters_hint, unknown_words

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "bus", "##es", "1", "##2", "的", "к", "##о", "##т"]


@pytest.fixture
def small(tmp_path: Path) -> HFTokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    BertTokenizerFast.from_pretrained(str(tmp_path), do_lower_case=True).save_pretrained(tmp_path / "t")
    return HFTokenizer(str(tmp_path / "t"), context_length=16)


@pytest.mark.parametrize(("caption", "unknown", "count"), [
    ("A red bus", [], 3),
    ("buses 12", [], 2),
    ("a red tram", ["tram"], 3),
    ("红的", ["红"], 2),
    ("кот a", ["кот"], 2),  # all of its letters are in the vocabulary
    ("\U0001f68c bus", ["\U0001f68c"], 2),
    ("", [], 0),
])
def test_unknown_words_are_those_without_a_token_and_those_spelled_in_foreign_letters(small, caption, unknown, count):
    assert unknown_words(small, caption) == (unknown, count)


def test_the_hint_names_the_words_and_how_many_of_all_they_are(small: HFTokenizer):
    assert letters_hint(small, "a red bus") is None
    assert "does not know 1 of 2 words or signs (кот), " in str(letters_hint(small, "кот bus"))
    assert "6 of 6 words or signs (b, c, d, e, f, …)" in str(letters_hint(small, "b c d e f g"))


def test_a_tokenizer_of_bytes_knows_every_letter():
    assert letters_hint(make_tiny().tokenizer, "一辆红色的公共汽车 \U0001f68c") is None


@pytest.mark.slow
@pytest.mark.parametrize(("caption", "least"), [
    ("一辆红色的公共汽车", 6 / 9), ("حافلة حمراء أمام منزل", 1), ("красный автобус перед домом", 1), ("\U0001f68c\U0001f3e0", 1),
    ("빨간 버스", 1), ("赤いバス", 1), ("κόκκινο λεωφορείο", 1),
])
def test_the_starter_does_not_know_other_scripts(caption: str, least: float):
    unknown, count = unknown_words(load("starter").tokenizer, caption)
    assert len(unknown) / count >= least


@pytest.mark.slow
@pytest.mark.parametrize("caption", [
    "A red bus before a café – “Chez Zoë”, 12° in the shade; £5, naïve, Düsseldorf, São Paulo", "xylophonist qwrtz k7x z"])
def test_the_starter_knows_english_accents_and_made_up_words(caption: str):
    assert letters_hint(load("starter").tokenizer, caption) is None
