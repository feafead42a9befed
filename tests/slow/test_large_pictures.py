from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import draw_photo, one_bit_png, plain_png
from PIL import Image

from densecap_search.retrieval.index import load_index

MEASURED = """
import os, sys
from pathlib import Path
from densecap_search.cli import main
os.cpu_count = lambda: 8  # as many threads on every machine
try:
    main(sys.argv[1:])
finally:
    print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells the most memory that was used on Linux only")
def test_a_gigantic_picture_in_place_3_of_10_and_a_panorama_are_no_trouble(tmp_path: Path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(1, 11):
        Image.linear_gradient("L").resize((640, 480)).convert("RGB").rotate(36 * number).save(folder / f"{number:02}.png")
    one_bit_png(folder / "03.png", 30000, 20000)
    Image.effect_noise((20000, 3000), 40).convert("RGB").save(folder / "10.jpg")
    (folder / "10.png").unlink()
    words = ["index", folder, "--model", "starter", "-o", tmp_path / "index"]
    done = subprocess.run([sys.executable, "-c", MEASURED, *map(str, words)], capture_output=True, text=True, check=True)
    assert "9 pictures written (9 encoded, 0 kept, 0 removed, 1 skipped)" in done.stdout
    assert "03.png: 30000×20000 pixels are more than the limit of 178,956,970" in done.stderr
    assert [entry.image_id for entry in load_index(tmp_path / "index").rows] == [
        "01.png", "02.png", *(f"{number:02}.png" for number in range(4, 10)), "10.jpg"]
    kilobytes = int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1])
    assert kilobytes < 1.5 * 2**20


def index_kilobytes(folder: Path, model: Path) -> int:
    """The most memory that indexing a folder took."""
    words = ["index", folder, "--model", model, "-o", folder.with_suffix(".index")]
    done = subprocess.run([sys.executable, "-c", MEASURED, *map(str, words)], capture_output=True, text=True, check=True)
    assert "0 skipped" in done.stdout or "skipped" not in done.stdout
    return int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells the most memory that was used on Linux only")
def test_pngs_of_a_few_kilobytes_and_169_million_pixels_take_little_memory_however_many_threads_there_are(
        tmp_path: Path, tiny_run: Path):
    """At most 0.8 GB beyond what a small picture takes for one, 1.5 GB for six at once in eight threads."""
    for name in ("small", "one", "six"):
        (tmp_path / name).mkdir()
        draw_photo(tmp_path / name / "a.png", "red", "left", "ball")
    for number in range(6):
        plain_png(tmp_path / "six" / f"{number}.png", 13_000, (40 * number, 100, 200))
    (tmp_path / "one" / "0.png").hardlink_to(tmp_path / "six" / "0.png")
    assert (tmp_path / "six" / "0.png").stat().st_size < 3e6
    small, one, six = (index_kilobytes(tmp_path / name, tiny_run) / 1e6 for name in ("small", "one", "six"))
    assert one - small <= 0.8
    assert six - small <= 1.5
