"""What the measurements speak for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from densecap_search.collection.records import Record
from densecap_search.inspection.duplicates import Near
from densecap_search.inspection.geometry import Geometry, Histogram, Prediction
from densecap_search.inspection.pair_fit import PairFit
from densecap_search.inspection.suggestions import command, count_training, suggest
from densecap_search.model.segments import Truncation

EMPTY = Histogram((), ())


def cut(window: int, share: float) -> Truncation:
    return Truncation(1000, round(10 * share), 100_000, 0, 600, window)


def geometry(shares: tuple[float, float, float, float], solved: float = 0.0, longest: int | None = None) -> Geometry:
    windows = tuple(cut(window, share) for window, share in zip((77, 128, 248, 512), shares, strict=True))
    cells = (Prediction(16, 20.0, 60.0, 1e-4), Prediction(128, 20.0, solved, 1e-2), Prediction(128, 100.0, 90.0, 1e-5))
    return Geometry("m", windows[2], windows, {}, EMPTY, longest, 0, 0.84, 0.05, {}, {}, {}, {}, 0.9, EMPTY, 0.9, Near((), ()),
                    20.0, 128, solved, cells)


def fit(solved: float) -> PairFit:
    return PairFit("m", 1000, 0.99, 0, (), 128, 20.0, solved, 0.1)


def records(train: int, **others: int) -> list[Record]:
    splits = ["train"] * train + [name for name, count in others.items() for _ in range(count)]
    return [Record(str(number), Path(f"{number}.png"), ("x",), split) for number, split in enumerate(splits)]


@pytest.mark.parametrize(("shares", "longest", "expected"), [
    ((4.9, 0, 0, 0), None, "--context-length 77"),
    ((94.5, 60, 3.8, 0.1), None, "--context-length 248"),  # DOCCI
    ((77.4, 70, 13.3, 2.0), None, "--context-length 512"),  # DCI
    ((99, 98, 97, 50), None, "--context-length 512"),
    ((77.4, 70, 13.3, 2.0), 256, "--context-length 256"),
    ((77.4, 4, 0, 0), 256, "--context-length 128"),
])
def test_the_window_is_the_smallest_usual_one_that_cuts_less_than_a_twentieth(shares, longest, expected: str):
    assert suggest(records(100), geometry(shares, longest=longest))[0].words == expected


@pytest.mark.parametrize(("solved", "expected"), [
    (0.0, "--objective info_nce"), (9.9, "--objective info_nce"), (10.0, "--objective hn_clip --gamma 0.25"),
    (80.0, "--objective hn_clip --gamma 0.5"),
])
def test_the_margin_follows_the_share_of_batches_that_are_solved(solved: float, expected: str):
    found = suggest(records(100), geometry((0, 0, 0, 0)), fit(solved))[1]
    assert found.words == expected
    assert f"InfoNCE is solved on {solved:.0f} % of batches of 128 of these pictures and captions" in found.reason
    assert found.reason.endswith("without --objective finetune tries the candidates itself, where only heads train, and "
                                 "takes what validation says")
    if "0.5" in expected:
        assert "0.42 ± 0.03 in cosine" in found.reason  # γ·Ḡ = 0.5 · (0.84 ± 0.05)


def test_no_objective_is_advised_where_the_pictures_were_not_encoded():
    assert [item.words.split()[0] for item in suggest(records(100), geometry((0, 0, 0, 0), 99.0))] == [
        "--context-length", "--batch-size"]


def test_what_is_suggested_is_one_command_to_paste():
    found = suggest(records(100), geometry((0, 0, 0, 0)), fit(0.0))
    assert command("runs/my model", found, "my photos") == (
        "densecap finetune 'my photos' --model 'runs/my model' --context-length 77 --objective info_nce --batch-size 16 -o runs/mine")


@pytest.mark.parametrize(("training", "expected"), [(10, 16), (511, 16), (512, 32), (2048, 128), (9450, 512), (20_000, 512)])
def test_the_batch_leaves_sixteen_batches_an_epoch(training: int, expected: int):
    found = suggest(records(training, val=1), None)
    assert [item.words for item in found] == [f"--batch-size {expected}"]
    assert f"{training} training pictures" in found[0].reason


def test_the_training_split_is_counted_as_finetune_would_make_it():
    plain = [replace(record, split=None) for record in records(100)]
    assert count_training(plain) == 80
    assert count_training(records(100, test=20)) == 90  # val is taken from train
    assert count_training(records(100, test=20, val=5)) == 100
    assert count_training([*plain, *records(0, val=3)]) == 100  # without a word: train
