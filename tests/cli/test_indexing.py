from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result
from helpers import make_photos
from PIL import Image

from densecap_search.cli import main


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_an_index_is_planned_made_added_to_listed_undone_and_checked(photos: Path, tiny_run: Path, tmp_path: Path):
    index, scans = tmp_path / "index", make_photos(tmp_path / "scans")
    Image.new("RGB", (32, 32)).save(scans / "black.png")
    planned = run("index", photos, "--model", tiny_run, "-o", index, "--dry-run").stdout
    assert planned == (f"{index}: 24 to encode, 0 unchanged, 0 moved or renamed, 0 described anew, 0 copies of known pictures, "
                       "0 removed or replaced; nothing was written\n")
    assert not index.exists()
    made = run("index", photos, "--model", tiny_run, "-o", index).stdout
    assert "type flat: 24 vectors are looked at one by one in a moment" in made
    assert "24 pictures written (24 encoded, 0 kept, 0 removed, 0 skipped)" in made
    moved = run("index", scans, "-o", index).stdout  # the same pictures in another place, and one more
    assert "25 pictures written (1 encoded, 24 kept, 0 removed, 0 skipped)" in moved
    assert "24 pictures by" in run("index", "--undo", "-o", index).stdout
    added = run("index", scans, "-o", index, "--add", "--name", "old scans").stdout
    assert "49 pictures written (1 new, 1 of them from the cache, 48 kept, 0 removed, 0 skipped)" in added
    listed = run("index", "--list", "-o", index).stdout
    assert [line.split("  ")[0] for line in listed.splitlines()[1:3]] == ["photos", "old scans"]
    assert "49 pictures by" in listed
    assert "is as it was written: 49 pictures" in run("index", "--check", "-o", index).stdout
    assert "24 pictures by" in run("index", "--remove", "old scans", "-o", index).stdout
    assert "is as it was: 49 pictures" in run("index", "--undo", "-o", index).stdout
    for words in (["--list", "--undo"], [photos, "--list"], []):
        assert "give one of: a collection, --list" in run("index", *words, "-o", index, code=2).output


def test_search_filters_by_the_columns_of_a_table(photos: Path, tiny_run: Path, tmp_path: Path):
    names = sorted(path.name for path in photos.glob("*.png"))
    lines = [f"{name},a picture,{1980 + number},{'Lyon' if number % 2 else 'Paris'}" for number, name in enumerate(names)]
    (photos / "t.csv").write_text("\n".join(["image,caption,year,place", *lines]))
    run("index", photos / "t.csv", "--model", tiny_run, "-o", tmp_path / "i")
    where = "year >= 1990 and place = 'Lyon'"
    found = run("search", tmp_path / "i", "a red ball", "--where", where, "-k", "100", "--json").stdout.splitlines()
    assert {json.loads(hit)["image_id"] for hit in found} == {name for number, name in enumerate(names) if number >= 10 and number % 2}
    unknown = run("search", tmp_path / "i", "a red ball", "--where", "yaer = 1", code=1).output
    assert "the filter names 'yaer', which is no column of this index; it has: year, place, folder" in unknown
    assert "'Lyon' where a number" in run("search", tmp_path / "i", "x", "--where", "place = Lyon", code=1).output
