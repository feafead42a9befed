"""The review of a page: captions that fit least, in the order of inspect, without what was found right."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import make_photos
from starlette.testclient import TestClient

from densecap_search.collection.corrections import Correction, corrections_file, keep_correction, read_corrections
from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.inspection.pair_fit import look_at_pairs
from densecap_search.model.checkpoint import load_run
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.searcher import Searcher
from densecap_search.retrieval.update import update_index
from densecap_search.ui.api import Service, make_api
from densecap_search.ui.live import LiveIndex
from densecap_search.ui.reviewing import sentence
from densecap_search.workflows.review import Review, review


@pytest.fixture
def index(tmp_path: Path, tiny_run: Path) -> Path:
    photos = make_photos(tmp_path / "photos")
    (photos / "red-left-ball.txt").unlink()  # one picture without a caption
    update_index(read_collection(photos), load_run(tiny_run), ModelConfig(str(tiny_run)), tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def client(index: Path) -> Iterator[TestClient]:
    def load() -> Searcher:
        held = load_index(index)
        return Searcher(load_run(Path(held.manifest.model.name)), held)

    with TestClient(make_api(Service.of(LiveIndex(load), paths=True, edit=True)), base_url="http://localhost") as client:
        yield client


def test_the_order_is_that_of_inspect(index: Path, tiny_run: Path, tmp_path: Path):
    found = review(index)
    expected = look_at_pairs(read_collection(tmp_path / "photos"), load_run(tiny_run), model="tiny", batch_size=8, logit_scale=10.0)
    rows = load_index(index).rows
    assert [(rows[pair.number].image_id, pair.caption) for pair in found.pairs] == [
        (pair.image_id, pair.caption) for pair in expected.worst]
    assert [pair.cosine for pair in found.pairs] == pytest.approx([pair.cosine for pair in expected.worst], abs=1e-5)
    assert (found.looked_at, found.captioned, found.wrong, found.can_tell) == (23, 23, 0, False)  # random weights


def test_what_was_found_right_is_left_out_and_a_corrected_caption_is_judged(index: Path):
    worst, second = (pair for pair in review(index).pairs[:2])
    rows, file = load_index(index).rows, corrections_file(index)
    keep_correction(file, Correction(rows[worst.number].image, worst.caption, worst.caption))
    keep_correction(file, Correction(rows[second.number].image, second.caption, "A caption that somebody wrote."))
    again = [pair.caption for pair in review(index).pairs]
    assert len(again) == 22
    assert {worst.caption, second.caption}.isdisjoint(again)
    assert "A caption that somebody wrote." in again


@pytest.mark.slow
def test_a_page_looks_shows_and_keeps_what_was_found_right(
        client: TestClient, index: Path):
    assert client.get("/api/review").json() == {"stage": "none", "what": "", "share": None, "message": "", "problem": ""}
    assert client.get("/api/review/pairs").json() == {"error": "nothing has been looked for yet"}
    first = looked(client)
    assert (first["total"], len(first["hits"])) == (23, 5)
    worst, second = first["hits"][:2]
    assert (worst["rank"], second["rank"]) == (1, 2)
    for hit, after in ((worst, worst["caption"]), (second, "A caption that somebody wrote.")):
        body = {"picture": hit["picture"], "before": hit["caption"], "after": after}
        assert client.post("/api/captions", json=body).status_code == 200
    again = [hit["caption"] for hit in looked(client, 23)["hits"]]
    assert len(again) == 22
    assert {worst["caption"], second["caption"]}.isdisjoint(again)
    assert "A caption that somebody wrote." in again
    assert sum(map(len, read_corrections(index.with_name("index.corrections.jsonl")).values())) == 2


def test_only_who_may_teach_reviews(page: TestClient):
    assert page.post("/api/review", json={}).status_code == 403
    assert page.get("/api/review/pairs").status_code == 403


def test_what_was_found_is_a_sentence():
    assert sentence(Review((), 0, 0, 0, False, "g")) == "No picture has a caption."
    assert sentence(Review((), 20_000, 1_000_000, 7, True, "g")) == (
        "20,000 pictures with captions were looked at (a sample of 1,000,000). 7 captions fit their pictures no better than "
        "another picture's would; the least fitting first.")


def looked(client: TestClient, count: int = 5) -> dict:
    assert client.post("/api/review", json={}).json()["stage"] == "looking"
    end = time.monotonic() + 300  # the work stands back behind all else
    while (state := client.get("/api/review").json())["stage"] == "looking":
        assert time.monotonic() < end
        time.sleep(0.05)
    assert (state["stage"], state["problem"]) == ("done", "")
    return client.get(f"/api/review/pairs?count={count}").json()
