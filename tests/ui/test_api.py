from __future__ import annotations

import base64
import csv
import io
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import make_photos
from PIL import Image
from starlette.testclient import TestClient

from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.model.checkpoint import load_run
from densecap_search.retrieval.queries import Query
from densecap_search.retrieval.searcher import Narrowed, Searcher
from densecap_search.retrieval.update import update_index
from densecap_search.ui.access import make_access
from densecap_search.ui.app import build_app
from densecap_search.ui.live import LiveIndex, picture_name

CAPTION = "A red ball lies on the left of a white table, and nothing else can be seen."


def search(page: TestClient, **body):
    return page.post("/api/search", json=body)


def test_the_api_finds_what_the_searcher_finds(page: TestClient, searcher: Searcher):
    (expected,), _ = searcher.by_captions([CAPTION], 6)
    found = search(page, caption=CAPTION, count=6).json()
    assert [(hit["rank"], hit["image_id"], hit["path"], hit["caption"]) for hit in found["hits"]] == [
        (hit.rank, hit.image_id, hit.image, hit.caption) for hit in expected]
    assert [hit["score"] for hit in found["hits"]] == pytest.approx([hit.score for hit in expected], abs=1e-6)
    assert (found["message"], found["total"]) == ("1 to 6 of 24 pictures, best first.", 24)


def test_pages_of_a_ranking_are_its_parts(page: TestClient):
    whole = search(page, caption=CAPTION, count=24).json()["hits"]
    parts = [hit for offset in (0, 10, 20) for hit in search(page, caption=CAPTION, count=10, offset=offset).json()["hits"]]
    assert parts == whole
    beyond = search(page, caption=CAPTION, offset=24).json()
    assert (beyond["hits"], beyond["message"]) == ([], "No more pictures; the index has 24.")


@pytest.mark.parametrize(("body", "sentence"), [
    ({"caption": " \n"}, "describe the picture you look for"),
    ({"caption": "x" * 20_001}, "the caption has 20,001 letters; at most 20,000 are read"),
    ({"caption": "x", "count": 201}, "count: Input should be less than or equal to 200"),
    ({"caption": "x", "offset": -1}, "offset: Input should be greater than or equal to 0"),
    ({"caption": "x", "colour": "red"}, "colour: Extra inputs are not permitted"),
    ({}, "describe the picture you look for"),
    ({"must": ["; ."]}, "'; .' holds no word that could occur"),
    ({"must": ["x"] * 21}, "must: List should have at most 20 items after validation, not 21"),
    ({"caption": "x", "where": "folder ="}, "the filter 'folder =' has its end where a number, or a text in single "
                                            "quotes should be; an example: year >= 1990 and place = 'Lyon'"),
    ({"caption": "x", "mode": "best"}, "mode: Input should be 'auto', 'image', 'text', 'words' or 'fused'"),
])
def test_what_is_wrong_with_a_query_is_one_sentence(page: TestClient, body: dict, sentence: str):
    answer = search(page, **body)
    assert (answer.status_code, answer.json()) == (422, {"error": sentence})


def test_hits_hold_the_words_that_must_occur_and_meet_the_filter(page: TestClient):
    red = search(page, caption=CAPTION, must=["red"], count=24).json()["hits"]
    assert {hit["name"].split("-")[0] for hit in red} == {"red"}
    balls = search(page, caption=CAPTION, must=["red ball", "left"], count=24).json()["hits"]
    assert [hit["name"] for hit in balls] == ["red-left-ball.png"]
    assert search(page, caption=CAPTION, where="split is missing", count=24).json()["hits"] == search(
        page, caption=CAPTION, count=24).json()["hits"]
    none = search(page, caption=CAPTION, where="split = 'test'").json()
    assert (none["hits"], none["message"]) == ([], "None of the 24 pictures meets the conditions.")


def test_words_that_must_occur_are_a_query_of_their_own(page: TestClient):
    (hit,) = search(page, must=["red ball", "left"]).json()["hits"]
    assert (hit["name"], hit["score"]) == ("red-left-ball.png", None)


def test_a_mode_that_the_index_cannot_answer_is_refused_in_a_sentence(page: TestClient):
    answer = search(page, caption=CAPTION, mode="words")
    assert answer.status_code == 422
    assert "holds no captions that could be searched" in answer.json()["error"]


def test_a_body_that_is_no_json_is_refused_in_a_sentence(page: TestClient):
    answer = page.post("/api/search", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"].endswith("JSON decode error")


def test_a_picture_of_the_index_is_most_like_itself_uploaded_or_named(page: TestClient, searcher: Searcher):
    entry = searcher.index.rows[5]
    named = page.get("/api/similar", params={"picture": picture_name(entry), "count": 3}).json()["hits"]
    uploaded = page.post("/api/similar?count=3", content=Path(entry.image).read_bytes()).json()["hits"]
    assert [{**hit, "score": pytest.approx(hit["score"], abs=1e-5)} for hit in named] == uploaded
    assert named[0]["image_id"] == entry.image_id
    assert named[0]["score"] == pytest.approx(1, abs=1e-5)


def test_what_looks_like_a_picture_is_found_by_its_vector_though_its_file_is_gone(tiny_run: Path, tmp_path: Path):
    folder = make_photos(tmp_path / "photos")
    tiny = load_run(tiny_run)
    index = update_index(read_collection(folder), tiny, ModelConfig(str(tiny_run)), tmp_path / "i").index
    app = build_app(LiveIndex(lambda: Searcher(tiny, index)), make_access("127.0.0.1"), paths=True)
    for path in folder.glob("*.png"):
        path.unlink()
    with TestClient(app, base_url="http://localhost") as page:
        found = page.get("/api/similar", params={"picture": picture_name(index.rows[3]), "count": 2}).json()["hits"]
    assert (found[0]["image_id"], found[0]["missing"]) == (index.rows[3].image_id, True)
    assert found[0]["score"] == pytest.approx(1, abs=1e-5)


def test_a_query_of_several_parts_is_asked_as_the_searcher_takes_it(page: TestClient, searcher: Searcher):
    parts = {"caption": "a red box. It is on the left.", "also": [[0.5, "a table"]], "without": ["a ball"], "min_score": -0.9}
    names = [picture_name(searcher.index.rows[number]) for number in (4, 9)]
    found = search(page, **parts, like=names[:1], unlike=names[1:], sentences=[2, 0]).json()["hits"]
    query = Query("a red box.", also=((1.0, "a red box."), (0.5, "a table")), without=("a ball",), near=((1.0, 4), (-1.0, 9)))
    (expected,), _ = searcher.by_queries([query], 24, narrowed=Narrowed(min_score=-0.9))
    assert [(hit["image_id"], hit["score"]) for hit in found] == [(hit.image_id, pytest.approx(hit.score, abs=1e-5)) for hit in expected]
    assert search(page, **parts, like=["0-0"]).json()["error"] == "the index has no such picture"
    assert search(page, caption="One. Two.", sentences=[0, 0]).json()["error"] == "describe the picture you look for"
    assert search(page, caption=CAPTION, min_score=1.5).json()["hits"] == []


def test_stacks_lie_under_the_best_of_them_and_are_counted(tiny_run: Path, tmp_path: Path):
    folder = make_photos(tmp_path / "photos")
    for name in ("red-left-ball", "blue-left-box"):
        for number in range(2):
            (folder / f"{name}-{number}.png").write_bytes((folder / f"{name}.png").read_bytes())
    tiny = load_run(tiny_run)
    searcher = Searcher(tiny, update_index(read_collection(folder), tiny, ModelConfig(str(tiny_run)), tmp_path / "i").index)
    (expected,), _ = searcher.stacks([Query(CAPTION)], 28)
    app = build_app(LiveIndex(lambda: searcher), make_access("127.0.0.1"), paths=True)
    with TestClient(app, base_url="http://localhost") as page:
        plain = search(page, caption=CAPTION, count=28).json()["hits"]
        found = search(page, caption=CAPTION, count=28, stacks=True).json()
        pages = [hit for at in (0, 3) for hit in search(page, caption=CAPTION, count=3, offset=at, stacks=True).json()["hits"]]
    assert [[one["image_id"] for one in (hit, *hit["under"])] for hit in found["hits"]] == [
        [one.image_id for one in (hit, *hit.under)] for hit in expected]
    assert sorted(one["rank"] for hit in found["hits"] for one in (hit, *hit["under"])) == [hit["rank"] for hit in plain]
    under = sum(len(hit["under"]) for hit in found["hits"])
    assert under >= 4
    assert found["message"] == f"1 to {28 - under} of 28 pictures, best first; {under} more that are nearly the same lie under them."
    assert all(hit["under"] == [] for hit in plain)
    assert [hit["rank"] for hit in pages] == [hit["rank"] for hit in found["hits"][:6]]


def test_a_caption_and_a_picture_are_asked_together(page: TestClient, searcher: Searcher):
    image = Path(searcher.index.rows[5].image)
    both = search(page, caption=CAPTION, picture=base64.b64encode(image.read_bytes()).decode(), count=24).json()["hits"]
    (expected,), _ = searcher.by_queries([Query(CAPTION, image)], 24)
    assert [(hit["image_id"], hit["score"]) for hit in both] == [(hit.image_id, pytest.approx(hit.score, abs=1e-5)) for hit in expected]
    assert search(page, caption=CAPTION, picture="bm9uZQ==").json()["error"].startswith("cannot search by the picture: ")
    assert search(page, caption=CAPTION, picture="not base64!").status_code == 422


def test_more_like_a_hit_and_less_like_it_are_opposite_orders(page: TestClient, searcher: Searcher):
    name = picture_name(searcher.index.rows[7])
    more, less = (search(page, **{way: [name]}, count=24).json()["hits"] for way in ("like", "unlike"))
    assert more[0]["picture"] == less[-1]["picture"] == name
    assert [hit["score"] for hit in more] == pytest.approx([-hit["score"] for hit in reversed(less)], abs=1e-5)


def test_hits_are_explained_by_sentences_and_words(page: TestClient, searcher: Searcher):
    query, names = "A red ball lies there. It is night!", [picture_name(searcher.index.rows[number]) for number in (3, 8)]
    told = page.post("/api/explain", json={"caption": query, "without": ["people"], "pictures": names}).json()
    expected = searcher.explain(Query(query, without=("people",)), [3, 8])
    assert (told["sentences"], told["own"]) == (["A red ball lies there.", "It is night!", "people"], 2)
    assert [hit["picture"] for hit in told["hits"]] == names
    assert [hit["percentiles"] for hit in told["hits"]] == [pytest.approx(own, abs=1e-3) for own in expected.percentiles]
    for hit, number in zip(told["hits"], (3, 8), strict=True):
        assert "".join(text for text, _ in hit["caption"]) == searcher.index.rows[number].captions[0]
        assert "lies" in {text for text, same in hit["caption"] if same}
    gone = page.post("/api/explain", json={"caption": query, "pictures": ["77-0"]})
    assert (gone.status_code, gone.json()["error"]) == (422, "the index has no such picture")


def test_where_a_sentence_fits_is_told_of_pictures_that_are_still_as_they_were_indexed(page: TestClient, searcher: Searcher):
    row = searcher.index.rows[5]
    told = page.post("/api/heat", json={"picture": picture_name(row), "text": "a red ball"}).json()
    expected = searcher.heat(Path(row.image), "a red ball")
    assert np.allclose(told["values"], expected.values, atol=1e-3)
    assert (told["box"], told["reason"]) == ([0, 0, 1, 1], "")
    original = Path(row.image).read_bytes()
    try:
        Path(row.image).write_bytes(Path(searcher.index.rows[6].image).read_bytes())
        told = page.post("/api/heat", json={"picture": picture_name(row), "text": "a red ball"}).json()
    finally:
        Path(row.image).write_bytes(original)
    assert told == {"values": None, "box": None, "reason": "the file has changed since it was indexed"}


def test_what_is_no_picture_cannot_be_searched_by_and_its_place_is_not_told(page: TestClient):
    answer = page.post("/api/similar", content=b"not a picture")
    assert (answer.status_code, answer.json()["error"]) == (
        422, "cannot search by the picture: not a picture that Pillow can read")
    assert page.post("/api/similar", content=b"").json()["error"] == "send the picture as the body of the request"
    assert page.get("/api/similar?picture=none").json()["error"] == "the index has no such picture"


def test_pictures_are_fetched_by_content_small_large_and_as_they_are(page: TestClient, searcher: Searcher):
    entry = searcher.index.rows[0]
    original = page.get(f"/pictures/{picture_name(entry)}/original")
    assert (original.headers["content-type"], original.content) == ("image/png", Path(entry.image).read_bytes())
    small = page.get(f"/pictures/{picture_name(entry)}/small")
    assert (small.headers["content-type"], small.content[:2]) == ("image/jpeg", b"\xff\xd8")
    assert "immutable" in small.headers["cache-control"]


@pytest.mark.parametrize("path", [
    "/pictures/{name}/../../../etc/passwd", "/pictures/..%2f..%2fetc%2fpasswd/original", "/pictures/0123456789abcdef/small",
    "/pictures/{name}/huge", "/pictures/{name}-384.jpg/small", "/gradio_api/file={image}", "/page/..%2fapp.py", "/page/app.py",
    "/page/%2e%2e/app.py", "/pictures//original",
])
def test_nothing_but_pictures_of_the_index_can_be_fetched(page: TestClient, searcher: Searcher, path: str):
    entry = searcher.index.rows[0]
    assert page.get(path.format(name=picture_name(entry), image=entry.image)).status_code in (404, 422)


def test_the_index_is_told_with_examples_from_its_captions(page: TestClient, searcher: Searcher):
    about = page.get("/api/index").json()
    assert about["model"] == "tiny"  # the name of the run folder, and not where it lies
    assert (about["name"], about["pictures"], about["context_length"]) == ("index", 24, 248)
    captions = {caption for entry in searcher.index.rows for caption in entry.captions}
    assert len(about["examples"]) == 3
    assert set(about["examples"]) <= captions
    assert page.get("/api/health").json()["status"] == "ok"


def test_the_window_is_told_in_words_and_tokens(page: TestClient):
    read = page.post("/api/window", json={"caption": "a red ball"}).json()
    assert read == {"words": 3, "tokens": 5, "context_length": 248, "end": None, "segments": 1}
    long = page.post("/api/window", json={"caption": "word " * 300}).json()
    assert (long["words"], long["tokens"], long["end"]) == (300, 302, 5 * 246)  # 246 words and the two marks around


def test_the_description_of_the_api_names_its_routes(page: TestClient):
    routes = page.get("/api/openapi.json").json()["paths"]
    assert {"/api/search", "/api/similar", "/api/health", "/api/index", "/api/window", "/api/export", "/api/explain", "/api/heat"} <= set(routes)


def basket(page: TestClient, kind: str, names: list[str]):
    return page.post(f"/api/export?format={kind}", json={"items": [{"picture": name, "score": 0.5, "query": "a, b"} for name in names]})


def test_a_basket_is_saved_as_table_and_lines_in_the_order_in_which_it_was_filled(page: TestClient, searcher: Searcher):
    entries = [searcher.index.rows[row] for row in (3, 1)]
    names = [picture_name(entry) for entry in entries]
    table = list(csv.DictReader(io.StringIO(basket(page, "csv", [*names, "gone"]).text)))
    assert [(row["image_id"], row["image"], row["query"]) for row in table] == [(e.image_id, e.image, "a, b") for e in entries]
    lines = [json.loads(line) for line in basket(page, "jsonl", names).text.splitlines()]
    assert [line["caption"] for line in lines] == ["\n".join(entry.captions) for entry in entries]


def test_a_contact_sheet_shows_every_picture_and_asks_nobody_for_anything(page: TestClient, searcher: Searcher):
    entries = [searcher.index.rows[row] for row in (3, 1)]
    items = [{"picture": picture_name(entry), "score": 0.5, "query": "<b>red</b>"} for entry in entries]
    reply = page.post("/api/export?format=html", json={"items": items})
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    pictures = re.findall(r'<img src="data:image/jpeg;base64,([^"]*)" alt="([^"]*)">', reply.text)
    assert [alt for _, alt in pictures] == ["\n".join(entry.captions) for entry in entries]
    for (data, _), entry in zip(pictures, entries, strict=True):
        with Image.open(io.BytesIO(base64.b64decode(data))) as copy, Image.open(entry.image) as original:
            assert copy.size == original.size
    assert reply.text.count("for “&lt;b&gt;red&lt;/b&gt;”") == 2
    assert "<h1>2 pictures</h1>" in reply.text
    assert not re.search(r"<script|<link|https?://", reply.text)


def test_a_contact_sheet_says_why_a_picture_is_not_on_it(page: TestClient, searcher: Searcher, tmp_path: Path):
    entry = searcher.index.rows[5]
    for copy in searcher.index.thumbnails().glob(f"{entry.hash}-*"):
        copy.unlink()
    Path(entry.image).rename(tmp_path / "away.png")
    sheet = basket(page, "html", [picture_name(entry)]).text
    (tmp_path / "away.png").rename(entry.image)
    assert '<span class="missing">the file is no longer where it was indexed</span>' in sheet


def test_a_basket_saved_as_zip_holds_the_originals_and_names_them(page: TestClient, searcher: Searcher):
    entries = [searcher.index.rows[row] for row in (3, 1)]
    with zipfile.ZipFile(io.BytesIO(basket(page, "zip", [picture_name(entry) for entry in entries]).content)) as archive:
        rows = [json.loads(line) for line in archive.read("captions.jsonl").splitlines()]
        assert [archive.read(row["image"]) for row in rows] == [Path(entry.image).read_bytes() for entry in entries]


def test_where_paths_are_hidden_no_answer_holds_the_folder(searcher: Searcher):
    folder = str(Path(searcher.index.rows[0].image).parent)
    app = build_app(LiveIndex(lambda: searcher), make_access("127.0.0.1"), paths=False)
    with TestClient(app, base_url="http://localhost") as page:
        found = search(page, caption=CAPTION, count=24)
        assert folder not in found.text
        assert {hit["path"] for hit in found.json()["hits"]} == {entry.image_id for entry in searcher.index.rows}
        for kind in ("csv", "jsonl"):
            assert folder not in basket(page, kind, [picture_name(entry) for entry in searcher.index.rows]).text
        assert folder not in page.get("/api/index").text
        guess = search(page, caption=CAPTION, where=f"split is missing or not (PATH under '{folder}')")
        assert (guess.status_code, "whole paths are not shown here" in guess.json()["error"]) == (422, True)
        assert folder not in page.get("/").text


def test_the_page_itself_names_no_other_host(page: TestClient):
    text = page.get("/").text
    assert "/page/page.js" in text
    assert not [host for host in ("fonts.googleapis.com", "fonts.gstatic.com", "cdnjs", "//cdn") if host in text]
