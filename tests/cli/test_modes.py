from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from densecap_search.cli import main


@pytest.fixture
def twofold(photos: Path) -> Path:
    for number, path in enumerate(sorted(photos.glob("*.txt"))):
        path.write_text(f"Number n{number}n on a table. It is n{number}n again.", encoding="utf-8")
    return photos


def run(*arguments: str):
    return CliRunner().invoke(main, ["evaluate", *arguments])


def test_the_table_names_protocol_gallery_and_every_mode(twofold: Path, tiny_run: Path):
    found = run(str(twofold), "--model", str(tiny_run), "--split", "all", "--protocol", "halves")
    assert found.exit_code == 0, found.output
    assert "24 queries among 24 pictures (the same pictures), 24 of them with a caption" in found.stdout
    assert "Protocol halves: every other sentence of each description asks, the remaining ones are stored" in found.stdout
    rows = {line.split("  ")[0].strip(): line.split() for line in found.stdout.splitlines()}
    assert {"image", "text", "words", "fused", "fused, equal weights"} <= set(rows)
    assert rows["words"][1:4] == ["100.0", "100.0", "100.0"]
    assert "fused against image: R@1 differs by" in found.stdout


def test_one_mode_prints_one_row_and_json_holds_all(twofold: Path, tiny_run: Path):
    one = run(str(twofold), "--model", str(tiny_run), "--split", "all", "--mode", "words")
    assert sum(line.startswith(("image ", "text ", "words ", "fused")) for line in one.stdout.splitlines()) == 1
    found = json.loads(run(str(twofold), "--model", str(tiny_run), "--split", "all", "--mode", "fused", "--json").stdout)
    assert (found["protocol"], found["modes"]["words"]["R@1"]["value"]) == ("halves", 100.0)


def test_options_of_the_other_report_are_refused(twofold: Path, tiny_run: Path):
    found = run(str(twofold), "--model", str(tiny_run), "--mode", "fused", "--slice", "words")
    assert found.exit_code == 2
    assert "leave out --slice" in found.output
