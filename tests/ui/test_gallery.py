from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from helpers import make_tiny, write_dng
from PIL import Image

from densecap_search.collection import image_types
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Skipped
from densecap_search.config import ModelConfig
from densecap_search.retrieval.index import ImageIndex
from densecap_search.retrieval.rows import Row
from densecap_search.retrieval.update import update_index
from densecap_search.ui.gallery import SIDES, Gallery, is_missing

SMALL, LARGE = SIDES["small"], SIDES["large"]


def make_index(folder: Path, index: Path) -> ImageIndex:
    return update_index(read_collection(folder), make_tiny(), ModelConfig("tiny"), index).index


@pytest.fixture
def index(tmp_path: Path) -> ImageIndex:
    folder = tmp_path / "a b" / "фото"
    folder.mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (3000, 1500), (80 * number, 0, 0)).save(folder / f"{number}.jpg", quality=95)
    return make_index(folder, tmp_path / "index")


def made(gallery: Gallery, entry: Row, size: str) -> Path:
    path = gallery.copy(entry, size)
    assert isinstance(path, Path), path
    return path


def test_small_copies_lie_in_the_index_folder_and_show_the_picture(index: ImageIndex):
    for entry in index.rows:
        path = made(Gallery.of(index), entry, "small")
        assert path.parent == index.folder.resolve() / "thumbnails"
        assert path.stat().st_size < Path(entry.image).stat().st_size / 5
        with Image.open(path) as image:
            assert image.size == (SMALL, SMALL // 2)
            assert np.abs(np.asarray(image).mean((0, 1)) - (80 * int(entry.image_id[0]), 0, 0)).max() < 4


def test_a_copy_is_made_once_and_large_ones_are_bounded(index: ImageIndex):
    gallery, entry = Gallery.of(index), index.rows[0]
    first = made(gallery, entry, "large")
    when = first.stat().st_mtime_ns
    Path(entry.image).unlink()
    assert made(gallery, entry, "large").stat().st_mtime_ns == when
    with Image.open(first) as image:
        assert max(image.size) == LARGE


def test_a_picture_that_is_gone_or_was_replaced_is_not_shown_as_the_one_that_was_indexed(index: ImageIndex):
    gallery, (gone, replaced, _) = Gallery.of(index), index.rows
    Path(gone.image).unlink()
    Image.new("RGB", (10, 10), "blue").save(replaced.image)
    for read in (lambda entry: gallery.copy(entry, "small"), gallery.original):
        assert read(gone) == Skipped(gone.image_id, "the file is no longer where it was indexed")
        assert read(replaced) == Skipped(replaced.image_id, "the file has changed since it was indexed")
    assert not list(gallery.folder.iterdir())
    assert [is_missing(entry.image) for entry in index.rows] == [True, False, False]


def test_a_pipe_is_no_picture_and_is_not_waited_for(index: ImageIndex):
    entry = index.rows[0]
    Path(entry.image).unlink()
    os.mkfifo(entry.image)
    assert isinstance(Gallery.of(index).original(entry), Skipped)


def test_originals_are_given_as_they_are_where_browsers_can_show_them(index: ImageIndex):
    entry = index.rows[0]
    assert Gallery.of(index).original(entry) == (Path(entry.image), "image/jpeg")


@pytest.mark.parametrize("suffix", ["heic", "jxl", "avif", "tiff", "dng"])
def test_pictures_that_browsers_cannot_show_are_converted(tmp_path: Path, suffix: str):
    image_types.register_plugins()
    folder = tmp_path / "photos"
    folder.mkdir()
    if suffix == "dng":
        write_dng(folder / "x.dng", 800, 400)
    else:
        Image.new("RGB", (800, 400), "red").save(folder / f"x.{suffix}")
    index = make_index(folder, tmp_path / "index")
    gallery, entry = Gallery.of(index), index.rows[0]
    converted = gallery.original(entry)
    assert not isinstance(converted, Skipped)
    for path, width in ((made(gallery, entry, "small"), SMALL), (converted[0], 800)):
        with Image.open(path) as shown:
            assert (shown.format, shown.size) == ("JPEG", (width, width // 2))
            red, green, _ = np.asarray(shown)[:, : width // 4].astype(int).mean((0, 1))
            assert red > 2 * green


def test_a_picture_that_was_indexed_beyond_the_usual_size_is_shown(index: ImageIndex, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("densecap_search.collection.images.MAX_PIXELS", 1000)
    assert made(Gallery.of(index), index.rows[0], "small").exists()


def test_copies_of_what_left_the_index_go_and_then_the_oldest_beyond_a_size(index: ImageIndex):
    gallery = Gallery.of(index)
    paths = [made(gallery, entry, "small") for entry in index.rows]
    for age, path in enumerate(paths):
        os.utime(path, (1000 - age, 1000 - age))
    foreign = gallery.folder / f"{'0' * 32}-384.jpg"
    foreign.write_bytes(b"x")
    (gallery.folder / "note.txt").write_text("not ours")
    assert gallery.tidy(index) == 1
    assert gallery.tidy(index, most_bytes=paths[0].stat().st_size + paths[1].stat().st_size) == 1
    assert sorted(gallery.folder.iterdir()) == sorted([*paths[:2], gallery.folder / "note.txt"])


def test_copies_of_other_indexes_in_the_cache_are_kept(index: ImageIndex, tmp_path: Path):
    shared = Gallery(tmp_path, own=False)
    (tmp_path / f"{'0' * 32}-384.jpg").write_bytes(b"x")
    assert shared.tidy(index) == 0
