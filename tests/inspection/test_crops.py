"""Pictures that were cut out of others: by pixels, and with which share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import load
from PIL import Image

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Record
from densecap_search.inspection.crops import Crop, find_crops, look_for_crops
from densecap_search.inspection.findings import of_crops

SIZE = (300, 200)


def scene(seed: int) -> Image.Image:
    """Soft blobs: detail at all scales, as photographs have."""
    noise = np.random.default_rng(seed).integers(0, 256, (16, 24), dtype=np.uint8)
    return Image.fromarray(noise).resize(SIZE, Image.Resampling.BICUBIC).convert("RGB")


def found(folder: Path, names: list[str]) -> list[Crop]:
    """All pairs are looked at: every picture has the same vector."""
    records = [Record(name, folder / name, ()) for name in names]
    return find_crops(records, names, np.ones((len(names), 1), np.float32))


@pytest.mark.parametrize(("box", "zoom"), [
    ((0, 0, 150, 100), 1.0), ((60, 50, 240, 200), 0.7), ((20, 10, 290, 190), 1.5), ((0, 0, 300, 120), 1.0), ((100, 0, 250, 200), 1.0),
])
def test_a_part_is_found_wherever_it_lies_and_its_share_is_known(tmp_path: Path, box, zoom: float):
    whole, other = scene(1), scene(2)
    part = whole.crop(box)
    part = part.resize((round(part.width * zoom), round(part.height * zoom)), Image.Resampling.BICUBIC)
    for name, picture in (("part.jpg", part), ("whole.jpg", whole), ("other.jpg", other)):
        picture.save(tmp_path / name, quality=80)
    crop, = found(tmp_path, ["part.jpg", "whole.jpg", "other.jpg"])
    assert (crop.whole, crop.part) == (1, 0)
    share = (box[2] - box[0]) * (box[3] - box[1]) / (SIZE[0] * SIZE[1])
    assert crop.share == pytest.approx(share, abs=0.04)


def test_copies_mirrors_flat_and_other_pictures_are_no_parts(tmp_path: Path):
    whole = scene(3)
    pictures = {"a.png": whole, "copy.png": whole.resize((150, 100)), "mirror.png": whole.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
                "grey.png": Image.new("RGB", (80, 80), (128, 128, 128)), "b.png": scene(4)}
    for name, picture in pictures.items():
        picture.save(tmp_path / name)
    assert found(tmp_path, [*pictures]) == []


def test_a_part_is_one_finding_unless_the_table_says_that_both_belong_together(tmp_path: Path, tiny_run: Path):
    scene(5).save(tmp_path / "a.png")
    scene(5).crop((30, 20, 270, 180)).save(tmp_path / "b.png")
    records = read_collection(tmp_path).records
    crops = look_for_crops(records, load(str(tiny_run)))
    finding, = of_crops(records, crops)
    assert (finding.kind, finding.count, finding.what) == ("cropped", 1, "1 picture was cut out of another one")
    assert finding.examples[0].images == (str(tmp_path / "a.png"), str(tmp_path / "b.png"))
    assert finding.examples[0].note in ("63 % of the first", "64 % of the first", "65 % of the first")  # 0.8 of both sides
    assert [*of_crops([replace(record, burst="x") for record in records], crops)] == []


def test_one_picture_or_none_has_no_parts():
    assert find_crops([], [], np.empty((0, 2), np.float32)) == []
