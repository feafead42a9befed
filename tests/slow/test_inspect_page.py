"""The inspection's page as a browser shows it, on real photographs and on files that break other programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from densecap_search.cli import main

pytestmark = pytest.mark.slow
CAPTION = "A black cat sleeps on a wooden chair beside a window; its tail hangs down, and the light falls from the left."


def inspected(collection: Path, report: Path) -> dict[str, int]:
    words = ["inspect", str(collection), "--model", "starter", "--report", str(report), "--json"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return {finding["kind"]: finding["count"] for finding in json.loads(done.stdout)["findings"] if finding["do"]}


def test_the_page_of_clean_photographs_shows_the_hardest_pairs_and_nothing_to_mend(real_data: Path, tmp_path: Path, look):
    found = inspected(real_data / "ids-ade" / "captions.jsonl", tmp_path / "page.html")
    assert found == {}  # its README: no exact or near-duplicate captions, no near-duplicate images (dHash <= 4)
    text, widths = look(tmp_path / "page.html", "inspect-ids-ade")
    assert "547\npictures" in text
    assert "Nothing was found." in text
    assert "No picture, caption, group or burst is in more than one split." in text
    assert "The pairs of different captions that are hardest to tell apart" in text
    assert len(widths) == 4 + 2 * 12  # plots, and 12 pairs
    assert min(widths) >= 60


def test_the_page_of_awkward_files_names_each_that_is_broken(real_data: Path, tmp_path: Path, look):
    folder = tmp_path / "awkward"
    shutil.copytree(real_data / "awkward", folder)
    (folder / "README.md").unlink()
    (folder / "empty.jpg").touch()
    (folder / "copy.jpg").write_bytes((folder / "exif6.jpg").read_bytes())
    (folder / "copy.txt").write_text("A waterfall, seen from above.")
    (folder / "black cat sleeping on a chair.txt").write_text(CAPTION)
    (folder / "photo.txt").write_text(CAPTION.upper())
    found = inspected(folder, tmp_path / "page.html")
    assert found["broken"] >= 4  # more where no plug-in reads HEIC or AVIF
    assert found["cut short picture"] == 1  # truncated.jpg is shown as viewers show it
    assert found["same picture"] == 1
    text, widths = look(tmp_path / "page.html", "inspect-awkward")
    for name in ("truncated.png", "broken_stream.png", "bomb_header.gif", "empty.jpg"):
        assert f"{name}: " in text
    assert "1 picture without the last bytes" in text
    assert "1 picture is a copy of another, byte for byte" in text
    assert min(widths) >= 30
