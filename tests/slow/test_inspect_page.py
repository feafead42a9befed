"""The inspection's page as a browser shows it, on real photographs and on files that break other programs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from densecap_search.cli import main

pytestmark = pytest.mark.slow
CAPTION = "A black cat sleeps on a wooden chair beside a window; its tail hangs down, and the light falls from the left."


def seen(page: Path, name: str) -> tuple[str, list[int]]:
    """The page's text, and the width of every picture in it; a screenshot goes to the artefacts."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "this test needs Debian's package chromium"
    artefacts = Path(os.environ.get("DENSECAP_ARTEFACTS") or page.parent / "artefacts")
    artefacts.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=[
            "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        requests: list[str] = []
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(page.as_uri())
        widths = tab.eval_on_selector_all("img", "all => all.map(i => i.complete ? i.naturalWidth : 0)")
        overflow = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        text = tab.inner_text("body")
        tab.screenshot(path=artefacts / f"inspect-{name}.png", full_page=True)
        browser.close()
    assert overflow <= 0
    assert [url for url in requests if not url.startswith(("data:", "file:"))] == []
    return text, widths


def inspected(collection: Path, report: Path) -> dict[str, int]:
    words = ["inspect", str(collection), "--model", "starter", "--report", str(report), "--json"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return {finding["kind"]: finding["count"] for finding in json.loads(done.stdout)["findings"] if finding["do"]}


def test_the_page_of_clean_photographs_shows_the_hardest_pairs_and_nothing_to_mend(real_data: Path, tmp_path: Path):
    found = inspected(real_data / "ids-ade" / "captions.jsonl", tmp_path / "page.html")
    assert found == {}  # its README: no exact or near-duplicate captions, no near-duplicate images (dHash <= 4)
    text, widths = seen(tmp_path / "page.html", "ids-ade")
    assert "547\npictures" in text
    assert "Nothing was found." in text
    assert "No picture, caption, group or burst is in more than one split." in text
    assert "The pairs of different captions that are hardest to tell apart" in text
    assert len(widths) == 4 + 2 * 12  # plots, and 12 pairs
    assert min(widths) >= 60


def test_the_page_of_awkward_files_names_each_that_is_broken(real_data: Path, tmp_path: Path):
    folder = tmp_path / "awkward"
    shutil.copytree(real_data / "awkward", folder)
    (folder / "README.md").unlink()
    (folder / "empty.jpg").touch()
    (folder / "copy.jpg").write_bytes((folder / "exif6.jpg").read_bytes())
    (folder / "copy.txt").write_text("A waterfall, seen from above.")
    (folder / "black cat sleeping on a chair.txt").write_text(CAPTION)
    (folder / "photo.txt").write_text(CAPTION.upper())
    found = inspected(folder, tmp_path / "page.html")
    assert found["broken"] >= 5  # more where no plug-in reads HEIC or AVIF
    assert found["same picture"] == 1
    text, widths = seen(tmp_path / "page.html", "awkward")
    for name in ("truncated.jpg", "truncated.png", "broken_stream.png", "bomb_header.gif", "empty.jpg"):
        assert f"{name}: " in text
    assert "1 picture is a copy of another, byte for byte" in text
    assert min(widths) >= 30
