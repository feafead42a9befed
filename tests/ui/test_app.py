from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from gradio_client import Client
from helpers import free_port, make_photos

from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.model.checkpoint import load_run
from densecap_search.retrieval.searcher import Searcher
from densecap_search.retrieval.update import update_index
from densecap_search.ui.app import run_search

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory, tiny_run: Path) -> Searcher:
    folder = tmp_path_factory.mktemp("page")
    tiny = load_run(tiny_run)
    collection = read_collection(make_photos(folder / "photos"))
    return Searcher(tiny, update_index(collection, tiny, ModelConfig(str(tiny_run)), folder / "index").index)


@pytest.fixture(scope="module")
def page(searcher: Searcher) -> Iterator[str]:
    """``python app.py INDEX``, from another folder."""
    port = free_port()
    words = [sys.executable, ROOT / "app.py", searcher.index.folder, "--port", str(port)]
    with subprocess.Popen(words, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=5).close()
                break
            except OSError:
                if server.poll() is not None:
                    pytest.fail(server.stderr.read() if server.stderr else "the server ended")
                time.sleep(0.25)
        yield f"http://127.0.0.1:{port}"
        server.terminate()


def test_what_is_wrong_with_a_query_is_said_above_the_grid(searcher: Searcher):
    assert run_search(searcher, "  ", 5) == ([], "Describe the picture you look for.")
    hits, message = run_search(searcher, "word " * 300, 5)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert message == "5 of 24 pictures, best first. The caption has 302 tokens; the model reads the first 248."


def test_the_page_finds_what_the_searcher_finds(page: str, searcher: Searcher):
    caption = "A red ball lies on the left of a white table, and nothing else can be seen."
    items, message, *_ = Client(page, verbose=False).predict(caption, 6, api_name="/search")
    expected, _ = searcher.by_captions([caption], 6)
    assert [item["caption"].split(" · ")[1].split("\n")[0] for item in items] == [hit.image_id for hit in expected[0]]
    assert message == "6 of 24 pictures, best first."


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def test_only_small_copies_of_indexed_pictures_can_be_fetched(page: str, searcher: Searcher):
    Client(page, verbose=False).predict("a red ball", 3, api_name="/search")
    folder = searcher.index.folder.resolve()
    small = next((folder / "thumbnails").glob("*.jpg"))
    assert status(f"{page}/gradio_api/file={small}") == 200
    (folder / "secret.txt").write_text("secret")
    for path in (
        "/etc/passwd", "../../../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", searcher.index.rows[0].image,
        str(folder / "secret.txt"), f"{small.parent}/../secret.txt", str(folder / "gen-000001" / "images.jsonl"),
        str(Path.cwd() / "pyproject.toml"), "pyproject.toml",
    ):
        assert status(f"{page}/gradio_api/file={urllib.parse.quote(path)}") in (403, 404), path


def test_the_page_asks_no_other_host(page: str):
    with urllib.request.urlopen(page) as response:
        text = response.read().decode()
    assert "fonts.googleapis.com" not in text
    assert "fonts.gstatic.com" not in text
