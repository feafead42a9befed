"""Every file opened once: broken, blank, the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Skipped
from densecap_search.inspection import pictures
from densecap_search.inspection.duplicates import mirror_pictures
from densecap_search.inspection.findings import of_mirrors, of_shapes
from densecap_search.inspection.pictures import look_at_pictures


def test_broken_blank_and_copied_pictures_are_told_apart(photos: Path):
    (photos / "copy.png").write_bytes((photos / "red-left-ball.png").read_bytes())
    (photos / "cut.png").write_bytes((photos / "red-left-box.png").read_bytes()[:90])
    (photos / "empty.jpg").touch()
    (photos / "page.jpg").write_text("<html>")
    Image.new("RGB", (40, 40), "white").save(photos / "white.png")
    found = look_at_pictures(read_collection(photos).records)
    reasons = {skip.path: skip.reason for skip in found.broken}
    assert reasons["empty.jpg"] == "empty file"
    assert reasons["page.jpg"] == "not a picture that Pillow can read"
    assert reasons["cut.png"].startswith("damaged picture")
    assert found.blank == ("white.png",)
    assert found.hashes["copy.png"] == found.hashes["red-left-ball.png"]
    assert found.codes["copy.png"] == found.codes["red-left-ball.png"] != found.codes["red-right-ball.png"]
    assert set(found.hashes) == {record.image_id for record in read_collection(photos).records} - set(reasons)


def test_a_second_look_decodes_only_what_is_new_and_finds_the_same(photos: Path, monkeypatch: pytest.MonkeyPatch):
    first = look_at_pictures(read_collection(photos).records)
    Image.effect_mandelbrot((40, 30), (-2, -1, 1, 1), 50).save(photos / "new.png")
    decoded: list[str] = []
    real = pictures.use_image

    def counted(path: Path, use: Callable[[Image.Image], int | None], **settings: int) -> int | Skipped | None:
        decoded.append(path.name)
        return real(path, use, **settings)

    monkeypatch.setattr(pictures, "use_image", counted)
    second = look_at_pictures(read_collection(photos).records)
    assert decoded == ["new.png"]
    assert {name: code for name, code in second.codes.items() if name != "new.png"} == first.codes


def test_cut_small_long_and_mirrored_pictures_are_found_at_once_and_from_the_cache(tmp_path: Path):
    generator = np.random.default_rng(0)
    noise = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((160, 120), Image.Resampling.BICUBIC)
    noise.save(tmp_path / "a.png")
    ImageOps.mirror(noise).save(tmp_path / "b.png")
    noise.save(tmp_path / "cut.jpg", quality=95)
    data = (tmp_path / "cut.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(data[:-40])
    Image.effect_mandelbrot((31, 40), (-2, -1, 1, 1), 50).save(tmp_path / "small.png")
    Image.effect_mandelbrot((400, 60), (-2, -1, 1, 1), 50).save(tmp_path / "strip.png")
    records = read_collection(tmp_path).records
    for found in (look_at_pictures(records), look_at_pictures(records)):
        assert (found.cut, found.small, found.strips, found.broken) == (("cut.jpg",), ("small.png",), ("strip.png",), ())
        pairs = mirror_pictures(records, found.codes, found.mirrored)
        assert [(records[a].image_id, records[b].image_id) for a, b in pairs] == [("a.png", "b.png"), ("b.png", "cut.jpg")]
    kinds = {finding.kind: finding.count for finding in (*of_shapes(records, found), *of_mirrors(records, pairs))}
    assert kinds == {"cut short picture": 1, "small": 1, "strip": 1, "mirrored": 2}
