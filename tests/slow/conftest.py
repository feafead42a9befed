"""What slow tests share: towers run once for a module, and pages are looked at in Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Look = Callable[[Path, str], tuple[str, list[int]]]


@pytest.fixture(scope="module")
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def shared_cache(one_cache: Path, monkeypatch: pytest.MonkeyPatch, _own_cache: None) -> None:
    monkeypatch.setenv("DENSECAP_CACHE", str(one_cache))


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Opens a report in Chromium: its text, and the width of every picture in it; the screenshot goes to the artefacts.

    It must ask for nothing but itself, and be no wider than its window.
    """
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "this test needs Debian's package chromium"
    artefacts = Path(os.environ.get("DENSECAP_ARTEFACTS") or tmp_path / "artefacts")
    artefacts.mkdir(parents=True, exist_ok=True)

    def open_page(page: Path, name: str) -> tuple[str, list[int]]:
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
            tab.screenshot(path=artefacts / f"{name}.png", full_page=True)
            browser.close()
        assert overflow <= 0
        assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]
        return text, widths

    return open_page
