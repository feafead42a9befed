from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densecap_search.collection.questions import PROTOCOLS
from densecap_search.collection.records import Record

WORDS = st.lists(st.sampled_from(["red", "bus", "a", "House", "by", "1984"]), min_size=1, max_size=4).map(" ".join)
CAPTION = st.lists(st.tuples(WORDS, st.sampled_from([". ", "! ", "\n", "? ", "  "])), min_size=1, max_size=6).map(
    lambda parts: "".join(word + end for word, end in parts).strip())


def question(protocol: str, *captions: str):
    return PROTOCOLS[protocol](Record("i", Path("i.jpg"), captions))


def plain_sentences(text: str) -> set[str]:
    return {" ".join(re.findall(r"\w+", part.lower())) for part in re.split(r"[.!?]\s+|\n+", text)} - {""}


def test_halves_take_every_other_sentence():
    found = question("halves", "A room. A bed stands left. The wall is red. Two lamps.")
    assert (found.asks, found.stored) == ("A room.\nThe wall is red.", ("A bed stands left.\nTwo lamps.",))
    several = question("halves", "A room.", "A bed stands left.", "The wall is red.")
    assert (several.asks, several.stored) == ("A room.\nThe wall is red.", ("A bed stands left.",))


def test_captions_ask_with_the_first_and_store_the_others():
    found = question("captions", "A red bus.", "A bus in a town.", "Two people wait.")
    assert (found.asks, found.stored) == ("A red bus.", ("A bus in a town.", "Two people wait."))


@pytest.mark.parametrize(("protocol", "captions"), [
    ("halves", ()), ("halves", ("One sentence only.",)), ("halves", ("Toilet. Toilet!",)), ("halves", ("",)),
    ("captions", ("Two sentences. But one caption.",)), ("captions", ("A bus.", "a BUS")), ("captions", ("", "A bus.")),
    ("captions", ("A bus.", "")),
])
def test_what_cannot_be_taken_in_two_asks_nothing(protocol: str, captions: tuple[str, ...]):
    assert question(protocol, *captions) is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(captions=st.lists(CAPTION, min_size=1, max_size=4))
def test_no_sentence_that_asks_is_stored(protocol: str, captions: list[str]):
    found = question(protocol, *captions)
    if found is not None:
        assert found.asks.strip()
        assert all(text.strip() for text in found.stored)
        assert not plain_sentences(found.asks) & {part for text in found.stored for part in plain_sentences(text)}


def test_a_sentence_said_again_within_another_caption_is_not_stored():
    found = question("captions", "A red bus.", "Rain. A red bus! It is late.", "a red bus")
    assert found.stored == ("Rain.\nIt is late.",)
