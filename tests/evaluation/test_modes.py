from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from densecap_search.collection.questions import choose_protocol
from densecap_search.errors import CollectionError
from densecap_search.evaluation.modes import EQUAL, MODES, measure_modes


def modes_of(tiny, asked, gallery=None, protocol="halves"):
    return measure_modes(tiny, asked, gallery or asked, protocol=protocol, model="tiny", collection="photos", splits=["all"])


def described(records, text):
    return [replace(record, captions=text(number)) for number, record in enumerate(records)]


@pytest.mark.parametrize("protocol", ["halves", "captions"])
def test_a_query_finds_nothing_by_its_own_words(collection, tiny, protocol: str):
    """Each sentence stands once in the archive: only a leak could find a picture by it."""
    def text(number: int) -> tuple[str, ...]:
        said = tuple(f"word{number}x{part} term{number}x{part}." for part in range(4))
        return said if protocol == "captions" else (" ".join(said),)

    report = modes_of(tiny, described(collection.records, text), protocol=protocol)
    words = report.modes["words"]
    assert (words.queries, words.gallery, report.described) == (24, 24, 24)
    assert words.ties == 24  # every picture scores the same
    assert set(words.ranks.rank) == {12.5}


def test_what_the_other_half_says_is_found(collection, tiny):
    records = described(collection.records, lambda number: (f"Code k{number}k. And the code is k{number}k again.",))
    report = modes_of(tiny, records)
    assert report.modes["words"].figures["R@1"].value == 100
    assert report.modes["fused"].figures["R@1"].value == 100
    assert report.weights["words"] > report.weights["image"]


def test_what_asks_changes_nothing_that_is_ranked(collection, tiny):
    """Another question about one picture leaves the answers to all others as they were, bit for bit."""
    records = described(collection.records, lambda number: (f"A thing {number}. A thing stands {number} left.",))
    changed = [replace(records[0], captions=("Purple submarines surface. A thing stands 0 left.",)), *records[1:]]
    before, after = (modes_of(tiny, each) for each in (records, changed))
    for mode in ("image", "text", "words", EQUAL):
        first, second = (report.modes[mode].ranks.first_score[1:] for report in (before, after))
        assert np.array_equal(first, second)


def test_image_ranks_as_evaluate_does(collection, tiny):
    from densecap_search.evaluation.evaluate import evaluate

    records = described(collection.records, lambda number: (f"A thing {number}.", f"It stands {number} left."))
    asks = [replace(record, captions=record.captions[:1]) for record in records]
    plain = evaluate(tiny, asks, model="tiny", collection="photos", splits=["all"])
    found = modes_of(tiny, records, protocol="captions").modes["image"]
    assert found.ranks.rank.tolist() == plain.text_to_image.ranks.rank.tolist()


def test_pictures_without_a_caption_are_ranked_too(collection, tiny):
    records = described(collection.records, lambda number: (f"Code k{number}k. And the code is k{number}k again.",))
    gallery = [*records[:12], *(replace(record, captions=()) for record in records[12:])]
    report = modes_of(tiny, gallery[:12], gallery)
    assert (report.modes["fused"].queries, report.modes["fused"].gallery, report.described) == (12, 24, 12)
    assert report.gallery == "all pictures"
    assert report.modes["words"].figures["R@1"].value == 100


def test_the_protocol_follows_the_captions_and_names_what_does_not_fit(collection, tiny):
    assert choose_protocol(collection.records) == "halves"
    assert choose_protocol(described(collection.records, lambda number: ("One.", "Two."))) == "captions"
    with pytest.raises(CollectionError, match="no description of the split all can be taken in two for the protocol captions"):
        modes_of(tiny, collection.records, protocol="captions")


def test_the_report_names_protocol_rule_and_every_mode(collection, tiny):
    records = described(collection.records, lambda number: (f"A thing {number}. It stands {number} left.",))
    found = modes_of(tiny, records).as_json()
    assert (found["protocol"], found["rule"]) == (
        "halves", "every other sentence of each description asks, the remaining ones are stored")
    assert set(found["modes"]) == set(MODES)
    assert set(found["fused_minus"]) == set(MODES) - {"fused"}
