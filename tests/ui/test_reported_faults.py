"""Faults that users of other search pages reported, tried here."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers import make_photos, make_tiny
from made_indexes import index_of, vectors
from PIL import Image
from starlette.testclient import TestClient

from densecap_search.cli import main
from densecap_search.retrieval.searcher import Searcher, open_searcher
from densecap_search.ui.access import make_access
from densecap_search.ui.app import build_app
from densecap_search.ui.live import LiveIndex


def run(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def page_of(searcher: Searcher) -> TestClient:
    return TestClient(build_app(LiveIndex(lambda: searcher), make_access("127.0.0.1"), paths=True), base_url="http://localhost")


def test_pictures_with_any_name_outside_of_the_working_folder_are_shown_after_the_index_has_moved(tmp_path: Path, tiny_run: Path,
                                                                                                  monkeypatch: pytest.MonkeyPatch):
    """gradio #4118, #9809; faiss #3073: blanks, Cyrillic, #, %, an index named by a relative path and moved."""
    (tmp_path / "a b").mkdir()
    make_photos(tmp_path / "a b" / "фото #1 100%")
    monkeypatch.chdir(tmp_path / "a b")
    run("index", "фото #1 100%", "--model", tiny_run, "-o", "Архив ü")
    (tmp_path / "elsewhere").mkdir()
    os.rename("Архив ü", tmp_path / "elsewhere" / "索引")  # noqa: PTH104 (both are relative to other folders)
    monkeypatch.chdir("/")
    with page_of(open_searcher(tmp_path / "elsewhere" / "索引", device="cpu")) as page:
        hits = page.post("/api/search", json={"caption": "a red ball", "count": 24}).json()["hits"]
        assert len(hits) == 24
        for hit in hits:
            assert not hit["missing"]
            assert [page.get(f"/pictures/{hit['picture']}/{size}").status_code for size in ("small", "original")] == [200, 200]


def test_all_of_300_pictures_can_be_had_and_the_page_says_how_many_there_are(tmp_path: Path):
    """immich #3805: a limit that nobody is told of."""
    searcher = Searcher(make_tiny(), index_of(vectors(300), tmp_path / "i"))
    with page_of(searcher) as page:
        first = page.post("/api/search", json={"caption": "a red ball", "count": 50}).json()
        assert (len(first["hits"]), first["message"].split(",")[0]) == (50, "1 to 50 of 300 pictures")
        rest = page.post("/api/search", json={"caption": "a red ball", "count": 200, "offset": 200}).json()["hits"]
        assert [hit["rank"] for hit in rest] == list(range(201, 301))
        items = [{"picture": hit["picture"]} for hit in (*first["hits"], *rest)]
        table = page.post("/api/export?format=csv", json={"items": items}).text
        assert len(list(csv.DictReader(table.splitlines()))) == 150
    (hits,), _ = searcher.by_captions(["a red ball"], 300)
    assert len({hit.number for hit in hits}) == 300


def test_the_picture_that_is_searched_by_can_be_left_out_with_its_copies(photos: Path, tiny_run: Path, tmp_path: Path):
    """rclip PR 48: the query itself fills rank 1. Asked by an indexed file, and by a copy that is not indexed."""
    asked = photos / "blue-left-box.png"
    (photos / "twin.png").write_bytes(asked.read_bytes())
    run("index", photos, "--model", tiny_run, "-o", tmp_path / "i")
    (tmp_path / "mine.png").write_bytes(asked.read_bytes())
    for image in (asked, tmp_path / "mine.png"):
        found = [Path(json.loads(line)["image"]).name for line in run("search", tmp_path / "i", "--image", image, "--json").splitlines()]
        assert {"blue-left-box.png", "twin.png"} == set(found[:2])
        others = run("search", tmp_path / "i", "--image", image, "--others", "-k", 25, "--json").splitlines()
        names = {Path(json.loads(line)["image"]).name for line in others}
        assert names
        assert not names & {"blue-left-box.png", "twin.png"}
    assert CliRunner().invoke(main, ["search", str(tmp_path / "i"), "a ball", "--others"]).exit_code == 2


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_hits_that_are_written_name_the_original_whatever_is_in_its_name_and_caption(tmp_path: Path, tiny_run: Path, suffix: str):
    """clip-retrieval #205: commas, quotes and line breaks come back as they were."""
    caption, name = 'He said ""go"", then\nleft;\t"x', 'a, "b"\nc;=d.png'
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (40, 40), "red").save(tmp_path / "photos" / name)
    (tmp_path / "photos" / name).with_suffix(".txt").write_text(caption, encoding="utf-8")
    run("index", tmp_path / "photos", "--model", tiny_run, "-o", tmp_path / "i")
    output = tmp_path / f"hits.{suffix}"
    run("search", tmp_path / "i", "=a, \"b\"\nc", "--output", output)
    with output.open(encoding="utf-8", newline="") as file:
        (hit,) = csv.DictReader(file) if suffix == "csv" else map(json.loads, file)
    assert (hit["image"], hit["caption"], hit["query"]) == (str(tmp_path / "photos" / name), caption, "=a, \"b\"\nc")
    assert (int(hit["rank"]), -1 <= float(hit["score"]) <= 1) == (1, True)


@pytest.mark.slow
def test_the_grid_of_100_pictures_of_24_megapixels_takes_less_than_5_mb(tmp_path: Path, tiny_run: Path):
    """gradio #5679, #2134: full files are sent for the grid. Three of them, whose copies may have 50 kB each."""
    for number in range(3):
        image = Image.effect_mandelbrot((1500, 1000), (-2 + number / 3, -1.5, 1, 1.5), 100).resize((6000, 4000)).convert("RGB")
        image.save(tmp_path / f"{number}.jpg", quality=95)
    run("index", tmp_path, "--model", tiny_run, "-o", tmp_path / "i")
    with page_of(open_searcher(tmp_path / "i", device="cpu")) as page:
        hits = page.post("/api/search", json={"caption": "a red ball"}).json()["hits"]
        sizes = [len(page.get(f"/pictures/{hit['picture']}/small").content) for hit in hits]
    assert len(sizes) == 3
    assert max(sizes) < 50_000
