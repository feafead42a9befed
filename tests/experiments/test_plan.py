"""An experiment's file: what it asks for, and how mistakes in it are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from densecap_search.config import load_config
from densecap_search.errors import ConfigError
from densecap_search.experiments.plan import Scenes, load_experiment

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "configs" / "experiments").glob("*.yaml")) + sorted((ROOT / "configs" / "paper").glob("*.yaml"))

WHOLE = """
title: All there is
collections:
  mine: photos/
  drawn: {bursts: 3, per_burst: 2, seed: 4, style: faded}
settings:
  train: {epochs: 2, tune: heads}
  model.name: start
start: {collection: drawn, settings: {train.objective: info_nce}}
arms:
  plain: {train.objective: info_nce}
  margin: {train.objective: hn_clip, train.gamma: 0.25}
grid:
  data.fraction: [0.5, 1.0]
  where:
    own: {}
    drawn: {collection: drawn, train.batch_size: 16}
seeds: 3
expect: {margin: {mine: [80.5, 70]}}
"""


def write(folder: Path, text: str) -> Path:
    (folder / "e.yaml").write_text(text, encoding="utf-8")
    return folder / "e.yaml"


def test_the_runs_are_arms_times_grid_times_seeds(tmp_path: Path):
    experiment = load_experiment(write(tmp_path, WHOLE))
    runs = experiment.runs()
    assert len(runs) == 2 * 2 * 2 * 3 == len({run.folder for run in runs})
    assert [run.seed for run in runs] == [0] * 8 + [1] * 8 + [2] * 8
    assert [(run.cell, run.arm) for run in runs[:3]] == [
        ("data.fraction 0.5, own", "plain"), ("data.fraction 0.5, own", "margin"), ("data.fraction 0.5, drawn", "plain")]
    assert experiment.baseline == "plain"
    assert experiment.collections["drawn"] == Scenes(3, 2, 4, "faded")


def test_an_arm_wins_over_the_grid_and_the_grid_over_the_settings(tmp_path: Path):
    run = load_experiment(write(tmp_path, WHOLE)).runs()[3]
    assert (run.cell, run.arm, run.collection) == ("data.fraction 0.5, drawn", "margin", "drawn")
    expected = load_config(overrides=[
        ("data.split_seed", 0), ("train.epochs", 2), ("train.tune", "heads"), ("model.name", "start"), ("data.fraction", 0.5),
        ("train.batch_size", 16), ("train.objective", "hn_clip"), ("train.gamma", 0.25), ("train.seed", 0)])
    assert run.config == expected


def test_changes_hold_for_every_run_and_for_the_first_one(tmp_path: Path):
    changed = load_experiment(write(tmp_path, WHOLE)).with_changes({"mine": "/x"}, [("train.gamma", 0.7)])
    assert {run.config.train.gamma for run in changed.runs()} == {0.7}
    assert changed.start_config().train.gamma == 0.7
    assert changed.collections["mine"] == "/x"
    with pytest.raises(ConfigError, match="names no collection other; it has mine, drawn"):
        changed.with_changes({"other": "/x"}, [])


@pytest.mark.parametrize(("old", "new", "message"), [
    ("title: All", "titel: All", "unknown key titel; known keys here: title, notes, collections"),
    ("train.gamma: 0.25", "train.gama: 0.25", "unknown key train.gama; known keys here:"),
    ("seeds: 3", "seeds: many", "seeds must be a list of whole numbers, or how many, not 'many'"),
    ("style: faded", "style: sepia", "collections.drawn.style must be one of plain, faded, not 'sepia'"),
    ("bursts: 3", "burst: 3", "unknown key collections.drawn.burst; known keys here: bursts, per_burst"),
    ("bursts: 3", "bursts: x", "collections.drawn: bursts, per_burst and seed must be whole numbers"),
    ("{margin: {mine", "{other: {mine", "expect names 'other', which is none of the arms: plain, margin"),
    ("[80.5, 70]", "[80.5]", "expect.margin.mine must be two numbers"),
    ("seeds: 3", "baseline: best", "baseline must be one of the arms (plain, margin), not 'best'"),
    ("seeds: 3", "train_on: yours", "names no collection yours; it has mine, drawn"),
    ("collection: drawn, train", "collection: yours, train", "names no collection yours; it has mine, drawn"),
    ("start: {collection: drawn, settings: {train.objective: info_nce}}", "", "model.name is start, but the file has no section start"),
    ("own: {}", "own: 3", "grid.where.own must be a section with keys, not 3"),
    ("title:", "title: [", "is not a YAML file"),
])
def test_a_mistake_is_named_with_its_place(tmp_path: Path, old: str, new: str, message: str):
    assert old in WHOLE
    with pytest.raises(ConfigError) as caught:
        load_experiment(write(tmp_path, WHOLE.replace(old, new))).runs()
    assert message in str(caught.value)
    assert str(tmp_path / "e.yaml") in str(caught.value)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot read the experiment .*: No such file"):
        load_experiment(tmp_path / "none.yaml")


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_experiment_of_the_project_can_be_planned(file: Path):
    experiment = load_experiment(file)
    runs = experiment.runs()
    assert len({run.folder for run in runs}) == len(runs) >= len(experiment.arms) * len(experiment.seeds)
    assert experiment.notes
    if file.parent.name == "paper":
        assert "Weights:" in experiment.notes
        assert "Data:" in experiment.notes
        assert {run.config.train.epochs for run in runs} == {10}
        assert {run.config.train.lr for run in runs} <= {2e-6, 5e-5}
