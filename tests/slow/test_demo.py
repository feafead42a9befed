"""The demo as a user runs it, and its page in a real browser."""

from __future__ import annotations

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
    records = read_collection(folder / "archive" / "captions.jsonl").records
    record = max(records, key=lambda one: (len(one.captions[0].split()), one.image_id))
    caption = record.captions[0]
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
        page.fill("#caption", caption)
        page.click("#search")
        first = page.locator("#grid .card").first
        first.wait_for(timeout=30_000)
        assert first.locator(".name").inner_text() == record.image.name
        facts = re.fullmatch(r"1 · score (0\.\d{3})( · \w+)?", first.locator(".facts").inner_text())
        assert facts
        assert float(facts[1]) > 0.4
        page.screenshot(path=artefacts / "page.png")
        first.locator(".open").click()
        page.wait_for_selector("#lightbox .large img")
        assert caption[:60] in page.inner_text("#lightbox .whole")
        page.screenshot(path=artefacts / "page-selected.png")
        browser.close()
    assert errors == []
    assert {host for host in hosts if not host.startswith(("data:", "blob:"))} == {"127.0.0.1"}
    assert (artefacts / "page.png").stat().st_size > 20_000
