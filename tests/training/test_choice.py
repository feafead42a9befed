"""--objective auto: by evidence, without test, and once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from densecap_search.collection.records import Collection
from densecap_search.collection.splits import folds
from densecap_search.config import ModelConfig, RunConfig, TrainConfig, load_config
from densecap_search.model.checkpoint import STATE, WEIGHTS
from densecap_search.talk import SILENT
from densecap_search.training import choice
from densecap_search.training.batches import Batch
from densecap_search.training.choice import CANDIDATES, CHOICE, Sample, rule
from densecap_search.training.loop import finetune


def settings(model: Path, **train: object) -> RunConfig:
    return RunConfig(model=ModelConfig(str(model)), train=TrainConfig(**{"tune": "heads", "epochs": 2, "batch_size": 8, "lr": 1e-2, **train}))  # type: ignore[arg-type]


def test_heads_are_trained_with_each_candidate_and_validation_decides(collection: Collection, tiny_run: Path, tmp_path: Path):
    summary = finetune(collection, settings(tiny_run), tmp_path / "run", talk=SILENT)
    assert summary.choice is not None
    assert [(trial.objective, trial.gamma) for trial in summary.choice.trials] == list(CANDIDATES)
    best = max(summary.choice.trials, key=lambda trial: trial.mrr)
    named = [choice.spelled(*candidate) for candidate in CANDIDATES]
    if "not apart" in summary.choice.reason:  # kept is the first of those that the intervals do not tell apart
        close = summary.choice.reason.partition("the intervals tell ")[2].partition(" not apart")[0].split(" and ")
        assert choice.spelled(best.objective, best.gamma) in close
        assert sorted(close, key=named.index) == close
        assert choice.spelled(summary.choice.objective, summary.choice.gamma) == close[0]
    else:
        assert (summary.choice.objective, summary.choice.gamma) == (best.objective, best.gamma)
    assert all(0 < trial.mrr <= 1 and trial.low <= trial.difference <= trial.high for trial in summary.choice.trials)
    assert summary.choice.trials[0].difference == 0
    assert any(f"{5 * rounds} splits of train and val" in summary.choice.reason for rounds in (1, 2))
    kept = json.loads((tmp_path / "run" / CHOICE).read_text())
    assert kept["objective"] == summary.choice.objective
    assert len(kept["trials"]) == 3


def test_the_run_is_the_one_that_would_have_been_without_choosing(collection: Collection, tiny_run: Path, tmp_path: Path):
    chosen = finetune(collection, settings(tiny_run), tmp_path / "auto", talk=SILENT).choice
    assert chosen is not None
    saved = load_config(tmp_path / "auto" / "config.yaml").train
    assert (saved.objective, saved.gamma) == (chosen.objective, chosen.gamma or 0.5)
    finetune(collection, settings(tiny_run, objective=chosen.objective, gamma=saved.gamma), tmp_path / "plain", talk=SILENT)
    auto, plain = (load_file(tmp_path / name / WEIGHTS) for name in ("auto", "plain"))
    assert all(torch.equal(auto[name], plain[name]) for name in plain)


def test_resume_never_chooses_again(collection: Collection, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    finetune(collection, settings(tiny_run), tmp_path / "run", talk=SILENT)
    for name in ("by_validation", "by_sample"):
        monkeypatch.setattr(choice, name, lambda *_: pytest.fail("it chose again"))
    assert (tmp_path / "run" / STATE).exists()
    assert finetune(collection, settings(tiny_run), tmp_path / "run", resume=True, talk=SILENT).choice is None


def test_choosing_never_opens_the_test_split(collection: Collection, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = [record.image_id for record in collection.records]
    parts = {name: "test" if number % 3 == 0 else "val" if number % 3 == 1 else "train" for number, name in enumerate(names)}
    split = replace(collection, records=tuple(replace(record, split=parts[record.image_id]) for record in collection.records))
    seen: set[str] = set()
    before = choice.fold

    def spied(train, val, *rest):
        seen.update(record.image_id for record in (*train, *val))
        return before(train, val, *rest)

    monkeypatch.setattr(choice, "fold", spied)
    finetune(split, settings(tiny_run), tmp_path / "run", talk=SILENT)
    assert seen == {name for name in names if parts[name] != "test"}


def test_a_run_of_whole_towers_looks_at_real_batches(collection: Collection, tiny_run: Path, tmp_path: Path):
    summary = finetune(collection, settings(tiny_run, tune="full", epochs=1, lr=1e-4), tmp_path / "run", talk=SILENT)
    assert summary.choice is not None
    assert summary.choice.sample is not None
    assert summary.choice.sample.batches == 3  # all 20 training pictures in batches of at most 8
    assert summary.choice.sample.pairs == 20
    assert summary.choice.trials == ()


@pytest.mark.parametrize(("solved", "twins", "expected"), [
    (0.0, 0.0, ("info_nce", 0.0)), (0.09, 0.09, ("info_nce", 0.0)), (0.1, 0.0, ("hn_clip", 0.25)), (0.0, 0.1, ("hn_clip", 0.25)),
    (0.5, 0.0, ("hn_clip", 0.5)), (1.0, 1.0, ("hn_clip", 0.5))])
def test_the_rule_for_long_runs(solved: float, twins: float, expected: tuple[str, float]):
    objective, gamma, reason = rule(Sample(8, 256, solved, twins, 0.2))
    assert (objective, gamma) == expected
    assert f"solved on {100 * solved:.0f} %" in reason


def test_near_twins_are_counted_as_by_hand():
    """Captions at 0°, 0°, 90° and 180°: the first two are twins; the mean of the six pairs is (1 + 0 + 0 − 1 − 1 + 0) / 6."""
    text = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    batch = Batch(text, text, torch.arange(4))
    _, twins, mean, count = choice._look(text, text, batch, 10.0)
    assert (twins, count) == (0.5, 4)
    assert mean == pytest.approx(-1 / 6)
    grouped = Batch(text, text, torch.tensor([0, 0, 1, 2]))
    assert choice._look(text, text, grouped, 10.0)[1] == 0.0  # of one group: not each other's negatives


def test_folds_hold_every_record_once_and_no_burst_twice(collection: Collection):
    records = tuple(replace(record, burst=str(number // 3)) for number, record in enumerate(collection.records))
    parts = folds(records, 4, seed=0)
    assert sorted(record.image_id for part in parts for record in part) == sorted(record.image_id for record in records)
    bursts = [{record.burst for record in part} for part in parts]
    assert sum(len(found) for found in bursts) == len(set().union(*bursts)) == 8
    assert max(map(len, parts)) - min(map(len, parts)) <= 3


def test_gamma_without_an_objective_means_hn_clip():
    assert load_config(overrides=[("train.gamma", 0.3)]).train.objective == "hn_clip"
    assert load_config(overrides=[("train.lr", 0.3)]).train.objective == "auto"
    assert load_config(overrides=[("train.gamma", 0.3), ("train.objective", "auto")]).train.objective == "auto"


def test_the_mean_of_both_directions_weighs_them_alike():
    class Known:
        def text_to_image(self, depth: int):
            return type("Ranks", (), {"rank": np.array([1.0, 1.0, 1.0, 1.0])})

        def image_to_text(self, depth: int):
            return type("Ranks", (), {"rank": np.array([2.0, 2.0])})

    values = choice._reciprocal_ranks(Known())  # type: ignore[arg-type]
    assert values.mean() == pytest.approx(0.75)


def scores(**means: list[list[float]]) -> choice._Seen:
    """Reciprocal ranks of two splits of four queries each, the same four pictures in both."""
    by_name = {name: [np.array(part) for part in parts] for name, parts in means.items()}
    return choice._Seen(dict(zip(CANDIDATES, by_name.values(), strict=True)), [["a", "b", "c", "d"]] * 2)


def test_a_candidate_is_told_from_the_best_where_all_pictures_say_so():
    low, high = [[0.1, 0.2, 0.1, 0.2]] * 2, [[0.5, 0.6, 0.5, 0.6]] * 2
    assert choice._not_told(scores(a=low, b=high, c=low)) == [CANDIDATES[1]]
    assert choice._not_told(scores(a=high, b=low, c=high)) == [CANDIDATES[0], CANDIDATES[2]]
    mixed = [[0.9, 0.1, 0.9, 0.1], [0.9, 0.1, 0.9, 0.1]]  # twice as good on half of the pictures, half as good on the others
    even = [[0.5, 0.6, 0.5, 0.5], [0.5, 0.4, 0.5, 0.5]]
    assert choice._not_told(scores(a=even, b=mixed, c=low)) == [CANDIDATES[0], CANDIDATES[1]]


def test_a_picture_is_one_cluster_in_all_rounds():
    """Two splits with four pictures each, the same ones: four clusters, not eight."""
    assert scores(a=[[1.0] * 4] * 2, b=[[1.0] * 4] * 2, c=[[1.0] * 4] * 2).clusters().tolist() == [0, 1, 2, 3] * 2
