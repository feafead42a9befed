"""Files that are replaced while they are read, and several names of one file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import draw_photo, make_tiny

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Skipped
from densecap_search.config import ModelConfig
from densecap_search.embedding import towers
from densecap_search.embedding.content import read_contents
from densecap_search.inspection import pictures
from densecap_search.inspection.pictures import look_at_pictures
from densecap_search.retrieval.update import update_index
from densecap_search.ui import gallery
from densecap_search.ui.gallery import Gallery

LONG_AGO = (1_500_000_000, 1_500_000_000)


@pytest.fixture(params=["old", "fresh"])
def two(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """A folder with one picture, last changed long ago or just now, and another picture elsewhere."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "other").mkdir()
    place, other = tmp_path / "photos" / "a.png", tmp_path / "other" / "b.png"
    draw_photo(place, "red", "left", "ball")
    draw_photo(other, "blue", "right", "box")
    if request.param == "old":
        os.utime(place, LONG_AGO)
    return place, other


def replace_before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, place: Path, other: Path) -> None:
    """The picture is replaced just before a function that opens it; of the same length and time where it was fresh."""
    original: Callable[..., Any] = getattr(module, name)

    def hooked(*words: Any, **more: Any) -> Any:
        status = place.stat()
        shutil.copyfile(other, place)
        if status.st_mtime > LONG_AGO[0]:
            data = place.read_bytes()
            place.write_bytes(data + b"\0" * (status.st_size - len(data)))
            os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
        return original(*words, **more)

    monkeypatch.setattr(module, name, hooked)


def test_a_picture_that_is_replaced_before_it_is_decoded_gives_its_vector_to_no_hash(
        two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    place, other = two
    shutil.copyfile(place, place.parent.parent / "kept.png")
    (record,), _ = read_contents(read_collection(place.parent).records)
    with monkeypatch.context() as patched:
        replace_before(patched, towers, "read_pixels", place, other)
        made, broken = towers.embed_images(make_tiny(), [record], workers=0)
    assert not made.image_ids
    assert [skip.reason for skip in broken] == ["the file has changed since it was read; run the command again"]
    shutil.copyfile(place.parent.parent / "kept.png", place)
    again, _ = towers.embed_images(make_tiny(), [record], workers=0)
    alone, _ = towers.embed_images(make_tiny(), [record], cached=False, workers=0)
    assert again.encoded == 1, "the cache held a vector of another picture"
    assert np.allclose(again.vectors, alone.vectors, atol=1e-6)


def test_a_picture_that_is_only_touched_is_used(two: tuple[Path, Path]):
    (record,), _ = read_contents(read_collection(two[0].parent).records)
    os.utime(two[0])
    assert len(towers.embed_images(make_tiny(), [record], workers=0)[0].image_ids) == 1


def test_an_outline_is_kept_only_under_the_hash_of_what_was_seen(two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    place, other = two
    records = read_collection(place.parent).records
    with monkeypatch.context() as patched:
        replace_before(patched, pictures, "use_image", place, other)
        found = look_at_pictures(records, workers=0)
    assert [skip.reason for skip in found.broken] == ["the file has changed since it was read; run the command again"]
    assert not found.hashes
    draw_photo(place, "red", "left", "ball")
    expected = look_at_pictures(read_collection(other.parent).records, workers=0).codes["b.png"]
    assert look_at_pictures(records, workers=0).codes["a.png"] != expected


@pytest.mark.parametrize("when", ["before it is asked for", "while it is opened"])
def test_a_small_copy_is_made_only_of_the_picture_that_was_indexed(
        two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str):
    place, other = two
    index = update_index(read_collection(place.parent), make_tiny(), ModelConfig("tiny"), tmp_path / "index").index
    if when == "before it is asked for":
        shutil.copyfile(other, place)
    else:
        replace_before(monkeypatch, gallery, "open_image", place, other)
    found = Gallery.of(index)
    made = found.copy(next(iter(index.rows)), "small")
    assert isinstance(made, Skipped)
    assert made.reason == "the file has changed since it was indexed"
    assert not list(found.folder.glob("*.jpg"))


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """A picture, a hard link and a symbolic one to it, each with a caption, and a copy, which is another file."""
    draw_photo(tmp_path / "a.png", "red", "left", "ball")
    os.link(tmp_path / "a.png", tmp_path / "b.png")
    (tmp_path / "c.png").symlink_to("a.png")
    shutil.copyfile(tmp_path / "a.png", tmp_path / "d.png")
    return tmp_path


def test_links_to_a_picture_in_a_folder_are_that_picture(links: Path):
    for name in "abd":
        (links / f"{name}.txt").write_text(f"caption {name}")
    found = read_collection(links)
    assert [(record.image_id, record.captions) for record in found.records] == [
        ("a.png", ("caption a", "caption b")), ("d.png", ("caption d",))]
    assert "1 row of links to pictures that are there already" in found.notes


def test_links_to_a_picture_in_a_table_are_that_picture(links: Path):
    table = links / "t.jsonl"
    table.write_text("".join(json.dumps({"image": f"{name}.png", "caption": f"caption {name}"}) + "\n" for name in "cabd"))
    found = read_collection(table)
    assert [(record.image_id, record.captions, record.rows) for record in found.records] == [
        ("c.png", ("caption c", "caption a", "caption b"), (1, 2, 3)), ("d.png", ("caption d",), (4,))]
    assert "2 rows of links to pictures that are there already" in found.notes


def test_links_beside_a_table_are_no_further_pictures(links: Path):
    (links / "t.jsonl").write_text(json.dumps({"image": "a.png", "caption": "a red ball"}) + "\n")
    found = read_collection(links)
    assert [record.image_id for record in found.records] == ["a.png", "d.png"]


def test_pictures_without_captions_are_counted_once_for_all_their_links(links: Path):
    assert [record.image_id for record in read_collection(links).records] == ["a.png", "d.png"]


def test_files_that_a_disk_does_not_number_are_told_apart_by_their_paths(links: Path, monkeypatch: pytest.MonkeyPatch):
    original = os.stat

    def without_numbers(*words: Any, **more: Any) -> os.stat_result:
        found = original(*words, **more)
        return os.stat_result((found.st_mode, 0, *found[2:]))

    monkeypatch.setattr("densecap_search.collection.places.os.stat", without_numbers)
    table = links / "t.jsonl"
    table.write_text("".join(json.dumps({"image": f"{name}.png", "caption": name}) + "\n" for name in "ad"))
    assert len(read_collection(table).records) == 2
