from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers import make_photos, make_tiny

from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.errors import IndexFolderError
from densecap_search.model.encoder import DualEncoder
from densecap_search.retrieval import queries
from densecap_search.retrieval.caption_store import update_captions
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.index_folder import CURRENT
from densecap_search.retrieval.searcher import Searcher
from densecap_search.retrieval.update import update_index
from densecap_search.ui.finding import Query, answer, cards, message, reading
from densecap_search.ui.live import LiveIndex, picture_name


@pytest.fixture
def folder(tmp_path: Path, tiny: DualEncoder) -> Path:
    make_photos(tmp_path / "photos")
    update(tmp_path, tiny)
    return tmp_path


def update(folder: Path, encoder: DualEncoder) -> None:
    update_index(read_collection(folder / "photos"), encoder, ModelConfig("tiny"), folder / "index")


def asked(last: int, caption: str, mode: str = "auto") -> Query:
    return Query(last, queries.Query(caption), mode=mode)


def live_of(folder: Path, encoder: DualEncoder) -> LiveIndex:
    return LiveIndex(lambda: Searcher(encoder, load_index(folder / "index")))


def test_a_new_generation_is_taken_up_once_and_searched(folder: Path, tiny: DualEncoder):
    live = live_of(folder, tiny)
    assert live.refresh() is False
    (folder / "photos" / "red-left-ball.png").unlink()
    update(folder, tiny)
    assert (live.shown.count, live.refresh(), live.refresh(), live.shown.count) == (24, True, False, 23)
    (found,) = answer(live.shown, [asked(50, "a red ball")])
    assert len(found.hits) == 23


def test_captions_are_searched_as_soon_as_they_are_stored_and_are_those_of_the_generation(folder: Path, tiny: DualEncoder):
    for file in (folder / "photos").glob("*.txt"):  # weights are learned from captions of several sentences
        file.write_text(f"{file.read_text()} It was drawn in an afternoon.")
    live = live_of(folder, tiny)
    for text in ("A zebra that nothing else here is.", "A quagga that nothing else here is."):
        (folder / "photos" / "red-left-ball.txt").write_text(text)
        update(folder, tiny)
        live.refresh()
        assert live.shown.searcher.captions is None
        update_captions(live.shown.index, lambda: tiny)
        assert (live.refresh(), live.refresh()) == (True, False)
        (found,) = answer(live.shown, [asked(3, text.split()[1], mode="words")])
        assert (found.hits[0].image_id, found.hits[0].caption) == ("red-left-ball.png", text)


def test_an_index_made_anew_by_another_model_is_searched_with_that_model(folder: Path, tiny: DualEncoder):
    loaded = []

    def load() -> Searcher:
        loaded.append(1)
        return Searcher(tiny if len(loaded) == 1 else other, load_index(folder / "index"))

    other = make_tiny(seed=1)
    live = LiveIndex(load)
    update(folder, other)
    assert live.refresh() is True
    assert live.shown.searcher.encoder is other


def test_a_generation_that_cannot_be_read_is_told_once_and_the_one_before_still_answers(folder: Path, tiny: DualEncoder):
    live = live_of(folder, tiny)
    (folder / "index" / CURRENT).write_text("gen-000009\n")
    assert live.refresh() is False
    assert live.problem.startswith("the index has changed and cannot be read: ")
    assert len(answer(live.shown, [asked(3, "a red ball")])[0].hits) == 3
    shutil.rmtree(folder / "index")
    assert live.refresh() is False


def test_an_index_that_is_none_is_told_at_once(tmp_path: Path, tiny: DualEncoder):
    with pytest.raises(IndexFolderError):
        live_of(tmp_path, tiny)


def test_queries_asked_together_get_what_each_gets_alone(folder: Path, tiny: DualEncoder):
    shown = live_of(folder, tiny).shown
    several = [asked(3, "a red ball on the left"), Query(5, near=((1.0, picture_name(shown.index.rows[7])),), mode="image"),
               asked(20, "a yellow box"), Query(2, picture=(folder / "photos" / "blue-left-box.png").read_bytes())]
    together = answer(shown, several)
    alone = [answer(shown, [query])[0] for query in several]
    assert [[hit.image_id for hit in found.hits] for found in together] == [
        [hit.image_id for hit in found.hits] for found in alone]
    assert [len(found.hits) for found in together] == [3, 5, 20, 2]


def test_missing_files_are_counted_in_words(folder: Path, tiny: DualEncoder):
    shown = live_of(folder, tiny).shown
    hits = answer(shown, [asked(4, "a red ball")])[0].hits
    sentences = []
    for hit in hits[:2]:
        Path(hit.image).unlink()
        sentences.append(message(1, cards(hits, shown, True), shown.count))
    assert sentences == [
        "1 to 4 of 24 pictures, best first. One of them is no longer where it was indexed.",
        "1 to 4 of 24 pictures, best first. 2 of them are no longer where they were indexed."]


def test_a_picture_is_named_by_its_place_and_its_content_together(folder: Path, tiny: DualEncoder):
    shown = live_of(folder, tiny).shown
    row = shown.index.rows[5]
    assert shown.row(picture_name(row)) == row
    for wrong in (f"6-{row.hash}", f"99-{row.hash}", f"-5-{row.hash}", row.hash, "5", "5-", "", f"{'9' * 30}-{row.hash}", "²-x"):
        assert shown.row(wrong) is None


def test_a_weak_best_hit_is_said_to_fit_badly():
    card = {"missing": False, "strength": "none", "under": []}
    assert message(1, [card], 9) == "Nothing here fits well. 1 to 1 of 9 pictures, best first."
    assert message(25, [card], 90) == "25 to 25 of 90 pictures, best first."
    assert message(1, [{**card, "strength": "likely"}], 9) == "1 to 1 of 9 pictures, best first."
    assert message(1, [{**card, "strength": "likely", "under": [card, card]}], 9) == (
        "1 to 1 of 9 pictures, best first; 2 more that are nearly the same lie under them.")


def test_paths_are_shown_from_the_folder_of_all_pictures_on(folder: Path, tiny: DualEncoder):
    shown = live_of(folder, tiny).shown
    image = str(folder / "photos" / "red-left-ball.png")
    assert (shown.path(image, True), shown.path(image, False)) == (image, "red-left-ball.png")


def test_the_end_of_the_window_is_where_one_letter_more_would_not_fit(tiny: DualEncoder):
    caption = "a red ball, " * 100
    read = reading(tiny, caption)
    assert read.end is not None
    assert tiny.lengths([caption[:read.end]])[0] <= 248 < tiny.lengths([caption[:read.end + 2]])[0]
    assert read.end == 61 * len("a red ball, ") + len("a red ")  # 61 × 4 tokens, 2 more, and the 2 marks around
