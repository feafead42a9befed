"""An index whose captions are searched: what is stored, ranked, required, and told of how sure a hit is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import make_tiny

from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.errors import ConfigError, DensecapError, IndexFolderError
from densecap_search.retrieval import ranking
from densecap_search.retrieval.caption_store import load_captions, update_captions
from densecap_search.retrieval.captioned import Captioned, read_texts
from densecap_search.retrieval.fuse import RANKINGS
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.queries import Query
from densecap_search.retrieval.ranking import Asked, rank
from densecap_search.retrieval.required import with_words
from densecap_search.retrieval.searcher import Narrowed, Searcher
from densecap_search.retrieval.strength import Foreign, shares
from densecap_search.retrieval.update import update_index

MODEL = ModelConfig("tiny")


def no_encoder():
    raise AssertionError("nothing is to be encoded")


def write_captions(photos: Path, text) -> None:
    for number, path in enumerate(sorted(photos.glob("*.txt"))):
        path.write_text(text(number), encoding="utf-8")


@pytest.fixture
def codes(photos: Path) -> Path:
    """Each of 24 pictures has a code of its own, in both its sentences; the last has no caption."""
    write_captions(photos, lambda number: "" if number == 23 else f"Box number k{number}k lies here. On it stands k{number}k.")
    return photos


@pytest.fixture
def searcher(codes: Path, tmp_path: Path, tiny) -> Searcher:
    made = update_index(read_collection(codes), tiny, MODEL, tmp_path / "i").index
    return Searcher(tiny, made, update_captions(made, lambda: tiny))


def test_a_word_of_a_caption_finds_its_picture(searcher: Searcher):
    for mode in ("words", "fused"):
        (hits,), _ = searcher.by_captions(["k7k"], 5, mode=mode)
        assert "k7k" in hits[0].caption
        assert (hits[0].rank, hits[0].by) == (1, "words")
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert [hit.match for hit in hits] == sorted((hit.match for hit in hits), reverse=True)


def test_scores_stay_cosines_whatever_ranks(searcher: Searcher):
    (image,), _ = searcher.by_captions(["k7k lies here"], 24, mode="image")
    cosines = {hit.image_id: hit.score for hit in image}
    assert [hit.match for hit in image] == [None] * 24
    for mode in ("text", "words", "fused"):
        (hits,), _ = searcher.by_captions(["k7k lies here"], 24, mode=mode)
        assert all(hit.score == pytest.approx(cosines[hit.image_id], abs=1e-5) for hit in hits)


def test_a_picture_without_a_caption_neither_wins_nor_loses(searcher: Searcher):
    assert searcher.captions is not None
    captioned = searcher.captions.captioned
    bare = int(np.flatnonzero(~captioned.described)[0])
    asked = read_texts(searcher.encoder, [["k7k lies here"]])
    assert captioned.text(asked.rows)[0, bare] == 0
    assert captioned.word("k7k lies here")[bare] == 0
    (fused,), _ = searcher.by_captions(["k7k lies here"], 24)
    (by_text,), _ = searcher.by_captions(["k7k lies here"], 24, mode="text")
    (by_words,), _ = searcher.by_captions(["k7k"], 24, mode="words")
    assert (len(fused), len(by_text), len(by_words)) == (24, 23, 1)


def test_fused_ranks_by_the_weighted_mean_of_the_three_signals(searcher: Searcher):
    assert searcher.captions is not None
    captioned, values = searcher.captions.captioned, {"image": 0.5, "text": 2.0, "words": 0.5}
    asked = read_texts(searcher.encoder, [["k3k stands on a box"], ["k9k"]])
    signals = captioned.signals(asked, searcher.index.stored.take(np.arange(24)))
    for row, found in enumerate(rank(searcher.index, captioned, Asked.plain(asked), values, 24)):
        expected = sum(values[name] * signals[name][row] for name in RANKINGS) / 3
        assert [match.number for match in found] == np.argsort(-expected, kind="stable").tolist()
        assert [match.match for match in found] == pytest.approx(sorted(expected, reverse=True), abs=1e-5)


def test_candidates_are_the_best_of_each_ranking(searcher: Searcher, monkeypatch):
    """With five candidates a ranking, what is best by a single one is still found."""
    monkeypatch.setattr(ranking, "CANDIDATES", 5)
    (hits,), _ = searcher.by_captions(["k7k"], 5)
    assert "k7k" in hits[0].caption
    (few,), _ = searcher.by_captions(["k7k"], 2)
    assert [hit.number for hit in few] == [hit.number for hit in hits[:2]]


def test_stored_captions_rank_as_those_in_memory(searcher: Searcher):
    assert searcher.captions is not None
    rows = list(searcher.index.rows)
    texts = read_texts(searcher.encoder, [row.captions for row in rows])
    memory = Captioned.of(texts, searcher.index.vectors())
    asked = read_texts(searcher.encoder, [["k3k stands on a box"]])
    assert np.allclose(memory.text(asked.rows), searcher.captions.captioned.text(asked.rows), atol=1e-3)


def test_an_update_encodes_only_new_captions_and_forgets_old_ones(searcher: Searcher, codes: Path, tiny, tmp_path: Path):
    folder = searcher.index.folder
    assert update_captions(searcher.index, no_encoder) is not None  # nothing new
    (codes / "red-left-ball.txt").write_text("A unicorn. It is a unicorn.", encoding="utf-8")
    (codes / "blue-left-ball.png").unlink()
    made = update_index(read_collection(codes), tiny, MODEL, folder).index
    captions = update_captions(made, lambda: tiny)
    found = Searcher(tiny, made, captions)
    (hits,), _ = found.by_captions(["unicorn"], 24, mode="words")
    assert [hit.image_id for hit in hits] == ["red-left-ball.png"]
    assert captions is not None
    assert captions.captioned.words.size == 22
    gone = next(row for row in searcher.index.rows if row.image_id == "blue-left-ball.png")
    (hits,), _ = found.by_captions([gone.captions[0]], 24)
    assert "blue-left-ball.png" not in {hit.image_id for hit in hits}
    before, _ = searcher.by_captions(["unicorn"], 24, mode="words")  # a reader of the generation before goes on
    assert before == [[]]


def test_what_is_kept_of_each_row_is_what_a_look_at_all_of_them_finds(searcher: Searcher, codes: Path, tiny):
    next(codes.glob("*-ball.png")).unlink()
    index = update_index(read_collection(codes), tiny, MODEL, searcher.index.folder).index
    update_captions(index, lambda: tiny)
    kept = load_captions(index).captioned
    file = index.place / "captions" / "rows.npz"
    data = file.read_bytes()
    file.unlink()  # as an earlier version left it
    looked_at = load_captions(index).captioned
    assert (~kept.words.counted).sum() == 1
    assert np.array_equal(kept.words.counted, looked_at.words.counted)
    assert np.array_equal(kept.lengths, looked_at.lengths)
    for damaged in (data[:100], b""):
        file.write_bytes(damaged)
        with pytest.raises(IndexFolderError, match=r"captions is damaged .*--rebuild"):
            load_captions(index)


def test_another_model_makes_other_captions(searcher: Searcher, codes: Path):
    other = make_tiny(seed=1)
    made = update_index(read_collection(codes), other, ModelConfig("other"), searcher.index.folder).index
    assert load_captions(made) is None
    captions = update_captions(made, lambda: other)
    assert captions is not None
    assert searcher.captions is not None
    assert not np.allclose(captions.captioned.scale.centre, searcher.captions.captioned.scale.centre)


def test_damage_is_named_and_mended(searcher: Searcher, tiny):
    place = searcher.index.place / "captions"
    words = (place / "part-0.npz").read_bytes()
    for damaged in (words[:len(words) // 2], b"", b"half"):
        (place / "part-0.npz").unlink()
        (place / "part-0.npz").write_bytes(damaged)
        with pytest.raises(IndexFolderError, match=r"captions is damaged .*--rebuild"):
            load_captions(searcher.index)
    (place / "captions.json").write_text(json.dumps({"format": 99}))
    assert load_captions(searcher.index) is None
    assert update_captions(searcher.index, lambda: tiny) is not None
    assert load_captions(searcher.index) is not None


def test_an_index_without_captions_is_searched_by_pictures_and_says_so(photos: Path, tmp_path: Path, tiny):
    for path in photos.glob("*.txt"):
        path.unlink()
    made = update_index(read_collection(photos), tiny, MODEL, tmp_path / "i").index
    assert update_captions(made, no_encoder) is None
    found = Searcher(tiny, made, load_captions(made))
    assert (found.mode(), found.mode("image")) == ("image", "image")
    with pytest.raises(ConfigError, match=r"holds no captions that could be searched; .*--mode image"):
        found.by_captions(["a box"], 3, mode="fused")


def test_required_words_occur_in_one_caption_or_in_the_file_name(searcher: Searcher):
    rows, total = searcher.index.rows, searcher.index.manifest.total

    def found(*required: str) -> set[str]:
        mask = with_words(rows, total, required)
        return {row.image_id for row in rows if mask[row.number]}

    assert len(found("number K7K")) == 1
    assert len(found("left ball")) == 4  # of names
    assert found("red left", "k7k") == set()
    assert found("lies here on it") == {row.image_id for row in rows if row.captions}
    assert found("boxes") == set()  # nothing is stemmed
    with pytest.raises(ConfigError, match="holds no word"):
        found("...")


def test_narrowed_searches_find_only_what_they_may(searcher: Searcher):
    must = Narrowed(must=("left",))
    for mode in ("image", "fused", "words", "text"):
        (hits,), _ = searcher.by_queries([Query("box number lies here")], 24, mode=mode, narrowed=must)
        assert {hit.image_id.split("-")[1] for hit in hits} == {"left"}
    (both,), _ = searcher.by_queries([Query("box", must=("ball",))], 24, narrowed=must)
    assert len(both) == 4
    (alone,), _ = searcher.by_queries([Query(must=("ball",))], 3, narrowed=must)
    assert [hit.score for hit in alone] == [None] * 3
    (some,), _ = searcher.by_queries([Query("box")], 24, mode="image")
    least = some[4].score
    for mode in ("image", "fused"):
        (cut,), _ = searcher.by_queries([Query("box")], 24, mode=mode, narrowed=Narrowed(min_score=least))
        assert {hit.image_id for hit in cut} == {hit.image_id for hit in some[:5]}


def test_terms_are_the_same_in_any_order_and_a_weight_of_0_is_none(searcher: Searcher):
    def found(mode: str, **fields):
        return searcher.by_queries([Query("a box", **fields)], 24, mode=mode)[0][0]

    for mode in ("image", "fused"):
        assert found(mode, also=((2.0, "k3k"), (0.5, "red"))) == found(mode, also=((0.5, "red"), (2.0, "k3k")))
        assert found(mode, also=((0.0, "k3k"),)) == found(mode)
        assert found(mode, without=("k3k",)) == found(mode, also=((-1.0, "k3k"),))
    (with_it, without_it) = (found("words", also=((1.0, "k3k"),))[0], found("fused", without=("number k3k",))[-1])
    assert "k3k" in with_it.caption
    assert "k3k" in without_it.caption


def test_a_caption_and_a_picture_ask_together(searcher: Searcher, codes: Path):
    picture = codes / "green-right-box.png"
    (alone,), _ = searcher.by_queries([Query(image=picture)], 24)
    assert (alone[0].image_id, alone[0].score) == ("green-right-box.png", pytest.approx(1, abs=1e-5))
    (both,), _ = searcher.by_queries([Query("k7k", image=picture)], 24)
    assert "green-right-box.png" in {hit.image_id for hit in both[:5]}
    assert "k7k" in both[0].caption
    with pytest.raises(DensecapError, match="the query is empty"):
        searcher.by_queries([Query()], 3)


def test_strength_is_the_share_of_foreign_captions_of_like_length_that_find_less():
    foreign = Foreign(words=tuple([3] * 100 + [50] * 100), best=tuple([float(n) for n in range(100)] * 1 + [1000.0 + n for n in range(100)]))
    assert [foreign.strength(match, 3) for match in (10, 49.5, 88.5, 89.5, 97.5, 98.5, 200)] == [
        "none", "weak", "weak", "likely", "likely", "strong", "strong"]
    assert foreign.strength(200, 50) == "none"
    assert Foreign((1,) * 19, (0.0,) * 19).strength(5, 1) is None
    assert shares(foreign, [10, 200], [3, 3]) == {"strong": 50, "likely": 0, "weak": 0, "none": 50}


def test_weights_and_the_figures_that_chose_them_are_kept(searcher: Searcher):
    assert searcher.captions is not None
    again = load_captions(load_index(searcher.index.folder))
    assert again is not None
    assert again.calibration == searcher.captions.calibration
    assert "fewer than 30" in str(again.weights)
    assert replace(again.weights) == again.weights
