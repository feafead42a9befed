"""What people teach through the page is kept beside the index, where that is allowed, and only as the page sends it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from densecap_search.collection.corrections import corrections_file
from densecap_search.collection.feedback import feedback_file
from densecap_search.collection.readers import read_collection
from densecap_search.retrieval.searcher import Searcher
from densecap_search.ui.access import make_access, may_edit
from densecap_search.ui.app import build_app
from densecap_search.ui.live import LiveIndex, picture_name

HERE = {"origin": "http://localhost"}


@pytest.fixture
def taught(searcher: Searcher) -> Iterator[TestClient]:
    app = build_app(LiveIndex(lambda: searcher), make_access("127.0.0.1"), paths=True, edit=True)
    with TestClient(app, base_url="http://localhost", headers=HERE) as client:
        yield client
    feedback_file(searcher.index.folder).unlink(missing_ok=True)


def test_what_was_meant_becomes_a_question_of_a_collection(taught: TestClient, searcher: Searcher):
    first, second = searcher.index.rows[3], searcher.index.rows[4]
    said = [{"caption": "the red one", "answer": "this", "picture": picture_name(first), "rank": 2, "hits": 24},
            {"caption": "a cat", "answer": "none", "hits": 24},
            {"caption": "an error", "answer": "this", "picture": picture_name(second)},
            {"caption": "an error", "answer": "undo", "picture": picture_name(second)}]
    folder = searcher.index.folder
    assert [taught.post("/api/feedback", json=body).json() for body in said] == [{"file": "index.feedback.jsonl"}] * 4
    kept = folder.parent / "index.feedback.jsonl"
    line = json.loads(kept.read_text().splitlines()[0])
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "densecap": "feedback", "query": "the red one", "answer": "this", "image_id": first.image_id,
        "image": first.image, "hash": first.hash, "rank": 2, "shown": 24, "model": searcher.encoder.name,
        "fingerprint": searcher.encoder.fingerprint(), "index": f"{folder}/gen-000001"}
    found = read_collection(kept)
    assert [(str(record.image), record.captions) for record in found.records] == [(first.image, ("the red one",))]


@pytest.mark.parametrize(("body", "sentence"), [
    ({"caption": " ", "answer": "none"}, "describe the picture you look for"),
    ({"caption": "x" * 20_001, "answer": "none"}, "caption: String should have at most 20000 characters"),
    ({"caption": "x", "answer": "this"}, '"this" names a picture, and "none" names none'),
    ({"caption": "x", "answer": "this", "picture": "0-../../etc/passwd"}, "the index has no such picture; search again"),
    ({"caption": "x", "answer": "perhaps"}, "answer: Input should be 'this', 'none' or 'undo'"),
    ({"caption": "x", "answer": "none", "file": "/tmp/x"}, "file: Extra inputs are not permitted"),
])
def test_what_is_no_answer_is_refused_in_a_sentence_and_not_kept(taught: TestClient, searcher: Searcher, body, sentence: str):
    answer = taught.post("/api/feedback", json=body)
    assert (answer.status_code, answer.json()) == (422, {"error": sentence})
    assert not feedback_file(searcher.index.folder).exists()


def test_only_this_page_can_write_and_only_json(taught: TestClient, searcher: Searcher):
    body = json.dumps({"caption": "x", "answer": "none"})
    plain = taught.post("/api/feedback", content=body, headers={"content-type": "text/plain"})
    assert (plain.status_code, plain.json()["error"]) == (422, "send JSON, as content-type application/json")
    assert taught.post("/api/feedback", content=body).status_code == 422
    for origin in ("http://evil.example", "http://localhost:9", "null"):
        foreign = taught.post("/api/feedback", content=body, headers={"content-type": "application/json", "origin": origin})
        assert foreign.status_code == 403
    assert taught.get("/api/feedback").status_code == 404
    assert not feedback_file(searcher.index.folder).exists()


def test_without_edit_nothing_is_kept_and_the_page_is_told(page: TestClient, taught: TestClient, searcher: Searcher):
    answer = page.post("/api/feedback", json={"caption": "x", "answer": "none"})
    assert (answer.status_code, answer.json()["error"]) == (
        403, "nothing is kept here; densecap serve --edit lets people teach")
    assert not feedback_file(searcher.index.folder).exists()
    assert [client.get("/api/index").json()["edit"] for client in (page, taught)] == [False, True]


def test_answers_that_cannot_be_written_are_a_sentence(taught: TestClient, searcher: Searcher):
    feedback_file(searcher.index.folder).mkdir()
    answer = taught.post("/api/feedback", json={"caption": "x", "answer": "none"})
    feedback_file(searcher.index.folder).rmdir()
    assert (answer.status_code, answer.json()["error"]) == (
        422, "index.feedback.jsonl cannot be written: Is a directory; what was said is not kept")


def test_a_caption_is_corrected_beside_the_index_and_shown_at_once(taught: TestClient, searcher: Searcher):
    row = searcher.index.rows[3]
    picture, (before,) = picture_name(row), row.captions
    body = {"picture": picture, "before": before, "after": "Something\nelse"}
    expected = {"captions": ["Something\nelse"], "file": "index.corrections.jsonl"}
    assert taught.get("/api/captions", params={"picture": picture}).json()["captions"] == [before]
    assert taught.post("/api/captions", json=body).json() == expected
    hits = taught.post("/api/search", json={"caption": "x", "count": 24}).json()["hits"]
    assert [hit["caption"] for hit in hits if hit["picture"] == picture] == ["Something\nelse"]
    assert taught.post("/api/captions", json=body).json() == {"error": "the picture has no such caption any more; open it again"}
    assert taught.post("/api/captions", json={**body, "before": "Something\nelse", "after": " "}).json()["captions"] == []
    assert taught.post("/api/captions", json={**body, "before": "", "after": ""}).json() == {
        "error": "write the caption that the picture is to have"}
    assert taught.post("/api/captions", json={**body, "before": "", "after": before}).json()["captions"] == [before]
    assert searcher.index.rows[3].captions == (before,)
    corrections_file(searcher.index.folder).unlink()


def test_captions_are_corrected_only_where_people_may_teach_and_by_this_page(page: TestClient, taught: TestClient, searcher):
    body = {"picture": picture_name(searcher.index.rows[3]), "before": "", "after": "x"}
    assert page.post("/api/captions", json=body).status_code == 403
    assert page.get("/api/captions", params={"picture": body["picture"]}).status_code == 403
    assert taught.post("/api/captions", json=body, headers={"origin": "http://evil.example"}).status_code == 403
    assert taught.post("/api/captions", content=json.dumps(body), headers={"content-type": "text/plain"}).status_code == 422
    assert taught.post("/api/captions", json={**body, "after": "x" * 100_001}).status_code == 422
    assert taught.post("/api/captions", json={**body, "picture": "0-x"}).json() == {
        "error": "the index has no such picture; search again"}
    assert not corrections_file(searcher.index.folder).exists()


def test_teaching_is_for_this_machine_unless_it_is_asked_for():
    assert may_edit("127.0.0.1", (), None)
    assert not may_edit("127.0.0.1", ("pictures.lan",), None)  # behind a proxy
    assert not may_edit("0.0.0.0", (), None)
    assert may_edit("0.0.0.0", (), True)
    assert not may_edit("localhost", (), False)
