"""The picture of the page in README: docs/page.webp.

Draws an archive of generated scenes, indexes it with the starter, serves it, searches by three sentences of a caption,
and opens the best hit in Chromium.

    PYTHONPATH=. python tests/slow/page_picture.py    # needs the extras starter and test, and chromium
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from densecap_search.collection.captions import sentences
from densecap_search.retrieval.index import load_index
from densecap_search.scenes.archive import make_scenes

ROOT = Path(__file__).parents[2]
SIZE = {"width": 1440, "height": 900}
SENTENCES, QUALITY = 3, 80


def served(index: Path) -> tuple[subprocess.Popen[str], str]:
    """``densecap serve`` of an index, and its address."""
    command = [sys.executable, "-m", "densecap_search", "serve", str(index), "--port", "0", "--hide-paths"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stderr is not None
    return process, next(found[1] for line in process.stderr if (found := re.search(r"open (http://\S+)", line)))


def picture(url: str, caption: str) -> Image.Image:
    """The page with the hits of a caption."""
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
        tab = browser.new_page(viewport=SIZE)
        tab.goto(url)
        tab.wait_for_selector("#caption")
        tab.fill("#caption", caption)
        tab.press("#caption", "Control+Enter")
        tab.wait_for_selector("#grid .card >> nth=8")
        tab.wait_for_timeout(1500)
        page = Image.open(io.BytesIO(tab.screenshot()))
        tab.click("#grid .open >> nth=0")
        tab.wait_for_selector("#lightbox .sentences [data-count]")
        tab.wait_for_timeout(1500)
        large = Image.open(io.BytesIO(tab.screenshot()))
        browser.close()
    both = Image.new("RGB", (page.width, 2 * page.height))
    both.paste(page, (0, 0))
    both.paste(large, (0, page.height))
    return both


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "scenes"
        table = make_scenes(Path(folder) / "archive", bursts=60, seed=0)
        subprocess.run([sys.executable, "-m", "densecap_search", "index", str(table), "--model", "starter", "-o",
                        str(index)], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        caption = " ".join(sentences(load_index(index).rows[8].captions[0])[:SENTENCES])
        process, url = served(index)
        try:
            picture(url, caption).save(ROOT / "docs" / "page.webp", quality=QUALITY, method=6)
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
