"""An experiment run at tiny size: order, resumption, what is read when, and the rows that come of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import make_photos

from densecap_search.errors import CollectionError, RunError, TrainingStopped
from densecap_search.evaluation.metrics import Ranks
from densecap_search.experiments import grid
from densecap_search.experiments.grid import Measured, RunOutcome, run_experiment
from densecap_search.experiments.plan import BEFORE, Experiment, load_experiment
from densecap_search.experiments.results import against_setting, learning_curves, summarise
from densecap_search.experiments.results_page import markdown, tables, write_reports
from densecap_search.talk import SILENT, Talk

TEXT = """
collections: {photos: FOLDER}
settings: {model.name: MODEL, train.tune: heads, train.epochs: 1, train.batch_size: 8, train.diagnose: 1}
arms:
  plain: {train.objective: info_nce}
  margin: {train.objective: hn_clip, train.gamma: 0.5}
grid: {data.fraction: [0.5, 1.0]}
seeds: 2
"""


@pytest.fixture
def experiment(tmp_path: Path, tiny_run: Path) -> Experiment:
    file = tmp_path / "e.yaml"
    file.write_text(TEXT.replace("FOLDER", str(make_photos(tmp_path / "photos"))).replace("MODEL", str(tiny_run)))
    return load_experiment(file)


@pytest.mark.slow
def test_every_run_is_a_run_folder_and_the_rows_are_means_over_its_seeds(experiment: Experiment, tmp_path: Path):
    outcomes = run_experiment(experiment, tmp_path / "out", talk=SILENT)
    assert [outcome.arm for outcome in outcomes] == [BEFORE, *["plain", "margin"] * 4]
    for outcome in outcomes[1:]:
        assert (tmp_path / "out" / "runs" / outcome.folder / "weights.safetensors").is_file()
        assert outcome.epochs[-1]["epoch"] == 1
    rows = summarise(outcomes, "plain", {"margin": {"photos": (90.0, 80.0)}})
    assert [(row.cell, row.arm) for row in rows] == [
        ("", BEFORE), ("data.fraction 0.5", "plain"), ("data.fraction 0.5", "margin"),
        ("data.fraction 1.0", "plain"), ("data.fraction 1.0", "margin")]
    own = [outcome.tests["photos"]["text_to_image"].figures["MRR"] for outcome in outcomes
           if (outcome.cell, outcome.arm) == ("data.fraction 1.0", "margin")]
    assert len(own) == 2
    mean = rows[-1].figures["text_to_image"]["MRR"]
    assert (mean.value, mean.spread, mean.count) == (pytest.approx(np.mean(own)), pytest.approx(np.std(own, ddof=1)), 2)
    assert rows[-1].expected == (90.0, 80.0)
    assert rows[1].difference == {}
    assert rows[1].solved is not None


@pytest.mark.slow
def test_an_experiment_that_is_begun_again_trains_nothing_twice(experiment: Experiment, tmp_path: Path, monkeypatch):
    trained = []
    finetune = grid.finetune

    def once(collection, config, folder, **options):
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(folder.name)
        return finetune(collection, config, folder, **options)

    monkeypatch.setattr(grid, "finetune", once)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "out", talk=SILENT)
    assert not list((tmp_path / "out").rglob("tested.json"))
    monkeypatch.setattr(grid, "finetune", lambda *args, **options: trained.append(args[2].name) or finetune(*args, **options))
    first = run_experiment(experiment, tmp_path / "out", talk=SILENT)
    assert sorted(trained) == sorted(run.folder for run in experiment.runs())
    assert run_experiment(experiment, tmp_path / "out", talk=SILENT) == first
    assert len(trained) == 8


@pytest.mark.slow
def test_settings_are_fixed_once_the_test_split_was_read(experiment: Experiment, tmp_path: Path):
    run_experiment(experiment, tmp_path / "out", talk=SILENT)
    more = replace(experiment, arms={**experiment.arms, "another": {"train.objective": "label_smoothing"}})
    with pytest.raises(RunError, match="test splits have been read: choose another folder with -o"):
        run_experiment(more, tmp_path / "out", talk=SILENT)


def test_before_the_test_split_is_read_runs_may_be_added_but_not_changed(experiment: Experiment, tmp_path: Path):
    grid._hold(experiment, experiment.runs(), tmp_path)
    more = replace(experiment, arms={**experiment.arms, "another": {"train.objective": "label_smoothing"}})
    grid._hold(more, more.runs(), tmp_path)
    plan = json.loads((tmp_path / "experiment.json").read_text())
    for run in plan["runs"].values():
        del run["train"]["ema"]  # as a version without this setting wrote it
    (tmp_path / "experiment.json").write_text(json.dumps(plan))
    grid._hold(more, more.runs(), tmp_path)
    changed = replace(experiment, arms={**experiment.arms, "margin": {"train.objective": "hn_clip", "train.gamma": 1.0}})
    with pytest.raises(RunError, match=r"runs with other settings \(margin--0.5--seed-0-"):
        grid._hold(changed, changed.runs(), tmp_path)


@pytest.mark.slow
def test_a_run_that_cannot_be_trained_is_told_and_the_others_go_on(experiment: Experiment, tmp_path: Path, monkeypatch):
    finetune, said = grid.finetune, []

    def stops(collection, config, folder, **options):
        if folder.name.startswith("margin--1.0--seed-1"):
            raise TrainingStopped("the loss became nan at step 1")
        return finetune(collection, config, folder, **options)

    monkeypatch.setattr(grid, "finetune", stops)
    outcomes = run_experiment(experiment, tmp_path / "out", talk=Talk(say=said.append))
    assert "8/8 margin · data.fraction 1.0 · seed 1: failed: the loss became nan at step 1" in said
    row = summarise(outcomes, "plain", {})[-1]
    assert (row.arm, row.failed, row.figures["text_to_image"]["R@1"].count) == ("margin", 1, 1)
    write_reports(experiment, [row], outcomes, tmp_path)
    assert "the loss became nan" in (tmp_path / "results.csv").read_text()


def test_runs_start_from_the_run_that_is_made_first_and_weights_are_left_out_on_request(experiment, tmp_path, tiny_run):
    start = ("photos", {"model.name": str(tiny_run), "train.tune": "heads", "train.epochs": 1})
    experiment = replace(experiment, start=start, settings={**experiment.settings, "model.name": "start"}, grid={},
                         seeds=(0,), keep_weights=False)
    outcomes = run_experiment(experiment, tmp_path / "out", talk=SILENT)
    assert json.loads((tmp_path / "out" / "start" / "trained.json").read_text())["steps"] > 0
    config = (tmp_path / "out" / "runs" / outcomes[1].folder / "config.yaml").read_text()
    assert f"name: {tmp_path / 'out' / 'start'}" in config
    assert not list((tmp_path / "out" / "runs").rglob("weights.safetensors"))
    assert [outcome.arm for outcome in outcomes] == [BEFORE, "plain", "margin"]


def test_a_test_set_that_is_not_there_is_told_before_the_first_run(experiment: Experiment, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(grid, "finetune", lambda *args, **options: pytest.fail("a run was begun"))
    missing = replace(experiment, collections={**experiment.collections, "far": "nowhere.csv"}, test_on={"far": ("test",)})
    with pytest.raises(CollectionError, match=r"nowhere\.csv does not exist.*; --collection far=PATH says where it lies"):
        run_experiment(missing, tmp_path / "out", talk=SILENT)


def test_scenes_are_drawn_once(experiment: Experiment, tmp_path: Path, tiny_run: Path):
    text = TEXT.replace("FOLDER", "{bursts: 8, per_burst: 2, style: faded}").replace("MODEL", str(tiny_run))
    (tmp_path / "s.yaml").write_text(text)
    scenes = replace(load_experiment(tmp_path / "s.yaml"), grid={}, seeds=(0,))
    run_experiment(scenes, tmp_path / "out", talk=SILENT)
    picture = next((tmp_path / "out" / "collections" / "photos" / "images").iterdir())
    made = picture.stat().st_mtime_ns
    run_experiment(scenes, tmp_path / "out", talk=SILENT)
    assert picture.stat().st_mtime_ns == made


# Two seeds, four queries of two pictures. R@1 of the margin is 3/4 and 4/4, of plain 1/4 and 3/4.
HAND = {("plain", 0): (1, 2, 2, 3), ("plain", 1): (1, 1, 1, 2), ("margin", 0): (1, 1, 1, 2), ("margin", 1): (1, 1, 1, 1)}


def by_hand(experiment: Experiment) -> list[RunOutcome]:
    configs = {run.arm: run.config for run in experiment.runs()}
    outcomes = []
    for (arm, seed), ranks in HAND.items():
        figures = {"R@1": 100.0 * np.mean(np.array(ranks) == 1), "R@5": 100.0, "R@10": 100.0, "MRR": 0.5}
        tested = Measured(figures, tuple(map(float, ranks)), (0, 0, 1, 1), 2)
        val = {"text_to_image": {"R@1": 40.0 + seed}, "image_to_text": {"R@1": 60.0 if arm == "margin" else 50.0}}
        epochs = ({"epoch": 0, "val": val, "logit_scale": 20.0}, {"epoch": 1, "val": val, "logit_scale": 30.0 + seed})
        outcomes.append(RunOutcome(arm, "", {}, seed, configs[arm], arm, epochs, 1, 0.25 * seed, {"photos": 0},
                                   {"photos": {"text_to_image": tested, "image_to_text": tested}}))
    return outcomes


def test_rows_worked_by_hand(experiment: Experiment):
    plain, margin = summarise(by_hand(experiment), "plain", {})
    r1 = margin.figures["text_to_image"]["R@1"]
    assert (r1.value, r1.spread) == (pytest.approx(87.5), pytest.approx(17.6777, abs=1e-4))
    found = margin.difference["text_to_image"]
    # by query, averaged over seeds: plain 100, 50, 50, 0; margin 100, 100, 100, 50
    assert (found.value, found.wins, found.losses) == (pytest.approx(37.5), 3, 0)
    assert found.p_value == pytest.approx(0.5, abs=0.1)  # two pictures: the signs agree in 2 of 4 flips
    assert plain.val is not None
    assert (plain.val.value, margin.val.value) == (pytest.approx(45.25), pytest.approx(50.25))
    assert (plain.chosen, margin.chosen) == (False, True)
    assert (margin.solved.value, margin.logit_scale.value) == (pytest.approx(12.5), pytest.approx(30.5))


def test_info_nce_is_the_start_of_the_curve_over_gamma(experiment: Experiment):
    outcomes = by_hand(experiment)
    rows = summarise(outcomes, "plain", {})
    assert against_setting(rows, outcomes, "train.gamma") == {
        "photos": [(0.0, 50.0, pytest.approx(25.0)), (0.5, 87.5, pytest.approx(12.5))]}
    assert against_setting(rows, outcomes, "data.fraction") == {}
    assert learning_curves(outcomes) == {"": {"plain": [(0, 45.25), (1, 45.25)], "margin": [(0, 50.25), (1, 50.25)]}}


def test_the_table_names_the_chosen_arm_and_warns_of_trained_pictures(experiment: Experiment):
    outcomes = [replace(outcome, trained_on={"photos": 2}) for outcome in by_hand(experiment)]
    text = markdown(experiment, summarise(outcomes, "plain", {}))
    assert "**2 of these 2 pictures were trained on: this is no test of unseen ones.**" in text
    assert "| margin ● | 2 | 87.5 ± 17.7 |" in text
    assert "| plain | 2 | 50.0 ± 35.4 |" in text
    assert "+37.5 (" in text


def test_ranks_of_a_file_count_as_those_they_came_from():
    assert Ranks.of([1, 3]).rank.tolist() == [1, 3]


def test_a_table_is_made_for_each_cell_with_the_model_before_at_its_head(experiment: Experiment):
    outcomes = by_hand(experiment)
    before = replace(outcomes[0], arm=BEFORE, epochs=(), kept_epoch=None, saturated=None)
    cells = [replace(outcome, cell=cell, values={"x": cell}) for cell in ("one", "two") for outcome in outcomes]
    made = tables(summarise([before, *cells], "plain", {}))
    assert {title: [row.arm for row in rows] for title, rows in made.items()} == {
        "photos: 4 captions, 2 pictures; one": [BEFORE, "plain", "margin"],
        "photos: 4 captions, 2 pictures; two": [BEFORE, "plain", "margin"]}
