"""What search by captions promises on real photographs; needs DENSECAP_TEST_DATA and the starter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from densecap_search.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_cache")]


def modes(*words: object) -> dict[str, dict[str, float]]:
    result = CliRunner().invoke(main, ["evaluate", *map(str, words), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return {mode: {name: found[name]["value"] for name in ("R@1", "R@10")}
            for mode, found in json.loads(result.stdout)["modes"].items()}


def test_captions_find_the_rooms_that_pictures_alone_do_not(real_data: Path):
    found = modes(real_data / "ids-ade" / "captions.jsonl", "--model", "starter", "--split", "all", "--protocol", "halves")
    assert found["fused"]["R@1"] >= 35
    assert found["fused"]["R@10"] >= 70
    assert found["image"]["R@1"] < 5


def test_with_fine_tuned_heads_they_find_more(real_data: Path, tmp_path: Path):
    table = real_data / "ids-ade" / "captions.jsonl"
    tuned = CliRunner().invoke(main, ["finetune", str(table), "--model", "starter", "--tune", "heads", "-o", str(tmp_path / "r")])
    assert tuned.exit_code == 0, tuned.output
    found = modes(table, "--model", tmp_path / "r", "--split", "val,test", "--gallery", "all", "--protocol", "halves")
    assert found["fused"]["R@1"] >= 36.2  # of the plain sum of z-scores of the raw signals; a query is 0.9
    assert found["fused"]["R@10"] >= 73


def test_the_sum_is_never_a_point_below_its_best_part(real_data: Path):
    rooms = modes(real_data / "ids-ade" / "captions.jsonl", "--model", "starter", "--split", "all", "--protocol", "halves")
    street = modes(real_data / "flickr8k" / "captions.jsonl", "--caption-column", "captions", "--model", "starter",
                   "--split", "test", "--protocol", "captions")
    for found in (rooms, street):
        mean = {mode: (each["R@1"] + each["R@10"]) / 2 for mode, each in found.items()}
        assert mean["fused"] >= max(mean[name] for name in ("image", "text", "words")) - 1
