"""The page in Chromium, at the width of a phone and of a desk, light and dark."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from helpers import make_photos
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig, Reading
from densecap_search.model.checkpoint import load_run
from densecap_search.retrieval.update import update_index

pytestmark = pytest.mark.slow
CAPTION = "A red ball lies on the left of a white table, and nothing else can be seen."
HOSTILE = "<img src=http://127.0.0.1:9/x.png onerror=alert(1)> **bold** ![](http://127.0.0.1:9/y.png) [a](http://127.0.0.1:9)"
WIDTHS = {"phone": (375, 667), "desk": (1440, 900)}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, tiny_run: Path) -> Path:
    """24 drawn pictures, one that the browser cannot show, one with a long name and a hostile caption; and their index."""
    folder = tmp_path_factory.mktemp("page")
    photos = make_photos(folder / "photos")
    Image.new("RGB", (900, 600), "purple").save(photos / "purple.tiff")
    name = "a very long name " * 12 + "<b>.png"
    Image.new("RGB", (64, 64), "orange").save(photos / name)
    (photos / name).with_suffix(".txt").write_text(HOSTILE, encoding="utf-8")
    make(folder, tiny_run)
    return folder


def make(folder: Path, run: Path) -> None:
    update_index(read_collection(folder / "photos"), load_run(run), ModelConfig(str(run)), folder / "index")


@pytest.fixture(scope="module")
def server(archive: Path) -> Iterator[str]:
    with serving(archive / "index") as url:
        yield url


@contextmanager
def serving(index: Path, *more: str | Path) -> Iterator[str]:
    """``densecap serve`` from another folder, with a proxy in the environment that is not there."""
    command = [sys.executable, "-m", "densecap_search", "serve", str(index), "--port", "0", *map(str, more)]
    dead = "http://127.0.0.1:9"
    environment = {**os.environ, "HTTP_PROXY": dead, "http_proxy": dead, "ALL_PROXY": "socks5://127.0.0.1:9",
                   "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, cwd="/", stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"open (http://\S+)", line):
                try:
                    yield found[1]
                finally:  # else a test that fails waits for ever
                    process.terminate()
                break
        else:
            pytest.fail("".join(said))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "this test needs Debian's package chromium"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=[
            "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"])
        yield opened
        opened.close()


class Watched:
    """A tab, and what it asked for and complained about."""

    def __init__(self, browser: Browser, url: str, width: str = "desk", scheme: Any = "light") -> None:
        across, down = WIDTHS[width]
        self.context = browser.new_context(viewport={"width": across, "height": down}, color_scheme=scheme,
                                           permissions=["clipboard-read", "clipboard-write"])
        self.tab: Page = self.context.new_page()
        self.foreign: list[str] = []
        self.complaints: list[str] = []
        self.tab.on("request", lambda request: self._asked(request.url, url))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("console", lambda told: self.complaints.append(told.text) if told.type == "error" else None)

    def _asked(self, asked: str, url: str) -> None:
        if not asked.startswith((url + "/", "data:", "blob:")):
            self.foreign.append(asked)

    def search(self, caption: str, key: str = "Control+Enter") -> None:
        self.tab.fill("#caption", caption)
        self.tab.press("#caption", key)
        self.hits()

    def hits(self) -> None:
        self.until("document.querySelector('#message')?.textContent.includes('best first') "
                   "&& document.querySelector('#grid').ariaBusy === 'false'")

    def until(self, holds: str, seconds: float = 20) -> None:
        """playwright's own way to wait for an expression is stopped by the page's Content-Security-Policy."""
        end = time.monotonic() + seconds
        while not self.tab.evaluate(holds):
            assert time.monotonic() < end, f"never: {holds}"
            time.sleep(0.05)

    def all_cards(self, count: int) -> None:
        """Scroll until that many hits are there."""
        self.until(f"(window.scrollTo(0, document.body.scrollHeight), document.querySelectorAll('.card').length === {count})")

    def names(self) -> list[str]:
        return self.tab.eval_on_selector_all("#grid .name", "all => all.map(one => one.textContent)")


@pytest.fixture
def open_page(browser: Browser, server: str) -> Iterator[Any]:
    opened = []

    def open_page(width: str = "desk", scheme: str = "light", path: str = "/") -> Watched:
        watched = Watched(browser, server, width, scheme)
        opened.append(watched)
        watched.tab.goto(server + path)
        watched.tab.wait_for_selector("#caption")
        return watched

    yield open_page
    for watched in opened:
        watched.context.close()
        assert watched.foreign == []
        assert watched.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_serious_on_the_empty_page_the_hits_and_a_picture(open_page, width: str, scheme: str, tmp_path: Path):
    page = open_page(width, scheme)
    artefacts = Path(os.environ.get("DENSECAP_ARTEFACTS") or tmp_path)

    def serious(name: str) -> list[str]:
        page.tab.screenshot(path=artefacts / f"page-{name}-{width}-{scheme}.png")
        found = Axe().run(page.tab).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found if one["impact"] in ("serious", "critical")]

    assert serious("empty") == []
    page.search(CAPTION)
    page.tab.wait_for_timeout(500)
    assert serious("hits") == []
    page.tab.click("#grid .open >> nth=1")
    page.tab.wait_for_selector("#lightbox .neighbours img")
    page.tab.wait_for_selector("#lightbox .sentences button")
    page.tab.wait_for_timeout(500)
    assert serious("picture") == []
    assert page.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert page.tab.locator("h1").count() == 1
    assert "common.complete" not in page.tab.inner_text("body")


@pytest.mark.parametrize("width", WIDTHS)
def test_which_picture_was_meant_is_told_by_keyboard_kept_and_taken_back(open_page, archive: Path, width: str):
    page, kept = open_page(width), archive / "index.feedback.jsonl"
    kept.unlink(missing_ok=True)

    def answers() -> list[tuple[str, str | None]]:
        lines = [json.loads(line) for line in kept.read_text().splitlines()]
        return [(line["answer"], line.get("image") and Path(line["image"]).name) for line in lines]

    assert not page.tab.locator(".none button").is_visible()
    page.search(CAPTION)
    second = page.names()[1]
    page.tab.locator(".card .meant").nth(1).press("Enter")
    page.until("document.querySelector('#message').textContent === 'Kept in index.feedback.jsonl, beside the index.'")
    page.tab.click("#grid .open >> nth=1")
    assert page.tab.locator("#lightbox .meant").get_attribute("aria-pressed") == "true"
    page.tab.click("#lightbox .meant")
    page.until("document.querySelector('.card:nth-child(2) .meant').ariaPressed === 'false'")
    page.tab.press("#lightbox", "Escape")
    page.all_cards(26)
    page.tab.get_by_role("button", name="None of these").click()
    page.until("document.querySelector('.none button').ariaPressed === 'true'")
    assert answers() == [("this", second), ("undo", second), ("none", None)]
    page.search("something else")
    assert page.tab.locator("[aria-pressed=true]").count() == 0
    assert page.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


@pytest.mark.parametrize("width", WIDTHS)
def test_a_caption_is_corrected_where_it_is_read(open_page, archive: Path, width: str):
    page = open_page(width)
    page.search(CAPTION)
    page.tab.click("#grid .open >> nth=2")
    page.tab.get_by_role("button", name=re.compile("Correct the caption|Write a caption")).click()
    page.tab.get_by_label("Caption 1").fill(f"Corrected at {width}")
    page.tab.get_by_role("button", name="Save", exact=True).click()
    page.until(f"document.querySelector('#lightbox .whole')?.textContent === 'Corrected at {width}'")
    page.tab.reload()
    page.hits()
    assert page.tab.locator(".card >> nth=2").locator(".line").inner_text() == f"Corrected at {width}"
    (archive / "index.corrections.jsonl").unlink()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_two_indexes_stand_side_by_side_and_say_how_each_hit_has_moved(
        browser: Browser, tiny_run: Path, tmp_path: Path, width: str, scheme: str):
    photos = make_photos(tmp_path / "photos")
    make(tmp_path, tiny_run)
    less = read_collection(photos, Reading(exclude=("red-left-ball.png",)))
    update_index(less, load_run(tiny_run), ModelConfig(str(tiny_run)), tmp_path / "less")
    artefacts = Path(os.environ.get("DENSECAP_ARTEFACTS") or tmp_path)
    with serving(tmp_path / "index", "--beside", tmp_path / "less") as url:
        page = Watched(browser, url, width, scheme)
        page.tab.goto(url)
        page.tab.wait_for_selector("#caption")
        page.tab.check("#compares")
        page.search(CAPTION)
        page.until("document.querySelectorAll('#grid-beside .card').length === 23")
        names = [page.tab.eval_on_selector_all(f"{grid} .name", "all => all.map(one => one.textContent)")
                 for grid in ("#grid", "#grid-beside")]
        gone = names[0].index("red-left-ball.png")
        assert names[1] == [name for name in names[0] if name != "red-left-ball.png"]
        moved = page.tab.locator("#grid-beside .moved").all_inner_texts()
        assert moved == ["the same rank"] * gone + ["▲ 1 rank higher"] * (23 - gone)
        page.tab.locator("#grid-beside .card").first.scroll_into_view_if_needed()
        page.until("[...document.querySelectorAll('#grid-beside img')].some(one => one.naturalWidth > 0)")
        page.tab.screenshot(path=artefacts / f"beside-{width}-{scheme}.png")
        found = Axe().run(page.tab)
        assert [one["id"] for one in found.response["violations"] if one["impact"] in ("serious", "critical")] == []
        assert page.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        page.tab.uncheck("#compares")
        page.until("document.querySelector('#beside').hidden")
        assert page.complaints == []
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_captions_that_may_not_fit_are_shown_corrected_and_found_right(
        browser: Browser, tiny_run: Path, tmp_path: Path, width: str, scheme: str):
    make_photos(tmp_path / "photos")
    make(tmp_path, tiny_run)
    artefacts = Path(os.environ.get("DENSECAP_ARTEFACTS") or tmp_path)
    corrections = tmp_path / "index.corrections.jsonl"
    with serving(tmp_path / "index") as url:
        page = Watched(browser, url, width, scheme)
        page.tab.goto(url)
        page.tab.wait_for_selector("#caption")
        page.tab.click("#review summary")
        page.tab.get_by_role("button", name="Look for them").press("Enter")
        page.until("document.querySelectorAll('.card .right').length === 24", seconds=100)
        said = "24 pictures with captions were looked at. The model does not know them well enough to tell"
        assert said in page.tab.inner_text("#message")
        page.tab.locator(".card .right").first.press("Enter")
        page.until("document.querySelector('#message').textContent.startsWith('Kept in index.corrections.jsonl')")
        assert page.tab.locator(".card .right").first.get_attribute("aria-pressed") == "true"
        kept = json.loads(corrections.read_text())
        assert kept["before"] == kept["after"] != ""
        page.tab.screenshot(path=artefacts / f"review-{width}-{scheme}.png")
        found = Axe().run(page.tab)
        assert [one["id"] for one in found.response["violations"] if one["impact"] in ("serious", "critical")] == []
        assert page.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        page.tab.locator(".card .open").nth(1).click()
        page.tab.get_by_role("button", name="Correct the caption").click()
        page.tab.locator("dialog textarea").fill("What is really to be seen.")
        page.tab.get_by_role("button", name="Save", exact=True).click()
        page.until("document.querySelector('dialog .caption, dialog .corrections').textContent.includes('What is really')")
        assert json.loads(corrections.read_text().splitlines()[1])["after"] == "What is really to be seen."
        assert page.complaints == []
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_learns_from_its_answers_and_uses_the_new_model_only_when_asked(
        browser: Browser, tiny_run: Path, tmp_path: Path, width: str, scheme: str):
    make_photos(tmp_path / "photos")
    make(tmp_path, tiny_run)
    artefacts = Path(os.environ.get("DENSECAP_ARTEFACTS") or tmp_path)
    with serving(tmp_path / "index") as url:
        page = Watched(browser, url, width, scheme)
        page.tab.goto(url)
        page.tab.wait_for_selector("#caption")
        page.tab.click("#learn summary")
        page.until("document.querySelector('#learn p').textContent.startsWith('0 questions to learn from, 0 held out')")
        assert page.tab.get_by_role("button", name="Learn from the answers").is_disabled()
        page.search(CAPTION)
        page.all_cards(24)
        for name, picture in page.tab.eval_on_selector_all(".card .meant", "all => all.map((one, n) => [`no. ${n}`, one.dataset.id])"):
            body = {"caption": name, "answer": "this", "picture": picture}
            assert page.tab.request.post(f"{url}/api/feedback", data=body).ok
        page.tab.locator(".card .meant").first.press("Enter")
        page.until("document.querySelector('#learn p').textContent.match(/[1-9].* learn from, [1-9].* held out/)")
        page.until("!document.querySelector('#learn .buttons button').disabled")
        page.tab.get_by_role("button", name="Learn from the answers").press("Enter")
        page.until("document.activeElement.textContent === 'Stop'")
        page.until("document.activeElement.textContent === 'Use it'", seconds=300)
        page.tab.locator("#learn").screenshot(path=artefacts / f"learn-{width}-{scheme}.png")
        figures = page.tab.locator("#learn tbody tr").all_inner_texts()
        assert [line.split()[0] for line in figures] == ["R@1", "R@10", "MRR"]
        found = Axe().run(page.tab)
        assert [one["id"] for one in found.response["violations"] if one["impact"] in ("serious", "critical")] == []
        assert page.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        assert (tmp_path / "index" / "CURRENT").read_text().strip() == "gen-000001"
        page.tab.get_by_role("button", name="Use it").press("Enter")
        page.until("document.querySelector('#learn [role=status]').textContent.startsWith('The index is searched by the new')",
                   200)
        assert (tmp_path / "index" / "CURRENT").read_text().strip() == "gen-000002"
        page.search("Something else")
        assert page.complaints == []
        page.context.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_mode_required_words_and_filter_are_asked_by_keyboard_and_kept_in_the_address(open_page, width: str, tmp_path: Path):
    page = open_page(width)
    if width == "phone":
        page.tab.press("#conditions summary", "Enter")
    page.tab.get_by_label("Compare with").select_option("the pictures")
    page.tab.get_by_label("Must contain").fill("red; left")
    page.tab.get_by_label("Filter").fill("split is missing")
    page.search(CAPTION)
    names = page.names()
    assert names
    assert all({"red", "left"} <= set(re.split(r"\W", name)) for name in names)
    page.tab.screenshot(path=Path(os.environ.get("DENSECAP_ARTEFACTS") or tmp_path) / f"page-conditions-{width}.png")
    assert page.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    page.tab.reload()
    page.tab.wait_for_selector("#caption")
    page.hits()
    assert page.names() == names
    fields = {name: page.tab.input_value(f"#{name}") for name in ("caption", "mode", "must", "where")}
    assert fields == {"caption": CAPTION, "mode": "image", "must": "red; left", "where": "split is missing"}
    page.tab.fill("#where", "colour = 'red'")
    page.tab.press("#where", "Enter")
    page.until("document.querySelector('#message').textContent.startsWith(\"the filter names 'colour', which is no column\")")
    assert page.names() == []
    assert all("422" in told for told in page.complaints)  # which browsers log of every refusal
    page.complaints.clear()


@pytest.mark.parametrize("width", WIDTHS)
def test_further_terms_least_score_and_pictures_to_be_like_are_asked_kept_and_taken_back(open_page, width: str, tmp_path: Path):
    page = open_page(width)
    page.tab.press("#more-conditions summary", "Enter")
    page.tab.get_by_label("Without").fill("a ball; snow")
    page.tab.get_by_role("spinbutton", name="Weight").fill("0.5")
    page.tab.get_by_label("Also", exact=True).fill("a green box")
    page.tab.click("#one-more")
    page.tab.get_by_label("Least score").fill("-0.9")
    page.tab.get_by_label("Put what is nearly the same into one stack").uncheck()
    page.search(CAPTION)
    page.tab.click("#grid .open >> nth=1")
    page.tab.click("#lightbox >> text=More like this")
    page.hits()
    page.tab.click("#grid .open >> nth=3")
    with page.tab.expect_request("**/api/search") as asked:
        page.tab.click("#lightbox >> text=Less like this")
    page.hits()
    sent = asked.value.post_data_json
    assert (sent["without"], sent["also"], sent["min_score"], sent["stacks"]) == (["a ball", "snow"], [[0.5, "a green box"]], -0.9, False)
    assert (len(sent["like"]), len(sent["unlike"])) == (1, 1)
    names = page.names()
    assert page.tab.locator("#likes li").all_inner_texts() == ["like this\n✕", "not like this\n✕"]
    page.tab.evaluate("window.scrollTo(0, 0)")
    page.tab.screenshot(path=Path(os.environ.get("DENSECAP_ARTEFACTS") or tmp_path) / f"page-more-conditions-{width}.png")
    assert page.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert [one["id"] for one in Axe().run(page.tab).response["violations"] if one["impact"] in ("serious", "critical")] == []
    page.tab.reload()
    page.tab.wait_for_selector("#caption")
    page.hits()
    assert page.names() == names
    assert page.tab.get_by_label("Also", exact=True).input_value() == "a green box"
    assert not page.tab.get_by_label("Put what is nearly the same into one stack").is_checked()
    with page.tab.expect_request("**/api/search") as asked:
        page.tab.click("#likes button >> nth=0")
    assert (asked.value.post_data_json["like"], len(asked.value.post_data_json["unlike"])) == ([], 1)


def test_a_caption_that_says_without_is_told_of_the_field(open_page):
    page = open_page()
    page.search("a street without cars")
    assert "“without cars” in a caption does not keep it out of the hits; the field Without does." in page.tab.inner_text("#message")


@pytest.fixture
def of_copies(browser: Browser, archive: Path, tiny_run: Path, tmp_path: Path) -> Iterator[Watched]:
    """An index where each of four pictures has two copies."""
    for name in ("red-left-ball", "green-left-ball", "blue-right-box", "yellow-middle-box"):
        for number in range(3):
            shutil.copy(archive / "photos" / f"{name}.png", tmp_path / f"{name}-{number}.png")
    update_index(read_collection(tmp_path), load_run(tiny_run), ModelConfig(str(tiny_run)), tmp_path / "index")
    with serving(tmp_path / "index") as url:
        watched = Watched(browser, url)
        watched.tab.goto(url)
        watched.tab.wait_for_selector("#caption")
        yield watched
        watched.context.close()
        assert watched.foreign == watched.complaints == []


def test_what_is_nearly_the_same_lies_in_a_stack_that_unfolds(of_copies: Watched, tmp_path: Path):
    page = of_copies
    page.search(CAPTION)
    assert page.tab.locator(".card").count() == 4
    assert page.tab.locator(".stack").all_inner_texts() == ["+2"] * 4
    assert page.tab.inner_text("#message") == "1 to 4 of 12 pictures, best first; 8 more that are nearly the same lie under them."
    tops = page.names()
    page.tab.locator(".stack").nth(1).click()
    assert page.tab.locator(".card").count() == 6
    assert page.tab.locator(".stack").nth(1).get_attribute("aria-expanded") == "true"
    names = page.names()
    assert (names[:2], names[4:]) == (tops[:2], tops[2:])
    assert len({name.rpartition("-")[0] for name in names[1:4]}) == 1
    page.tab.screenshot(path=Path(os.environ.get("DENSECAP_ARTEFACTS") or tmp_path) / "page-stacks-desk.png")
    page.tab.locator("#grid .open").nth(3).click()
    assert page.tab.inner_text("#lightbox .path").endswith(names[3])
    page.tab.keyboard.press("ArrowRight")
    assert page.tab.inner_text("#lightbox .path").endswith(tops[2])
    page.tab.keyboard.press("Escape")
    page.tab.locator(".stack").nth(1).click()
    assert page.names() == tops
    page.tab.press("#more-conditions summary", "Enter")
    page.tab.get_by_label("Put what is nearly the same into one stack").uncheck()
    page.until("document.querySelectorAll('.card').length === 12")
    assert page.tab.locator(".stack").count() == 0


def test_on_a_phone_two_columns_stand_side_by_side_within_the_screen(open_page):
    page = open_page("phone")
    page.search(CAPTION)
    boxes = [page.tab.locator("#grid .card").nth(number).bounding_box() for number in range(3)]
    assert boxes[0]["y"] == boxes[1]["y"] < boxes[2]["y"]
    assert boxes[0]["x"] >= 0
    assert boxes[1]["x"] + boxes[1]["width"] <= 375
    assert min(box["width"] for box in boxes) > 140


def test_the_grid_asks_for_small_copies_and_originals_only_where_one_is_looked_at(open_page):
    page = open_page()
    asked: list[str] = []
    page.tab.on("request", lambda request: asked.append(request.url.rpartition("/")[2]) if "/pictures/" in request.url else None)
    page.search(CAPTION)
    page.all_cards(26)
    page.tab.wait_for_timeout(500)
    assert set(asked) == {"small"}
    page.tab.click("#grid .open >> nth=0")
    page.until("document.querySelector('#lightbox .large img').complete")
    assert "original" not in asked


def test_a_hit_tells_rank_score_name_and_first_line(open_page):
    page = open_page()
    page.search(CAPTION)
    card = page.tab.locator("#grid .card").first
    assert re.fullmatch(r"1 · score -?\d\.\d{3}( · \w+)?", card.locator(".facts").inner_text())
    card = page.tab.locator("#grid .card", has_text="red-left-ball")
    name = card.locator(".name").inner_text()
    colour, place, shape = name.removesuffix(".png").split("-")
    assert card.locator(".line").inner_text() == f"A {colour} {shape} lies on the {place} of a white table, and nothing else can be seen."


@pytest.mark.parametrize("width", WIDTHS)
def test_details_open_where_one_looks_and_arrows_and_escape_work(open_page, width: str):
    page = open_page(width)
    page.search(CAPTION)
    names = page.names()
    page.tab.locator("#grid .open").nth(20).click()
    dialog = page.tab.locator("#lightbox")
    page.until("document.querySelector('#lightbox').getAnimations().length === 0")  # a sheet rises
    box = dialog.bounding_box()
    across, down = WIDTHS[width]
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= down + 1
    if width == "phone":
        assert (box["x"], box["width"]) == (0, across)
    assert page.tab.inner_text("#lightbox .path").endswith(names[20])
    page.tab.keyboard.press("ArrowRight")
    assert page.tab.inner_text("#lightbox .path").endswith(names[21])
    page.tab.keyboard.press("ArrowLeft")
    page.tab.keyboard.press("ArrowLeft")
    assert page.tab.inner_text("#lightbox .path").endswith(names[19])
    page.tab.keyboard.press("Escape")
    assert not dialog.is_visible()
    # the browser tells the page of the closing a moment later, and only then does the focus move
    page.until(f"document.activeElement.querySelector('.name')?.textContent === {json.dumps(names[19])}")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_picture_says_why_it_was_found_and_its_sentences_can_be_left_out_or_counted_twice(open_page, width: str, tmp_path: Path):
    page = open_page(width)
    page.search("A red ball lies there. It stands on the left. Snow falls.")
    before = page.names()
    page.tab.locator("#grid .open", has_text="green-middle-box").click()
    page.tab.wait_for_selector("#lightbox .sentences [data-count] >> nth=2")
    lines = page.tab.locator("#lightbox .sentences [data-count]")
    assert [re.sub(r"\s*\d+ %$", "", line) for line in lines.all_inner_texts()] == ["A red ball lies there.", "It stands on the left.", "Snow falls."]
    assert all(0 <= int(re.search(r"(\d+) %$", line)[1]) <= 100 for line in lines.all_inner_texts())
    assert page.tab.locator("#lightbox .whole mark").all_inner_texts() == ["A", "lies", "on", "the", "a"]
    again = page.tab.locator("#lightbox .again")
    assert not again.is_visible()
    where = page.tab.locator("#lightbox .where")
    where.nth(1).click()
    page.until("document.querySelector('#lightbox .large canvas')?.width === document.querySelector('#lightbox .large img').naturalWidth")
    assert [button.get_attribute("aria-pressed") for button in where.all()] == ["false", "true", "false"]
    page.tab.screenshot(path=Path(os.environ.get("DENSECAP_ARTEFACTS") or tmp_path) / f"page-where-{width}.png")
    where.nth(1).click()
    assert page.tab.locator("#lightbox .large canvas").count() == 0
    assert page.tab.locator("#lightbox .large img").is_visible()
    lines.nth(0).click()
    lines.nth(2).press("Enter")
    lines.nth(2).press("Enter")
    assert [line.get_attribute("data-count") for line in lines.all()] == ["×2", "", "off"]
    page.tab.wait_for_timeout(300)
    page.tab.screenshot(path=Path(os.environ.get("DENSECAP_ARTEFACTS") or tmp_path) / f"page-why-{width}.png")
    assert page.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    with page.tab.expect_request("**/api/search") as asked:
        again.click()
    assert asked.value.post_data_json["sentences"] == [2, 1, 0]
    page.hits()
    after = page.names()
    assert after != before
    page.tab.reload()
    page.hits()
    assert (page.names(), page.tab.inner_text("#counted").split(".")[0]) == (after, "2 sentences count otherwise")
    page.tab.click("#counted button")
    page.until(f"[...document.querySelectorAll('#grid .name')].slice(0, 20).map(one => one.textContent).join() === {json.dumps(','.join(before[:20]))}")
    assert not page.tab.locator("#counted").is_visible()


def test_arrows_go_on_beyond_the_hits_that_were_loaded(open_page):
    page = open_page()
    page.search(CAPTION)
    page.tab.locator("#grid .open").nth(23).click()
    page.tab.keyboard.press("ArrowRight")
    page.until("document.querySelector('#lightbox h2').textContent.startsWith('25 ·')")


def test_a_picture_can_be_zoomed_its_path_copied_and_its_neighbours_seen(open_page, archive: Path):
    page = open_page()
    page.search(CAPTION)
    page.tab.locator("#grid .open").first.click()
    page.tab.click("#lightbox .copy")
    page.until("document.querySelector('#lightbox .copy').textContent === 'Copied'")
    assert page.tab.evaluate("navigator.clipboard.readText()") == page.tab.inner_text("#lightbox .path")
    page.tab.click("#lightbox .zoom")
    page.until("document.querySelector('#lightbox .large img').src.endsWith('/original')")
    page.tab.wait_for_selector("#lightbox .neighbours button >> nth=7")
    assert page.tab.locator("#lightbox .neighbours button").count() == 8


def test_an_original_that_browsers_cannot_show_is_shown_all_the_same(open_page):
    page = open_page()
    page.search(CAPTION)
    page.all_cards(26)
    page.tab.locator("#grid .open", has_text="purple.tiff").click()
    page.tab.click("#lightbox .zoom")
    page.until("document.querySelector('#lightbox .large img')?.naturalWidth === 900")


@pytest.mark.parametrize("key", ["Control+Enter", "Shift+Enter"])
def test_keys_search_and_the_page_says_so_while_enter_alone_is_a_new_line(open_page, key: str):
    page = open_page()
    assert "Ctrl+Enter or Shift+Enter searches" in page.tab.inner_text("#keys")
    page.tab.fill("#caption", CAPTION)
    page.tab.press("#caption", "Enter")
    assert page.tab.input_value("#caption") == CAPTION + "\n"
    assert page.tab.locator(".card").count() == 0
    page.tab.press("#caption", key)
    page.hits()
    assert page.tab.locator(".card").count() >= 24


def test_reload_back_and_a_shared_link_keep_a_query_however_long(open_page):
    page = open_page()
    long = ("Zwei rote Bälle & ein #blauer + grüner Würfel = 50 %, 東京; " * 60).strip()
    page.search(CAPTION)
    before = page.names()
    page.search(long)
    after = page.names()
    page.tab.reload()
    page.hits()
    assert (page.tab.input_value("#caption"), page.names()) == (long, after)
    page.tab.go_back()
    page.until(f"document.querySelector('#caption').value === {CAPTION!r}")
    page.hits()
    assert page.names() == before
    shared = open_page(path="/" + page.tab.url.partition("/#")[2].join(["#", ""]))
    shared.hits()
    assert (shared.tab.input_value("#caption"), shared.names()) == (CAPTION, before)


def test_no_old_picture_stays_beside_new_words(open_page):
    page = open_page()
    page.search(CAPTION)
    page.tab.click("#grid .open >> nth=0")
    page.tab.keyboard.press("Escape")
    page.tab.route("**/api/search", lambda route: None)  # an answer that never comes
    page.tab.fill("#caption", "something else")
    page.tab.press("#caption", "Control+Enter")
    assert page.tab.locator(".card").count() == 0
    assert not page.tab.locator("#lightbox").is_visible()
    assert page.tab.inner_text("#message") == "Searching…"
    page.tab.unroute("**/api/search")
    page.search("a blue box")  # the answer that is late, or never comes, does not get in its way
    assert page.tab.locator(".card").count() >= 24


def test_names_and_captions_are_plain_text_and_long_names_are_cut(open_page):
    page = open_page("phone")
    page.search(CAPTION)
    page.all_cards(26)
    card = page.tab.locator(".card", has_text="a very long name")
    assert card.locator(".line").inner_text() == HOSTILE
    assert card.locator(".name").bounding_box()["height"] < 30
    card.locator(".open").click()
    assert page.tab.inner_text("#lightbox .whole") == HOSTILE
    page.tab.wait_for_selector("#lightbox .sentences button")
    assert page.tab.inner_text("#lightbox .whole") == HOSTILE
    assert page.tab.locator("#lightbox .whole *:not(mark)").count() == 0
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 375


def test_the_count_shows_where_the_window_ends(open_page):
    page = open_page()
    page.tab.fill("#caption", "a red ball")
    page.until("document.querySelector('#count').textContent === '3 words · 5 of 248 tokens'")
    page.tab.fill("#caption", "word " * 246 + "beyond it")
    page.tab.wait_for_selector(".mirror mark", state="attached")
    assert page.tab.inner_text("#count").startswith("248 words · 250 tokens; the model reads the first 248, up to “…")
    assert page.tab.text_content(".mirror mark") == "beyond it"


def test_a_pasted_text_is_shown_from_its_beginning_and_the_box_stays_in_view(open_page):
    page = open_page("phone")
    page.tab.evaluate("text => navigator.clipboard.writeText(text)", "first line\n" * 200)
    page.tab.focus("#caption")
    page.tab.keyboard.press("Control+V")
    page.until("document.querySelector('#caption').value.length > 2000")
    page.tab.wait_for_timeout(100)
    assert page.tab.evaluate("document.querySelector('#caption').scrollTop") == 0
    page.search(CAPTION)
    page.tab.evaluate("window.scrollTo(0, 800)")
    page.tab.wait_for_timeout(200)
    box = page.tab.locator("#caption").bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] < 667 / 2


def test_the_empty_page_offers_captions_from_the_archive_and_says_what_is_searched(open_page, archive: Path):
    page = open_page()
    assert page.tab.inner_text("h1") == "Search 26 pictures by describing them"
    assert page.tab.inner_text("#about").startswith("index · ")
    example = page.tab.locator("#welcome button").first
    caption = example.inner_text()
    example.click()
    page.hits()
    assert page.tab.input_value("#caption") == caption
    assert not page.tab.locator("#welcome").is_visible()


def test_hits_go_on_by_scrolling_to_the_last_and_no_picture_comes_twice(open_page):
    page = open_page()
    page.search(CAPTION)
    page.all_cards(26)
    ranks = page.tab.eval_on_selector_all('#grid .facts', "all => all.map(one => one.textContent.split(' ')[0])")
    assert ranks == [str(rank) for rank in range(1, 27)]
    assert len(set(page.names())) == 26
    page.until("document.querySelector('#message').textContent === '1 to 26 of 26 pictures, best first.'")
    assert not page.tab.locator("#grid + .more").is_visible()


def test_a_basket_outlives_a_reload_and_is_saved(open_page):
    page = open_page()
    page.search(CAPTION)
    names = page.names()
    page.tab.click(".keep >> nth=0")
    page.tab.click(".keep >> nth=2")
    page.tab.reload()
    page.hits()
    assert page.tab.inner_text("#basket .count") == "2 in the basket; save as"
    with page.tab.expect_download() as started:
        page.tab.click("#basket button >> text=CSV")
    lines = started.value.path().read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    assert names[0] in lines[1]
    assert names[2] in lines[2]
    page.tab.click("#basket button >> text=Empty it")
    assert not page.tab.locator("#basket").is_visible()


def test_a_contact_sheet_needs_nothing_else_and_prints_twelve_pictures_a_page(open_page, browser: Browser, tmp_path: Path):
    page = open_page()
    page.search(CAPTION)
    page.hits()
    for place in range(13):
        page.tab.click(f".keep >> nth={place}")
    with page.tab.expect_download() as started:
        page.tab.click("#basket button >> text=Contact sheet")
    started.value.save_as(tmp_path / "sheet.html")
    page.tab.click("#basket button >> text=Empty it")
    sheet = Watched(browser, (tmp_path / "sheet.html").as_uri())
    sheet.tab.goto((tmp_path / "sheet.html").as_uri())
    assert sheet.tab.eval_on_selector_all("img", "all => all.filter(one => one.naturalWidth > 0).length") == 13
    printed = sheet.tab.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) == 2
    assert [one for one in sheet.foreign if not one.startswith("file:")] == []


def test_a_picture_that_is_dropped_or_chosen_is_searched_by(open_page, archive: Path):
    page = open_page()
    page.tab.set_input_files("#file", archive / "photos" / "green-right-box.png")
    page.hits()
    assert page.names()[0] == "green-right-box.png"
    page.tab.fill("#caption", CAPTION)  # now both are asked for
    with page.tab.expect_request("**/api/search") as asked:
        page.tab.press("#caption", "Control+Enter")
    page.hits()
    assert (asked.value.post_data_json["caption"], len(asked.value.post_data_json["picture"]) > 100) == (CAPTION, True)
    with page.tab.expect_request("**/api/search") as asked:
        page.tab.click("#likes button")
    assert "picture" not in asked.value.post_data_json


def test_earlier_searches_can_be_chosen_and_forgotten(open_page):
    page = open_page()
    page.search("a green box")
    page.search(CAPTION)
    page.tab.click("#past summary")
    page.tab.click("#past li button >> text=a green box")
    page.hits()
    assert page.tab.input_value("#caption") == "a green box"
    page.tab.click("#past >> text=Forget them")
    assert not page.tab.locator("#past").is_visible()


def test_the_empty_page_is_at_most_60_kb_heavier_than_an_empty_page_of_gradio(browser: Browser, server: str, tmp_path: Path):
    script = tmp_path / "empty.py"
    script.write_text("import socket, sys, gradio as gr\nwith gr.Blocks(analytics_enabled=False) as page: pass\n"
                      "s = socket.socket(); s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]; s.close()\n"
                      "_, url, _ = page.launch(server_port=port, quiet=True, prevent_thread_lock=True, ssr_mode=False,"
                      " footer_links=[], theme=gr.themes.Default(font=('system-ui',), font_mono=('monospace',)))\n"
                      "print(url, flush=True); sys.stdin.read()\n")
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        empty = weigh(browser, process.stdout.readline().strip())
        process.stdin.close()
    own = weigh(browser, server)
    assert 100_000 < empty < own <= empty + 60_000


def weigh(browser: Browser, url: str) -> int:
    """Bytes that come over the wire until nothing more is asked for."""
    context = browser.new_context()
    tab = context.new_page()
    network = context.new_cdp_session(tab)
    network.send("Network.enable")
    sizes: list[int] = []
    network.on("Network.loadingFinished", lambda event: sizes.append(int(event["encodedDataLength"])))
    tab.goto(url)
    tab.wait_for_timeout(4000)
    context.close()
    return sum(sizes)


def test_a_new_generation_is_taken_up_and_missing_files_are_counted_in_words(open_page, archive: Path, tiny_run: Path):
    """The last of these tests, for it changes the archive."""
    page = open_page()
    page.search("a yellow box")
    (archive / "photos" / "red-left-ball.png").unlink()
    make(archive, tiny_run)
    page.tab.evaluate("fetch('/api/health')")
    page.until("document.querySelector('#news').textContent.includes('25 pictures')", seconds=40)
    page.tab.click("#news button")
    page.hits()
    assert page.tab.inner_text("h1") == "Search 25 pictures by describing them"
    for name in ("red-left-box.png", "red-right-box.png"):
        (archive / "photos" / name).rename(archive / name)
    page.search("a red box on the left")
    page.all_cards(25)
    page.tab.reload()
    page.hits()
    assert re.search(r"(One of them is|2 of them are) no longer where", page.tab.inner_text("#message"))
    page.complaints.clear()  # the browser tells of copies that cannot be made
