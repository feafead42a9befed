"""The demo as a user runs it, and its page in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import free_port

from densecap_search.collection.readers import read_collection
from densecap_search.retrieval.caption_store import load_captions
from densecap_search.retrieval.index import load_index

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo") / "d"
    done = subprocess.run([sys.executable, "-m", "densecap_search", "demo", folder], capture_output=True, text=True,
                          env={**os.environ, "DENSECAP_CACHE": str(folder.parent / "cache")}, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def recall_at_1(output: str, model: str) -> float:
    (line,) = [line for line in output.splitlines() if line.startswith(f"{model} ") and "text→image" in line]
    return float(line.split()[3])  # after the model, the direction and the size of the gallery


def test_fine_tuning_at_least_doubles_recall_on_unseen_bursts(demo):
    _, output = demo
    before, after = recall_at_1(output, "starter"), recall_at_1(output, "fine-tuned")
    assert after >= 25
    assert after >= 2 * before


def test_the_archive_is_large_enough_and_its_captions_are_dense(demo):
    folder, _ = demo
    records = read_collection(folder / "archive" / "captions.jsonl").records
    assert len(records) >= 600
    assert all(60 <= len(caption.split()) <= 120 for record in records for caption in record.captions)
    sides: dict[str | None, set[str | None]] = {}
    for record in records:
        sides.setdefault(record.burst, set()).add(record.split)
    assert all(len(names) == 1 for names in sides.values())


def test_its_index_is_searched_by_captions_too(demo):
    folder, _ = demo
    assert load_captions(load_index(folder / "index")) is not None


def test_the_next_command_that_it_prints_is_the_page(demo):
    folder, output = demo
    assert output.rstrip().endswith(f"densecap serve {folder / 'index'}")


@pytest.fixture(scope="module")
def served(demo) -> Iterator[str]:
    """The page, served by the command that the demo prints."""
    folder, _ = demo
    port = free_port()
    words = [sys.executable, "-m", "densecap_search", "serve", folder / "index", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
        for _ in range(120):
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, "the server ended"
                time.sleep(0.5)
        yield url
        server.terminate()


def test_a_browser_finds_the_right_picture_first(demo, served: str):
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "this test needs Debian's package chromium"
    folder, _ = demo
    index = [json.loads(line) for line in (folder / "index" / "gen-000001" / "images.jsonl").read_text().splitlines()]
    record = max((row for row in index), key=lambda row: (len(row["captions"][0].split()), row["image_id"]))
    caption = record["captions"][0]
    assert len(caption.split()) >= 100
    artefacts = Path(os.environ.get("DENSECAP_ARTEFACTS") or folder.parent / "artefacts")
    artefacts.mkdir(parents=True, exist_ok=True)
    hosts: set[str] = set()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=[
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync"])
        page = browser.new_page(viewport={"width": 1360, "height": 900})
        errors: list[str] = []
        page.on("request", lambda request: hosts.add(re.sub(r"^\w+://([^/:]*).*", r"\1", request.url)))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(served)
        page.locator("#caption textarea").fill(caption)
        page.locator("#search").click()
        first = page.locator("#grid .caption-label").first
        first.wait_for(timeout=30_000)
        loaded = "selector => { const i = document.querySelector(selector); return i && i.complete && i.naturalWidth > 100 }"
        page.wait_for_function(loaded, arg="#grid img")
        text = first.inner_text()
        assert Path(record["image"]).name in text
        assert re.match(r"0\.\d{3} · ", text)
        assert float(text[:5]) > 0.4
        page.screenshot(path=artefacts / "page.png")
        page.locator("#grid button.thumbnail-item, #grid .thumbnail-item").first.click()
        page.wait_for_function(loaded, arg="#picture img")
        page.locator("#details p, #details pre").first.wait_for()
        assert caption[:60] in page.locator("#details").inner_text().replace("\n", " ")
        page.screenshot(path=artefacts / "page-selected.png")
        browser.close()
    assert errors == []
    assert {host for host in hosts if not host.startswith(("data:", "blob:"))} == {"127.0.0.1"}
    assert (artefacts / "page.png").stat().st_size > 20_000
