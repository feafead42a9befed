from __future__ import annotations

import json
import math
import struct
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import load, make_photos, make_tiny
from PIL import Image
from safetensors.torch import load_file

from densecap_search.collection.readers import read_collection
from densecap_search.config import load_config
from densecap_search.errors import CollectionError, ConfigError, MissingPackage, ModelError, RunError, TrainingStopped
from densecap_search.evaluation.evaluate import evaluate
from densecap_search.model.adapters import merged_state
from densecap_search.talk import SILENT, Talk
from densecap_search.training import loop
from densecap_search.training.loop import finetune, learning_rate
from densecap_search.training.run_folder import read_splits


def settings(model: Path, **train):
    values = {"epochs": 2, "batch_size": 8, "lr": 1e-3, "tune": "heads", "objective": "hn_clip", **train}
    return load_config(overrides=[("model.name", str(model)), *((f"train.{key}", value) for key, value in values.items())])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "weights.safetensors")


def log(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def assert_same(first: dict, second: dict, tolerance: float = 1e-6) -> None:
    assert set(first) == set(second)
    for name in first:
        assert torch.allclose(first[name], second[name], atol=tolerance), name


@pytest.mark.parametrize("tune", ["heads", "full"])
def test_training_learns_and_leaves_a_whole_run_folder(collection, tiny_run, tmp_path: Path, tune: str):
    config = settings(tiny_run, tune=tune, epochs=12, lr=5e-3 if tune == "full" else 2e-2)
    summary = finetune(collection, config, tmp_path / "run", talk=SILENT)
    rows = log(tmp_path / "run")
    assert rows[0]["epoch"] == 0
    assert rows[0]["loss"] is None
    assert rows[0]["val"]["text_to_image"]["R@1"] >= 0
    assert rows[-1]["loss"] < 0.8 * rows[1]["loss"]
    assert summary.steps == rows[-1]["step"] == config.train.epochs * math.ceil(20 / 8)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names - {"curves.png"} == {"weights.safetensors", "model.json", "preprocess.json", "config.yaml", "split.json", "log.jsonl",
                                      "best.json", "state.pt"}
    trained = load(str(tmp_path / "run"))
    assert trained.fingerprint() != load(str(tiny_run)).fingerprint()
    splits, hashes = read_splits(tmp_path / "run")
    assert [split for split, _ in splits.values()].count("val") == 2
    assert [split for split, _ in splits.values()].count("test") == 2
    assert len(hashes) == 20


def test_heads_leave_the_towers_alone(collection, tiny_run, tmp_path: Path):
    finetune(collection, settings(tiny_run, checkpoint="last"), tmp_path / "run", talk=SILENT)
    before, after = load_file(tiny_run / "weights.safetensors"), weights(tmp_path / "run")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"visual.proj", "text.text_projection", "logit_scale"}


class _StopAt:
    """Raises KeyboardInterrupt in the middle of a step, as a signal between forward and backward would."""

    def __init__(self, step: int) -> None:
        self.left = step

    def __call__(self, *args, **kwargs):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return self.original(*args, **kwargs)


@pytest.mark.parametrize("tune", ["heads", "full", *(pytest.param(tune, marks=pytest.mark.slow) for tune in ("last:1", "lora", "dora"))])
def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    collection, tiny_run, tmp_path: Path, monkeypatch, tune: str
):
    config = settings(tiny_run, tune=tune, epochs=3, checkpoint="last", ema=0.9, batches="neighbours", diagnose=2)
    finetune(collection, config, tmp_path / "whole", talk=SILENT)

    stop = _StopAt(4)  # within the second epoch of 3 steps
    stop.original = loop._Job._backward
    monkeypatch.setattr(loop._Job, "_backward", lambda self, batch: stop(self, batch))
    with pytest.raises(KeyboardInterrupt):
        finetune(collection, config, tmp_path / "parts", talk=SILENT)
    monkeypatch.undo()
    assert torch.load(tmp_path / "parts" / "state.pt", weights_only=True)["step"] == 4
    finetune(collection, config, tmp_path / "parts", resume=True, talk=SILENT)

    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    for whole, parts in zip(log(tmp_path / "whole"), log(tmp_path / "parts"), strict=True):
        assert whole.get("val") == parts.get("val")
        assert (whole.get("step"), whole.get("epoch")) == (parts.get("step"), parts.get("epoch"))


def test_one_bar_counts_the_steps_of_the_whole_run_and_of_what_is_left_of_a_resumed_one(collection, tiny_run, tmp_path: Path, monkeypatch):
    bars: list[list] = []

    @contextmanager
    def progress(what: str, total: int, unit: str):
        bars.append([what, total, 0])
        bar = bars[-1]
        yield lambda steps: bar.__setitem__(2, bar[2] + steps)

    config, talk = settings(tiny_run, epochs=3), Talk(progress=progress)
    stop = _StopAt(4)
    stop.original = loop._Job._backward
    monkeypatch.setattr(loop._Job, "_backward", lambda self, batch: stop(self, batch))
    with pytest.raises(KeyboardInterrupt):
        finetune(collection, config, tmp_path / "run", talk=talk)
    monkeypatch.undo()
    finetune(collection, config, tmp_path / "run", resume=True, talk=talk)
    assert [bar for bar in bars if bar[0] == "training"] == [["training", 9, 4], ["training", 5, 5]]


def test_resuming_a_finished_run_changes_nothing(collection, tiny_run, tmp_path: Path):
    config = settings(tiny_run)
    finetune(collection, config, tmp_path / "run", talk=SILENT)
    before = weights(tmp_path / "run")
    finetune(collection, config, tmp_path / "run", resume=True, talk=SILENT)
    assert_same(before, weights(tmp_path / "run"), 0)


def test_a_run_of_two_processes_is_not_resumed_by_one(collection, tiny_run, tmp_path: Path):
    finetune(collection, settings(tiny_run), tmp_path / "run", talk=SILENT)
    state = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert state["processes"] == 1
    torch.save(state | {"processes": 2}, tmp_path / "run" / "state.pt")
    with pytest.raises(RunError, match="was begun by 2 processes and cannot be continued by 1; start as many as then"):
        finetune(collection, settings(tiny_run), tmp_path / "run", resume=True, talk=SILENT)


def test_a_folder_with_a_run_is_not_overwritten_and_a_changed_collection_not_resumed(collection, tiny_run, tmp_path):
    finetune(collection, settings(tiny_run), tmp_path / "run", talk=SILENT)
    with pytest.raises(RunError, match=r"run holds a run already; continue it with --resume"):
        finetune(collection, settings(tiny_run), tmp_path / "run", talk=SILENT)
    fewer = replace(collection, records=collection.records[:-1])
    with pytest.raises(RunError, match=r"has changed since .*run was begun"):
        finetune(fewer, settings(tiny_run), tmp_path / "run", resume=True, talk=SILENT)
    with pytest.raises(RunError, match=r"new holds no run: there is nothing to resume"):
        finetune(collection, settings(tiny_run), tmp_path / "new", resume=True, talk=SILENT)


def test_a_loss_that_is_not_finite_stops_with_its_step_and_keeps_the_last_good_checkpoint(
    collection, tiny_run, tmp_path: Path, monkeypatch
):
    calls = iter(range(100))
    original = loop._Job.loss_of
    monkeypatch.setattr(loop._Job, "loss_of", lambda self, *batch: original(self, *batch) * (
        float("nan") if next(calls) == 4 else 1.0))
    with pytest.raises(TrainingStopped, match=r"the loss became nan at step 5; the last good checkpoint is in .*run"):
        finetune(collection, settings(tiny_run, checkpoint="last", epochs=3), tmp_path / "run", talk=SILENT)
    assert [row["epoch"] for row in log(tmp_path / "run") if "epoch" in row] == [0, 1]
    kept = weights(tmp_path / "run")
    assert all(torch.isfinite(value).all() for value in kept.values())
    assert not torch.equal(kept["visual.proj"], load_file(tiny_run / "weights.safetensors")["visual.proj"])


def stop_by_nan(monkeypatch, at: int) -> None:
    """From that call of the loss on (counted from 0) it is no number, while the rate is as high as it was."""
    calls, original = iter(range(1000)), loop._Job.loss_of
    monkeypatch.setattr(loop._Job, "loss_of", lambda self, *batch: original(self, *batch) * (
        float("nan") if next(calls) >= at and self.train.lr > 0.5 else 1.0))


def test_after_a_loss_that_is_no_number_a_lower_rate_goes_on_from_the_end_of_the_epoch_before(
    collection, tiny_run, tmp_path: Path, monkeypatch
):
    """3 steps an epoch; the loss of step 5 is no number. Expected: an epoch at the high rate, then two at the low one."""
    high, low = (settings(tiny_run, lr=lr, checkpoint="last", epochs=3) for lr in (1.0, 1e-3))
    stop_by_nan(monkeypatch, at=4)
    with pytest.raises(TrainingStopped, match=r"the loss became nan at step 5; .* go on from step 3 with --resume and a lower --lr \(it was 1\)"):
        finetune(collection, high, tmp_path / "run", talk=SILENT)
    after_one_epoch = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert after_one_epoch["step"] == 3
    finetune(collection, low, tmp_path / "run", resume=True, talk=SILENT)

    rows = log(tmp_path / "run")
    assert [(row["attempt"], row.get("epoch"), row["step"]) for row in rows] == [
        (1, 0, 0), (1, 1, 3), (1, None, 4), (2, None, 3), (2, 2, 6), (2, 3, 9)]
    assert "the loss became nan at step 5" in rows[2]["stopped"]
    assert rows[3] == {"attempt": 2, "step": 3, "lr": 1e-3, "precision": "fp32"}
    assert load_config(tmp_path / "run" / "config.yaml").train.lr == 1e-3
    rates = [learning_rate(step, 9, 1e-3, low.train.warmup) for step in (5, 8)]
    assert [row["lr"] for row in rows[4:]] == pytest.approx(rates)
    moved = weights(tmp_path / "run")["visual.proj"] - after_one_epoch["weights"]["visual.proj"]
    assert 0 < moved.abs().max() <= 6 * 1e-3 * 1.5  # AdamW moves a weight by about its rate a step


def test_a_stop_at_the_first_step_after_the_last_state_does_not_advise_another_rate(collection, tiny_run, tmp_path, monkeypatch):
    stop_by_nan(monkeypatch, at=3)
    with pytest.raises(TrainingStopped, match=r"nan at step 4; .* try --resume --precision fp32, or train anew into another"):
        finetune(collection, settings(tiny_run, lr=1.0), tmp_path / "run", talk=SILENT)


@pytest.mark.parametrize(("bad", "sentence"), [
    (math.nan, r"visual.proj was no longer finite after step 6; "), (3e38, r"after step 6 the model returns vectors that are not finite")])
def test_weights_that_give_no_numbers_after_an_epoch_are_not_saved(
    collection, tiny_run, tmp_path, monkeypatch, bad: float, sentence: str
):
    """As a gradient that is no number leaves them, where the loss was one."""
    original = loop._Job._update

    def update(job) -> None:
        original(job)
        if job.at.step == 5:
            job.trained["visual.proj"].data.fill_(bad)

    monkeypatch.setattr(loop._Job, "_update", update)
    with pytest.raises(TrainingStopped, match=sentence + r".* go on from step 3"):
        finetune(collection, settings(tiny_run, epochs=3), tmp_path / "run", talk=SILENT)
    state = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert state["step"] == 3
    assert state["weights"]["visual.proj"].abs().max() < 10


def test_the_zero_shot_model_may_win(collection, tiny_run, tmp_path: Path):
    summary = finetune(collection, settings(tiny_run, lr=1e-9), tmp_path / "run", talk=SILENT)
    assert summary.kept_epoch == 0
    assert json.loads((tmp_path / "run" / "best.json").read_text())["epoch"] == 0
    assert_same(weights(tmp_path / "run"), load_file(tiny_run / "weights.safetensors"), 0)


def test_the_scale_stays_within_1_and_100(collection, tiny_run, tmp_path: Path):
    for start, name in ((1.0, "low"), (100.0, "high")):
        config = settings(tiny_run, lr=1.0, init_logit_scale=start, epochs=4, checkpoint="last")
        finetune(collection, config, tmp_path / name, talk=SILENT)
        scales = [row["logit_scale"] for row in log(tmp_path / name)]
        assert all(1 - 1e-5 <= scale <= 100 + 1e-3 for scale in scales), scales
    assert scales[-1] < 99  # at lr 1 it does move
    config = settings(tiny_run, logit_scale="frozen", init_logit_scale=50.0)
    finetune(collection, config, tmp_path / "frozen", talk=SILENT)
    assert {round(row["logit_scale"], 3) for row in log(tmp_path / "frozen")} == {50.0}


def test_too_few_pairs_shrink_the_batch_with_a_notice(collection, tiny_run, tmp_path: Path):
    said: list[str] = []
    few = replace(collection, records=collection.records[:10])
    summary = finetune(few, settings(tiny_run, batch_size=64), tmp_path / "run", talk=Talk(say=said.append))
    assert summary.steps == 2
    assert "only 8 pairs: the batch size is 8, not 64" in said


def test_a_single_pair_is_told_that_nothing_will_change(collection, tiny_run, tmp_path: Path):
    said: list[str] = []
    one = replace(collection, records=collection.records[:1])
    summary = finetune(one, settings(tiny_run), tmp_path / "run", talk=Talk(say=said.append))
    assert summary.steps == 2
    assert "batches of a single pair have no negatives: the loss is 0 and nothing will change" in said


@pytest.mark.parametrize("tune", ["heads", "full"])
def test_broken_pictures_are_skipped_and_named_or_an_error_if_strict(photos, tiny_run, tmp_path: Path, tune: str):
    broken = photos / "red-left-ball.png"
    broken.write_bytes(broken.read_bytes()[:60])
    (photos / "blue-left-box.png").write_bytes(b"")
    collection = read_collection(photos)
    summary = finetune(collection, settings(tiny_run, tune=tune), tmp_path / "run", talk=SILENT)
    assert sorted(Path(skip.path).name for skip in summary.skipped) == ["blue-left-box.png", "red-left-ball.png"]
    with pytest.raises(CollectionError, match=r"2 pictures cannot be used, the first: .*blue-left-box\.png: empty file"):
        finetune(collection, settings(tiny_run, tune=tune), tmp_path / "strict", strict=True, talk=SILENT)


def test_truncated_captions_are_counted(photos, tiny_run, tmp_path: Path):
    for side in photos.glob("*.txt"):
        side.write_text("word " * 400)
    said: list[str] = []
    finetune(read_collection(photos), settings(tiny_run), tmp_path / "run", talk=Talk(say=said.append))
    assert any(line.startswith("24 of 24 captions were cut to the window of 248 tokens: 38.3 %") for line in said), said


def test_copies_of_a_picture_and_of_a_caption_are_never_negatives(photos, tiny_run, tmp_path: Path):
    Image.open(photos / "red-left-ball.png").save(photos / "copy.bmp")
    (photos / "copy2.png").write_bytes((photos / "red-left-ball.png").read_bytes())
    (photos / "copy2.txt").write_text("the same pixels in other words")
    (photos / "copy.txt").write_text((photos / "blue-left-box.txt").read_text())
    said: list[str] = []
    finetune(read_collection(photos), settings(tiny_run, seed=3), tmp_path / "run", talk=Talk(say=said.append))
    assert any("share a picture or a caption with another; they are never each other's negatives" in line for line in said)


def test_the_learning_rate_warms_up_and_falls_to_zero_worked_by_hand():
    rates = [learning_rate(step, 10, 1.0, 0.2) for step in range(10)]
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert rates[6] == pytest.approx(0.5 * (1 + math.cos(math.pi * 4 / 8)))
    assert rates[9] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    assert learning_rate(0, 1, 1.0, 0.5) == 1.0


def test_micro_batches_train_the_same_weights_as_whole_batches(collection, tiny_run, tmp_path: Path):
    for name, micro in (("whole", None), ("parts", 3)):
        finetune(collection, settings(tiny_run, tune="full", micro_batch=micro, checkpoint="last", epochs=1, lr=1e-4),
                 tmp_path / name, talk=SILENT)
    assert log(tmp_path / "whole")[1]["loss"] == pytest.approx(log(tmp_path / "parts")[1]["loss"], abs=1e-4)
    assert_same(weights(tmp_path / "whole"), weights(tmp_path / "parts"), 3e-4)  # three steps of Adam at 1e-4


@pytest.mark.parametrize("objective", ["info_nce", "constant_margin", "label_smoothing"])
def test_other_objectives_train(collection, tiny_run, tmp_path: Path, objective: str):
    config = settings(tiny_run, objective=objective, lr=2e-2, epochs=8)
    finetune(collection, config, tmp_path / "run", talk=SILENT)
    rows = log(tmp_path / "run")
    assert rows[-1]["loss"] < rows[1]["loss"]


@pytest.mark.parametrize("similarity", ["frozen", "centred"])
def test_the_kinds_of_similarity_train(collection, tiny_run, tmp_path: Path, similarity: str):
    config = settings(tiny_run, similarity=similarity, guard=0.9999, lr=2e-2, epochs=6, micro_batch=5)
    finetune(collection, config, tmp_path / "run", talk=SILENT)
    rows = log(tmp_path / "run")
    assert rows[-1]["loss"] < rows[1]["loss"]


def test_gamma_rises_from_zero_over_its_warm_up(collection, tiny_run, tmp_path: Path, monkeypatch):
    seen: list[float] = []
    original = loop.OBJECTIVES["hn_clip"].loss

    def hn_clip(*args, gamma: float, **options):
        seen.append(gamma)
        return original(*args, gamma=gamma, **options)

    monkeypatch.setitem(loop.OBJECTIVES, "hn_clip", replace(loop.OBJECTIVES["hn_clip"], loss=hn_clip))
    finetune(collection, settings(tiny_run, gamma=0.4, gamma_warmup=0.5), tmp_path / "run", talk=SILENT)
    assert seen == pytest.approx([0.0, 0.4 / 3, 0.8 / 3, 0.4, 0.4, 0.4])  # six steps, three of them warm-up


def test_siglip_needs_a_bias_and_says_so(collection, tiny_run, tmp_path: Path):
    with pytest.raises(ConfigError, match="the objective siglip needs a model with a logit_bias, which tiny lacks"):
        finetune(collection, settings(tiny_run, objective="siglip"), tmp_path / "run", talk=SILENT)


def test_the_average_of_the_weights_is_measured_kept_and_resumed(collection, tiny_run, tmp_path: Path):
    finetune(collection, settings(tiny_run, ema=1.0, lr=1e-2, checkpoint="last"), tmp_path / "still", talk=SILENT)
    kept, start = weights(tmp_path / "still"), load_file(tiny_run / "weights.safetensors")
    assert torch.allclose(kept["visual.proj"], start["visual.proj"], atol=1e-7)  # a decay of 1 never moves
    assert [row["weights"] for row in log(tmp_path / "still")] == ["trained", "average", "average"]
    moved = torch.load(tmp_path / "still" / "state.pt", weights_only=True)["weights"]["visual.proj"]
    assert not torch.allclose(moved, start["visual.proj"], atol=1e-4)


def test_interpolation_by_number_is_the_mean_of_both_models(collection, tiny_run, tmp_path: Path):
    for name, alpha in (("tuned", None), ("half", "0.5")):
        finetune(collection, settings(tiny_run, lr=1e-2, checkpoint="last", interpolate=alpha), tmp_path / name, talk=SILENT)
    start, tuned, half = load_file(tiny_run / "weights.safetensors"), weights(tmp_path / "tuned"), weights(tmp_path / "half")
    for name in start:
        assert torch.allclose(half[name], (start[name] + tuned[name]) / 2, atol=1e-7), name
    assert torch.equal(half["visual.conv1.weight"], start["visual.conv1.weight"])
    config = settings(tiny_run, lr=1e-2, checkpoint="last", interpolate="0.5")
    finetune(collection, config, tmp_path / "half", resume=True, talk=SILENT)
    assert_same(weights(tmp_path / "half"), half, 0)


def test_interpolation_is_chosen_on_val_and_on_what_must_be_kept(photos, collection, tiny_run, tmp_path: Path):
    config = settings(tiny_run, lr=5e-2, epochs=8, checkpoint="last", interpolate="auto")
    config = replace(config, data=replace(config.data, retain=str(photos), val_share=0.3))
    summary = finetune(collection, config, tmp_path / "run", talk=SILENT)
    curve = summary.interpolation
    assert curve.alphas == tuple(step / 10 for step in range(11))
    total = [a + b for a, b in zip(curve.val, curve.retain, strict=True)]
    assert total[curve.alphas.index(curve.alpha)] == max(total)
    assert json.loads((tmp_path / "run" / "interpolation.json").read_text())["alpha"] == curve.alpha


def test_a_run_that_was_killed_before_its_weights_were_mixed_mixes_them_once(collection, tiny_run, tmp_path: Path):
    for name, alpha in (("tuned", None), ("half", "0.5")):
        finetune(collection, settings(tiny_run, lr=1e-2, checkpoint="last", interpolate=alpha), tmp_path / name, talk=SILENT)
    half, config = weights(tmp_path / "half"), settings(tiny_run, lr=1e-2, checkpoint="last", interpolate="0.5")
    # a kill between the choice and the weights: the choice is there, the weights are still the tuned ones
    (tmp_path / "tuned" / "weights.safetensors").replace(tmp_path / "half" / "weights.safetensors")
    for _ in range(2):
        summary = finetune(collection, config, tmp_path / "half", resume=True, talk=SILENT)
        assert_same(weights(tmp_path / "half"), half, 0)
        assert summary.interpolation.alpha == 0.5


def test_what_must_be_kept_is_measured_without_pictures_that_are_too_large(photos, collection, tiny_run, tmp_path: Path):
    curves = []
    for name in ("plain", "with large ones"):
        config = settings(tiny_run, lr=5e-2, epochs=4, checkpoint="last", interpolate="auto")
        config = replace(config, data=replace(config.data, retain=str(tmp_path / "retain"), max_pixels=2000))
        make_photos(tmp_path / "retain")  # 32 × 32 pixels
        if name == "with large ones":
            for path in sorted((tmp_path / "retain").glob("*-left-*.png")):
                with Image.open(path) as image:
                    image.resize((64, 64)).save(path.with_stem(f"{path.stem}-large"))
                path.with_stem(f"{path.stem}-large").with_suffix(".txt").write_text(f"Larger: {path.stem}")
        curves.append(finetune(collection, config, tmp_path / name, talk=SILENT).interpolation)
    assert curves[0].retain == curves[1].retain


@pytest.mark.curves
def test_saturation_is_measured_every_few_steps_and_drawn(collection, tiny_run, tmp_path: Path):
    config = settings(tiny_run, diagnose=2, epochs=3, init_logit_scale=100.0)
    summary = finetune(collection, config, tmp_path / "run", talk=SILENT)
    measured = [row["diagnose"] for row in log(tmp_path / "run") if "diagnose" in row]
    assert [row["step"] for row in measured] == [0, 2, 4, 6, 8]
    assert summary.saturated == sum(row["saturated"] for row in measured) / 5
    assert {"info_nce", "objective", "cosine", "similarity_mean", "smallest_gap"} <= set(measured[0])
    matplotlib = pytest.importorskip("matplotlib")
    assert matplotlib
    for name in ("curves.png", "diagnosis.png"):
        with Image.open(tmp_path / "run" / name) as image:
            assert image.size[0] > 800


@pytest.mark.parametrize("tune", ["lora", "dora"])
def test_a_run_with_adapters_keeps_merged_weights_and_saves_only_what_changes(collection, tiny_run, tmp_path: Path, tune: str):
    config = settings(tiny_run, tune=tune, rank=4, epochs=12, lr=2e-2, checkpoint="last")
    finetune(collection, config, tmp_path / "run", talk=SILENT)
    rows = log(tmp_path / "run")
    assert rows[-1]["loss"] < 0.8 * rows[1]["loss"]
    before, after = load_file(tiny_run / "weights.safetensors"), weights(tmp_path / "run")
    assert {name: value.shape for name, value in after.items()} == {name: value.shape for name, value in before.items()}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"visual.proj", "text.text_projection", "logit_scale", "visual.transformer.resblocks.0.attn.in_proj_weight",
            "text.transformer.resblocks.1.mlp.c_proj.weight"} <= changed
    assert not {"visual.conv1.weight", "text.token_embedding.weight", "text.ln_final.weight"} & changed
    state = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    adapter = load_file(tmp_path / "run" / "adapter.safetensors")
    assert set(state["weights"]) == set(adapter)
    assert all(torch.equal(value, adapter[name]) for name, value in state["weights"].items())
    splits, hashes = read_splits(tmp_path / "run")
    val = [record for record in collection.records if splits[record.image_id][0] == "val"]
    report = evaluate(load(str(tmp_path / "run")), val, model="run", collection="photos", splits=["val"],
                      trained=hashes, talk=SILENT)
    assert report.text_to_image.figures["R@1"].value == rows[-1]["val"]["text_to_image"]["R@1"]


def test_the_kept_epoch_of_adapters_is_what_the_folder_holds(collection, tiny_run, tmp_path: Path, monkeypatch):
    seen = {}

    def second_is_best(job, epoch):
        seen[epoch] = {name: value.clone() for name, value in merged_state(job.encoder).items()}
        figures = {"R@1": 20.0 if epoch == 2 else 10.0}
        return loop.Evaluated(epoch, job.at.step, {"text_to_image": figures, "image_to_text": figures})

    monkeypatch.setattr(loop._Job, "_validate", second_is_best)
    summary = finetune(collection, settings(tiny_run, tune="lora", lr=2e-2, epochs=4), tmp_path / "run", talk=SILENT)
    assert summary.kept_epoch == 2
    assert_same(weights(tmp_path / "run"), seen[2], 0)
    assert not torch.equal(seen[2]["visual.proj"], seen[4]["visual.proj"])


def test_the_zero_shot_model_may_win_over_adapters(collection, tiny_run, tmp_path: Path):
    summary = finetune(collection, settings(tiny_run, tune="dora", lr=1e-9), tmp_path / "run", talk=SILENT)
    assert summary.kept_epoch == 0
    assert_same(weights(tmp_path / "run"), load_file(tiny_run / "weights.safetensors"), 0)


def test_layer_decay_moves_the_lower_layers_less(collection, tiny_run, tmp_path: Path):
    before = load_file(tiny_run / "weights.safetensors")
    moved = {}
    for decay in (1.0, 0.1):
        config = settings(tiny_run, tune="full", layer_decay=decay, weight_decay=0.0, checkpoint="last")
        finetune(collection, config, tmp_path / str(decay), talk=SILENT)
        after = weights(tmp_path / str(decay))
        moved[decay] = {name: (after[name] - before[name]).abs().max().item() for name in before}
    assert moved[0.1]["visual.conv1.weight"] < 0.01 * moved[1.0]["visual.conv1.weight"]  # 0.1 cubed, 2 blocks below
    assert moved[0.1]["visual.proj"] == pytest.approx(moved[1.0]["visual.proj"], rel=0.5)
    assert log(tmp_path / "0.1")[1]["lr"] == log(tmp_path / "1.0")[1]["lr"]


def test_what_the_folder_says_is_best_is_what_its_weights_are(collection, tiny_run, tmp_path: Path, monkeypatch):
    """A kill may come at any time; the weights of the first seconds are only in state.pt."""
    seen = []
    original = loop._Job.save_state

    def save_state(job):
        original(job)
        said = json.loads((tmp_path / "run" / "best.json").read_text())["epoch"]
        untrained = torch.equal(weights(tmp_path / "run")["visual.proj"], load_file(tiny_run / "weights.safetensors")["visual.proj"])
        seen.append((said, untrained))

    monkeypatch.setattr(loop._Job, "save_state", save_state)
    finetune(collection, settings(tiny_run, checkpoint="last"), tmp_path / "run", talk=SILENT)
    assert seen == [(0, True)] * 3 + [(2, False)]  # the last one after the weights were written
    assert json.loads((tmp_path / "run" / "best.json").read_text())["epoch"] == 2


def test_splits_of_the_table_can_be_ignored_and_other_names_are_told(collection, tiny_run, tmp_path: Path):
    odd = replace(collection, records=tuple(
        replace(record, split="test" if number < 20 else "restval") for number, record in enumerate(collection.records)))
    with pytest.raises(CollectionError, match=r"has no split named train; it has restval, test; --set data\.use_split=false"):
        finetune(odd, settings(tiny_run), tmp_path / "run", talk=SILENT)
    config = settings(tiny_run)
    finetune(odd, replace(config, data=replace(config.data, use_split=False)), tmp_path / "run", talk=SILENT)
    some = replace(collection, records=tuple(
        replace(record, split="train" if number < 20 else "restval") for number, record in enumerate(collection.records)))
    said: list[str] = []
    finetune(some, config, tmp_path / "some", talk=Talk(say=said.append))
    assert "4 pictures are in other splits (restval) and are not used" in said


def test_pictures_without_a_caption_are_counted(photos, tiny_run, tmp_path: Path):
    (photos / "red-left-ball.txt").write_text("  \n")
    said: list[str] = []
    finetune(read_collection(photos), settings(tiny_run), tmp_path / "run", talk=Talk(say=said.append))
    assert "1 pictures have no caption and are not trained on" in said
    splits = json.loads((tmp_path / "run" / "split.json").read_text())
    assert "red-left-ball.png" not in json.dumps(splits)
    assert "red-right-ball.png" in json.dumps(splits)


def test_what_cannot_train_is_refused_before_a_picture_is_read(collection, tiny_run, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(loop, "prepare", lambda *args: pytest.fail("the collection was read"))
    with pytest.raises(ModelError, match="more blocks than the image tower of tiny has: 2"):
        finetune(collection, settings(tiny_run, tune="last:99"), tmp_path / "run", talk=SILENT)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingPackage, match="need the package peft"):
        finetune(collection, settings(tiny_run, tune="lora"), tmp_path / "run", talk=SILENT)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_late_interaction_trains_and_is_the_same_in_micro_batches(collection, tiny_run, tmp_path: Path, micro_batch):
    config = settings(tiny_run, tune="full", late_interaction=1.0, epochs=1, lr=1e-4, micro_batch=micro_batch)
    finetune(collection, config, tmp_path / "run", talk=SILENT)
    plain = settings(tiny_run, tune="full", epochs=1, lr=1e-4)
    finetune(collection, plain, tmp_path / "plain", talk=SILENT)
    loss, without = (log(tmp_path / name)[1]["loss"] for name in ("run", "plain"))
    assert loss > without + 0.5  # the term of random tokens is about ln 7
    with pytest.raises(ConfigError, match="choose another tune mode than heads"):
        finetune(collection, settings(tiny_run, late_interaction=1.0), tmp_path / "heads", talk=SILENT)


@pytest.mark.parametrize("option", ["checkpointing", "compile"])
def test_options_that_save_memory_or_time_change_no_result(collection, tiny_run, tmp_path: Path, option: str, monkeypatch):
    if option == "compile":  # what is compiled is torch's matter; that both towers are asked to is ours
        asked = []
        monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: asked.append(type(self).__name__))
    for name, value in (("plain", False), ("option", True)):
        config = settings(tiny_run, tune="full", epochs=1, lr=1e-4, checkpoint="last", **{option: value})
        finetune(collection, config, tmp_path / name, talk=SILENT)
    assert_same(weights(tmp_path / "plain"), weights(tmp_path / "option"), 3e-4)
    if option == "compile":
        assert asked == ["VisionTransformer", "TextTransformer"]


@pytest.mark.slow
def test_a_fraction_of_the_training_pictures_is_used_and_the_split_seed_holds_the_splits(collection, tiny_run, tmp_path):
    def split(name: str, seed: int, **data: float) -> dict:
        config = load_config(overrides=[("model.name", str(tiny_run)), ("train.epochs", 1), ("train.tune", "heads"),
                                        ("train.seed", seed), *((f"data.{key}", value) for key, value in data.items())])
        finetune(collection, config, tmp_path / name, talk=SILENT)
        return json.loads((tmp_path / name / "split.json").read_text())

    whole, half, other = split("a", 0, split_seed=5), split("b", 0, split_seed=5, fraction=0.5), split("c", 1, split_seed=5)
    assert len(half["train"]) == len(whole["train"]) / 2
    assert set(half["train"]) < set(whole["train"])
    assert (half["val"], half["test"]) == (whole["val"], whole["test"])
    assert (other["train"], other["test"]) == (whole["train"], whole["test"])
    assert split("d", 1)["test"] != whole["test"]


def test_validation_of_heads_reads_the_towers_once(collection, tiny_run, tmp_path: Path, monkeypatch):
    asked = []
    whole = loop.pair_rows
    monkeypatch.setattr(loop, "pair_rows", lambda *args, **options: asked.append(options["cached"]) or whole(*args, **options))
    finetune(collection, settings(tiny_run, epochs=3), tmp_path / "heads", talk=SILENT)
    assert asked == [True]
    finetune(collection, settings(tiny_run, tune="full", epochs=2, lr=1e-4), tmp_path / "full", talk=SILENT)
    assert asked == [True, True, False, False]


def test_one_fused_step_leaves_the_weights_of_one_that_is_not():
    weights = []
    for fused in (False, True):
        encoder = make_tiny()
        optimizer = torch.optim.AdamW(encoder.model.parameters(), lr=1e-5, weight_decay=0.05, fused=fused)
        features = encoder.encode_text(encoder.tokenize(["a red ball", "a blue box on the left"]).ids)
        (features[0] @ features[1]).backward()
        optimizer.step()
        weights.append(torch.cat([value.detach().flatten() for value in encoder.model.parameters()]))
    assert not torch.equal(weights[0], torch.cat([v.detach().flatten() for v in make_tiny().model.parameters()]))
    assert (weights[1] - weights[0]).norm() <= 1e-6 * weights[0].norm()


def test_patience_ends_a_run_that_gets_no_better_and_resume_does_not_go_on(collection, tiny_run, tmp_path: Path):
    config = settings(tiny_run, epochs=50, lr=1e-9, patience=2)  # so slow that nothing changes
    said: list[str] = []
    summary = finetune(collection, config, tmp_path / "run", talk=Talk(say=said.append))
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert summary.kept_epoch == 0
    assert any("the last 2 epochs were no better on validation than epoch 0" in line for line in said)
    finetune(collection, config, tmp_path / "run", resume=True, talk=SILENT)
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 3


def test_a_tower_with_the_factor_0_stays_as_it_is(collection, tiny_run, tmp_path: Path):
    finetune(collection, settings(tiny_run, tune="full", lr=1e-2, epochs=1, text_lr=0.0, checkpoint="last"), tmp_path / "run", talk=SILENT)
    before, after = weights(tiny_run), weights(tmp_path / "run")
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("text."))
    assert not torch.equal(before["visual.conv1.weight"], after["visual.conv1.weight"])


def read_wandb(file: Path) -> list[dict]:
    """The logged rows of one of wandb's files: LevelDB's log format after 7 bytes of their own."""
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    raw, at, whole, rows = file.read_bytes(), 7, b"", []
    while at + 7 <= len(raw):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, part = struct.unpack("<HB", raw[at + 4:at + 7])
        whole, at = whole + raw[at + 7:at + 7 + length], at + 7 + length
        if part in (1, 4):  # whole, or the last of several
            record, whole = records.Record.FromString(whole), b""
            if record.WhichOneof("record_type") == "history":
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item})
    return rows


@pytest.mark.slow
def test_wandb_keeps_the_figures_of_every_epoch_offline_and_a_resumed_run_is_the_same_one(collection, tiny_run, tmp_path: Path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = tmp_path / "run"
    finetune(collection, settings(tiny_run, wandb=True, epochs=1), run, talk=SILENT)
    finetune(collection, settings(tiny_run, wandb=True), run, resume=True, talk=SILENT)
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    assert {file.name for file in files} == {f"run-{(run / 'wandb' / 'run-id.txt').read_text()}.wandb"}
    found = [row for file in files for row in read_wandb(file)]
    rows = log(run)
    assert [row["epoch"] for row in found] == [row["epoch"] for row in rows] == [0, 1, 2]
    assert [row.get("loss") for row in found] == [row["loss"] for row in rows]
    assert [row["val text_to_image/R@1"] for row in found] == [row["val"]["text_to_image"]["R@1"] for row in rows]
    assert "wandb" in (run / "config.yaml").read_text()


def test_wandb_is_not_touched_unless_it_is_asked_for_and_named_where_it_is_missing(collection, tiny_run, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    finetune(collection, settings(tiny_run, epochs=1), tmp_path / "plain", talk=SILENT)
    assert not (tmp_path / "plain" / "wandb").exists()
    with pytest.raises(MissingPackage, match=r"densecap-search\[wandb\]"):
        finetune(collection, settings(tiny_run, epochs=1, wandb=True), tmp_path / "run", talk=SILENT)


def test_tensorboard_reads_the_figures_of_every_epoch(collection, tiny_run, tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    finetune(collection, settings(tiny_run, tensorboard=True), tmp_path / "run", talk=SILENT)
    found = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    rows = [row for row in log(tmp_path / "run") if "epoch" in row]
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(row["epoch"], pytest.approx(row["loss"])) for row in rows[1:]]
    recall = found.Scalars("val text_to_image/R@1")
    assert [(event.step, event.value) for event in recall] == [(row["epoch"], pytest.approx(row["val"]["text_to_image"]["R@1"])) for row in rows]
