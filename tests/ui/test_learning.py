"""A lesson of the page: learned in the background, judged by what is held out, and taken or thrown away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import draw_photo, make_photos, make_tiny
from starlette.testclient import TestClient

from densecap_search.collection.corrections import Correction, corrections_file, keep_correction
from densecap_search.collection.feedback import held_out
from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.model.checkpoint import load_run, save_encoder
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.searcher import Searcher
from densecap_search.retrieval.update import Wanted, bring_up_to_date, update_index
from densecap_search.ui.api import Service, make_api
from densecap_search.ui.live import LiveIndex, picture_name
from densecap_search.workflows.learn import take

NOTHING = "there is no question to learn from yet: press \"This is the one\" on what a search was for"


@pytest.fixture
def index(tmp_path: Path, tiny_run: Path) -> Path:
    update_index(read_collection(make_photos(tmp_path / "photos")), load_run(tiny_run), ModelConfig(str(tiny_run)),
                 tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def client(index: Path, tiny_run: Path) -> Iterator[TestClient]:
    def load() -> Searcher:
        held = load_index(index)
        return Searcher(load_run(Path(held.manifest.model.name)), held)

    with TestClient(make_api(Service.of(LiveIndex(load), paths=True, edit=True)), base_url="http://localhost") as client:
        yield client


def post(client: TestClient, what: str) -> tuple[int, dict]:
    answer = client.post(f"/api/lesson/{what}", json={})
    return answer.status_code, answer.json()


def answer_all(client: TestClient, index: Path) -> tuple[int, int]:
    """A question about every picture; how many are trained on and how many are held out."""
    rows = list(load_index(index).rows)
    for row in rows:
        body = {"caption": f"I mean {row.image_id}", "answer": "this", "picture": picture_name(row)}
        assert client.post("/api/feedback", json=body).status_code == 200
    held = sum(held_out(row.hash) for row in rows)
    return len(rows) - held, held


def until(client: TestClient, stage: str) -> dict:
    end = time.monotonic() + 300  # the work stands back behind all else
    while (state := client.get("/api/lesson").json())["stage"] != stage:
        assert time.monotonic() < end, state
        assert state["problem"] == ""
        time.sleep(0.05)
    return state


def test_without_a_question_to_train_on_nothing_starts(client: TestClient, index: Path):
    assert post(client, "start") == (422, {"error": NOTHING})
    row = next(row for row in load_index(index).rows if held_out(row.hash))
    client.post("/api/feedback", json={"caption": "x", "answer": "this", "picture": picture_name(row)})
    assert post(client, "start") == (422, {"error": f"every answer is about a picture that is held out; {NOTHING}"})
    state = client.get("/api/lesson").json()
    assert (state["stage"], state["train"], state["held_out"]) == ("none", 0, 1)
    assert not index.with_name("index.lessons").exists()


@pytest.mark.parametrize(("what", "sentence"), [
    ("cancel", "nothing is being learned"), ("take", "there is no lesson to judge; begin one first"),
    ("discard", "there is no lesson to judge; begin one first")])
def test_what_is_not_there_is_neither_stopped_nor_judged(client: TestClient, what: str, sentence: str):
    assert post(client, what) == (422, {"error": sentence})


def test_lessons_are_for_those_who_may_teach_and_by_this_page(page: TestClient, client: TestClient):
    closed = {"error": "nothing is kept here; densecap serve --edit lets people teach"}
    assert [post(page, what) for what in ("start", "cancel", "take", "discard")] == [(403, closed)] * 4
    assert page.get("/api/lesson").status_code == 403
    foreign = page.post("/api/lesson/start", json={}, headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403
    assert foreign.json() == {"error": "pages of other hosts cannot ask here"}
    plain = client.post("/api/lesson/start", content="{}", headers={"content-type": "text/plain"})
    assert (plain.status_code, plain.json()["error"]) == (422, "send JSON, as content-type application/json")
    assert client.post("/api/lesson/start", json={"run": "/etc"}).status_code == 422


@pytest.mark.slow
def test_a_lesson_asks_what_is_held_out_and_is_taken_as_a_new_generation(client: TestClient, index: Path, tiny_run: Path):
    train, held = answer_all(client, index)
    state = client.get("/api/lesson").json()
    assert (state["train"], state["held_out"]) == (train, held)
    assert post(client, "start")[0] == 200
    assert post(client, "start") == (422, {"error": "a lesson is being learned already; wait, or stop it"})
    state = until(client, "learned")
    assert (state["questions"], state["before"]) == (held, str(tiny_run))
    assert [figure["name"] for figure in state["figures"]] == ["R@1", "R@10", "MRR"]
    assert all(figure["low"] <= figure["after"] - figure["before"] <= figure["high"] for figure in state["figures"])
    assert state["doubt"].startswith(f"{held} questions are too few to tell (at least 50)")
    assert (index / "CURRENT").read_text().strip() == "gen-000001"
    assert post(client, "take")[0] == 200
    until(client, "taken")
    manifest = load_index(index).manifest
    assert manifest.model.name == str(index.with_name("index.lessons") / "run-1")
    assert [origin.name for origin in manifest.origins] == ["photos"]
    assert (index / "CURRENT").read_text().strip() == "gen-000002"


@pytest.mark.slow
def test_a_lesson_that_is_stopped_or_thrown_away_leaves_nothing(client: TestClient, index: Path):
    answer_all(client, index)
    lessons = index.with_name("index.lessons")
    post(client, "start")
    assert post(client, "cancel")[1]["stage"] == "none"
    assert not list(lessons.glob("run-*"))
    post(client, "start")
    until(client, "learned")
    assert (lessons / "run-1").is_dir()
    assert post(client, "discard")[1]["stage"] == "none"
    assert not list(lessons.glob("run-*"))


@pytest.mark.slow
def test_a_server_that_ends_ends_its_lesson(index: Path, tiny_run: Path):
    service = Service.of(LiveIndex(lambda: Searcher(load_run(tiny_run), load_index(index))), paths=True, edit=True)
    with TestClient(make_api(service), base_url="http://localhost") as client:
        answer_all(client, index)
        post(client, "start")
        process = service.learning.work._process.pid
        os.kill(process, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_all_collections_of_an_index_are_taken_with_the_captions_that_were_corrected(index: Path, tmp_path: Path):
    wanted = Wanted(name="more", add=True, place=tmp_path / "more")
    (tmp_path / "more").mkdir()
    draw_photo(tmp_path / "more" / "one.png", "red", "left", "ball")
    before = load_index(index).manifest
    bring_up_to_date(read_collection(tmp_path / "more"), lambda: load_run(Path(before.model.name)), before.model, index, wanted)
    first = next(iter(load_index(index).rows))
    keep_correction(corrections_file(index), Correction(first.image, first.captions[0], "Corrected.", "2026-01-01"))
    save_encoder(make_tiny(seed=1), tmp_path / "other")
    take(index, tmp_path / "other")
    rows, manifest = list(load_index(index).rows), load_index(index).manifest
    assert [origin.name for origin in manifest.origins] == ["photos", "more"]
    assert [origin.place for origin in manifest.origins][1] == str(tmp_path / "more")
    assert manifest.model.name == str(tmp_path / "other")
    assert sorted(row.source for row in rows) == ["more"] + ["photos"] * 24
    assert [row.captions for row in rows if row.image == first.image] == [("Corrected.",)]


OWNER = """
import time
from densecap_search.workflows.background import Background

def work(seconds, talk):
    talk.say("begun")
    time.sleep(seconds)

if __name__ == "__main__":
    begun = Background.start(work, 60, then=print)
    while begun.said != "begun":
        time.sleep(0.01)
    print(begun._process.pid, flush=True)
    time.sleep(60)
"""


def test_work_does_not_outlive_an_owner_that_is_killed(tmp_path: Path):
    (tmp_path / "owner.py").write_text(OWNER)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, str(tmp_path / "owner.py")], stdout=subprocess.PIPE, text=True,
                          env=environment) as owner:
        assert owner.stdout is not None
        process = int(owner.stdout.readline())
        assert lives(process)
        owner.kill()
    end = time.monotonic() + 20
    while lives(process):
        assert time.monotonic() < end
        time.sleep(0.02)


def lives(process: int) -> bool:
    """A zombie does not: nobody may be there to ask how it ended."""
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return told.stdout.strip()[:1] not in ("", "Z")
