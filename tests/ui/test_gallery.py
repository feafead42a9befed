from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import make_tiny, write_dng
from PIL import Image

from densecap_search.collection import image_types
from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.retrieval.searcher import Hit, Searcher
from densecap_search.retrieval.update import update_index
from densecap_search.ui.gallery import LARGE, SMALL, Gallery, details, label


@pytest.fixture
def searcher(tmp_path: Path) -> Searcher:
    folder = tmp_path / "a b" / "фото"
    folder.mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (3000, 1500), (80 * number, 0, 0)).save(folder / f"{number}.jpg", quality=95)
        (folder / f"{number}.txt").write_text(f"caption {number}")
    tiny = make_tiny()
    return Searcher(tiny, update_index(read_collection(folder), tiny, ModelConfig("tiny"), tmp_path / "index").index)


def test_items_are_small_copies_with_score_name_and_caption(searcher: Searcher):
    hits = searcher.by_image(Path(searcher.index.rows[0].image), 3)
    items = Gallery.of(searcher.index).items(hits)
    assert [text for _, text in items] == [f"{hit.score:.3f} · {Path(hit.image).name}\n{hit.caption}" for hit in hits]
    for (path, _), hit in zip(items, hits, strict=True):
        assert Path(path).parent == searcher.index.folder.resolve() / "thumbnails"
        assert Path(path).stat().st_size < Path(hit.image).stat().st_size / 5
        with Image.open(path) as image:
            assert image.size == (SMALL, SMALL // 2)
            assert np.abs(np.asarray(image).mean((0, 1)) - (80 * int(hit.image_id[0]), 0, 0)).max() < 4


def test_a_copy_is_made_once_and_large_ones_are_bounded(searcher: Searcher):
    gallery = Gallery.of(searcher.index)
    hit = searcher.by_image(Path(searcher.index.rows[0].image), 1)[0]
    first = gallery.copy(hit, LARGE)
    made = first.stat().st_mtime_ns
    Path(hit.image).unlink()
    assert gallery.copy(hit, LARGE).stat().st_mtime_ns == made
    with Image.open(first) as image:
        assert max(image.size) == LARGE


def test_a_picture_that_is_gone_is_shown_as_such(searcher: Searcher):
    hit = searcher.by_image(Path(searcher.index.rows[1].image), 1)[0]
    Path(hit.image).unlink()
    path = Gallery.of(searcher.index).copy(hit, SMALL)
    assert path.name.endswith("-missing.jpg")


def test_labels_are_short_and_details_are_whole_and_not_interpreted():
    hit = Hit(3, 0.51234, "x", "/a/b c.jpg", "word " * 100 + "\n<script>alert(1)</script> **bold**")
    assert len(label(hit)) < 200
    assert label(hit).startswith("0.512 · b c.jpg\nword word")
    assert "    <script>alert(1)</script> **bold**" in details(hit)
    assert details(hit).startswith("**3. score 0.5123**")


@pytest.mark.parametrize("suffix", ["heic", "jxl", "avif", "dng"])
def test_pictures_that_browsers_cannot_show_are_converted(tmp_path: Path, suffix: str):
    image_types.register_plugins()
    folder = tmp_path / "photos"
    folder.mkdir()
    if suffix == "dng":
        write_dng(folder / "x.dng", 800, 400)
    else:
        Image.new("RGB", (800, 400), "red").save(folder / f"x.{suffix}")
    tiny = make_tiny()
    searcher = Searcher(tiny, update_index(read_collection(folder), tiny, ModelConfig("tiny"), tmp_path / "index").index)
    ((path, _),) = Gallery.of(searcher.index).items(searcher.by_image(folder / f"x.{suffix}", 1))
    with Image.open(path) as shown:
        assert (shown.format, shown.size) == ("JPEG", (SMALL, SMALL // 2))
        red, green, _ = np.asarray(shown)[:, : SMALL // 4].astype(int).mean((0, 1))
        assert red > 2 * green


def test_a_picture_that_was_indexed_beyond_the_usual_size_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (800, 400), "red").save(folder / "x.png")
    tiny = make_tiny()
    index = update_index(read_collection(folder), tiny, ModelConfig("tiny"), tmp_path / "index").index
    monkeypatch.setattr("densecap_search.collection.images.MAX_PIXELS", 1000)
    ((path, _),) = Gallery.of(index).items([Hit(1, 1.0, "x.png", str(folder / "x.png"), "")])
    assert "missing" not in path
