"""The published experiments, each run through at tiny size on generated pictures with a random model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers import make_photos

from densecap_search.experiments.grid import run_experiment
from densecap_search.experiments.plan import load_experiment
from densecap_search.experiments.results import summarise
from densecap_search.experiments.results_page import write_reports
from densecap_search.talk import SILENT

pytestmark = pytest.mark.slow
FILES = sorted((Path(__file__).parents[2] / "configs" / "paper").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_published_experiment_runs_through_at_tiny_size(file: Path, tmp_path: Path, tiny_run: Path, look):
    published = load_experiment(file)
    photos = str(make_photos(tmp_path / "photos"))
    small = [("model.name", str(tiny_run)), ("model.context_length", None), ("train.epochs", 1), ("train.batch_size", 8),
             ("train.micro_batch", 4), ("data.val_share", 0.2)]
    experiment = replace(published.with_changes(dict.fromkeys(published.collections, photos), small), seeds=(42,))
    outcomes = run_experiment(experiment, tmp_path / "out", talk=SILENT)
    assert [outcome.failed for outcome in outcomes if outcome.failed] == []
    rows = summarise(outcomes, experiment.baseline, experiment.expect)
    tests = list(experiment.test_on)
    runs = len(experiment.runs())
    assert sum(outcome.arm in experiment.arms for outcome in outcomes) == runs
    assert {row.test for row in rows} == set(tests)
    assert all(row.gallery == 24 for row in rows)
    # every picture of the tiny collection is in each of its test sets, and most of them were trained on: it must say so
    assert all(row.trained_on >= 19 * float(row.values.get("data.fraction", 1)) for row in rows if row.arm in experiment.arms)
    for arm, figures in published.expect.items():
        for test, expected in figures.items():
            assert [row.expected for row in rows if (row.arm, row.test) == (arm, test)] == [expected] * (
                2 if file.stem == "controls" else 1)
    write_reports(experiment, rows, outcomes, tmp_path / "out")
    text = (tmp_path / "out" / "results.md").read_text()
    assert "pictures were trained on: this is no test of unseen ones" in text
    assert experiment.notes in text
    if file.stem == "gamma":
        seen, widths = look(tmp_path / "out" / "results.html", "experiment")
        assert "R@1 on test by γ" in seen
        assert len(widths) == 3  # by γ, and a learning curve for each of the two training sets
        assert min(widths) > 300
