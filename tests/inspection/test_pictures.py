"""Every file opened once: broken, blank, the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Skipped
from densecap_search.inspection import pictures
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
