from __future__ import annotations

import pytest

from densecap_search.collection.caption_flaws import find_flaws

GOOD = [f"A red boat number {number} lies at the pier of the old harbour, and the light falls from the left." for number in range(40)]
PLAIN = [f"{colour} {thing} at the {place}, with the light of the {time}." for colour in ("Red", "Blue", "Green")
         for thing in ("boats", "houses") for place in ("pier", "square") for time in ("morning", "evening")]


def found(captions: list[str]) -> dict[str, int]:
    return {flaw.kind: flaw.captions for flaw in find_flaws(captions)}


@pytest.mark.parametrize(("caption", "kind"), [
    ("A boat &amp; a tree.", "markup"), ("<p>A boat.</p>", "markup"), ("One<br/>two", "markup"), ("caf&eacute; by night", "markup"),
    ("I'm sorry, but I can't assist with that.", "refusal"), ("I cannot see the image.", "refusal"), ("As an AI language model, I …", "refusal"),
    ("TODO describe this", "unfinished"), ("A boat. FIXME", "unfinished"), ("Lorem ipsum dolor".lower(), "unfinished"),
    ("A {object} on a table.", "slot"), ("<image> A boat.", "slot"), ("[insert caption here]", "slot"), ("A boat <unk> a tree.", "slot"),
])
def test_each_kind_is_told_by_one_caption(caption: str, kind: str):
    assert found([*PLAIN, caption]) == {kind: 1}


@pytest.mark.parametrize("caption", [
    "Tom & Jerry on a wall.", "A < B on the board.", "Nothing <but> a copy of it.", "A sorry sight: I can't believe it, says the poster.",
    "A to-do list on a fridge.", "[Two dogs] in the snow.", "The word todos on a Spanish sign.", "AT&T; a shop.",
])
def test_captions_that_only_look_so_are_left_alone(caption: str):
    assert found([*PLAIN, caption]) == {}


def test_an_opening_that_many_captions_share_is_told_with_its_words():
    captions = [f"In this image we can see {thing} and {other}." for thing in ("a boat", "trees", "a dog") for other in ("snow", "rain")]
    (flaw,) = find_flaws([*captions, *PLAIN])
    assert (flaw.kind, flaw.captions) == ("opening", 6)
    assert flaw.what == "6 captions have the same beginning, “In this image we can see …”"
    assert found([*captions[:3], *PLAIN]) == {}


def test_a_caption_that_ends_within_a_word_is_told_where_others_have_an_end():
    cut = "A red boat lies at the pier of the old harb"
    assert found([*GOOD, cut])["cut short"] == 1
    assert "cut short" not in found([*GOOD, "A red boat lies at the pier of the old harbour"])  # a whole word
    assert "cut short" not in found([*(caption.rstrip(".") for caption in GOOD), cut])  # nobody here ends with a full stop


def test_captions_of_one_greatest_length_without_an_end_are_cut():
    long = [(f"{number} is the number of " + "a house in a street " * 20)[:255] for number in range(10, 14)]
    assert found([*PLAIN, *long])["cut short"] == 4


@pytest.mark.parametrize(("caption", "language"), [
    ("Ein rotes Boot liegt auf dem Wasser, und die Sonne ist hinter dem Berg.", "German 1"), ("一艘红色的船停在码头旁边", "Chinese or Japanese 1"),
    ("赤いボートが桟橋のそばにあります", "Japanese 1"), ("Красная лодка стоит у причала", "Cyrillic letters 1"),
    ("Un bateau rouge est dans le port, avec des arbres et une maison.", "French 1"),
])
def test_another_language_than_that_of_most_is_told(caption: str, language: str):
    (flaw,) = find_flaws([*PLAIN, *["The boat is at the pier, and there are trees of this park."] * 4, caption])
    assert (flaw.kind, flaw.captions) == ("other language", 1)
    assert flaw.what == f"1 caption has another language than English ({language})"


def test_one_language_alone_is_no_flaw_whichever_it_is():
    assert found(["Ein rotes Boot liegt auf dem Wasser, und die Sonne ist hinter dem Berg.", "Das Haus ist neben der Kirche mit dem Turm."]) == {}
    assert found([]) == {}
