from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import draw_photo, load, make_tiny

from densecap_search.cli import main
from densecap_search.collection.readers import read_collection
from densecap_search.config import ModelConfig
from densecap_search.embedding.content import read_contents
from densecap_search.embedding.towers import embed_images
from densecap_search.files import cache_folder
from densecap_search.model.device import HALVED
from densecap_search.model.trial import PICTURES, Tried, try_precisions
from densecap_search.retrieval.index import load_index
from densecap_search.retrieval.update import update_index


@pytest.mark.parametrize(("tried", "precision"), [
    (Tried(1.09, 1, 1), "fp32"), (Tried(1.1, 0.999, 0.995), HALVED), (Tried(3, 0.9989, 0.9989), "fp32"),
    (Tried(3, 0.9999, 0.9949), "fp32"), (Tried(0.56, 1, 1), "fp32"),
])
def test_float32_wins_within_a_tenth_and_where_vectors_are_not_near_enough(tried: Tried, precision: str):
    assert tried.precision == precision


def pixels() -> torch.Tensor:
    return torch.randint(0, 256, (PICTURES, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_a_trial_is_remembered_by_tower_and_a_small_job_has_none():
    encoder = make_tiny()
    assert try_precisions(encoder, pixels(), 1500) is None  # 10 passes over 8 pictures are more than a twentieth of it
    assert not (cache_folder() / "trials").exists()
    found = try_precisions(encoder, pixels(), 10_000_000)
    assert found is not None
    assert found.mean >= 0.99
    assert not encoder.halved
    assert try_precisions(encoder, pixels(), 50) == found  # to the last digit: it was not measured again
    assert try_precisions(make_tiny(seed=1), pixels(), 50) is None


def test_halved_weights_are_for_pictures_alone_and_have_a_cache_of_their_own(photos: Path):
    encoder = make_tiny()
    records, _ = read_contents(read_collection(photos).records)
    before, _ = embed_images(encoder, records)
    image, text = encoder.tower_fingerprint("image"), encoder.tower_fingerprint("text")
    encoder.halved = True
    after, _ = embed_images(encoder, records)
    assert after.encoded == len(records)
    assert (before.vectors * after.vectors).sum(axis=1).min() >= 0.99
    assert not np.array_equal(before.vectors, after.vectors)
    assert encoder.tower_fingerprint("image") != image
    assert encoder.tower_fingerprint("text") == text
    assert all(value.dtype == torch.float32 for value in encoder.model.visual.parameters())


def test_an_index_keeps_the_precision_that_it_was_made_with(photos: Path, tiny_run: Path, tmp_path: Path):
    encoder, index = load(str(tiny_run)), tmp_path / "index"
    encoder.halved = True
    update_index(read_collection(photos), encoder, ModelConfig(str(tiny_run)), index)
    assert load_index(index).manifest.precision == HALVED
    draw_photo(photos / "one-more.png", "red", "right", "ball")
    done = CliRunner().invoke(main, ["index", str(photos), "-o", str(index)])
    assert done.exit_code == 0, done.output
    assert load_index(index).manifest.precision == HALVED
    assert CliRunner().invoke(main, ["index", str(photos), "-o", str(index), "--rebuild", "--precision", "fp32"]).exit_code == 0
    assert load_index(index).manifest.precision == "fp32"


def test_an_index_made_in_bfloat16_by_hand_stays_so_unless_it_is_rebuilt(photos: Path, tiny_run: Path, tmp_path: Path):
    words = ["index", str(photos), "--model", str(tiny_run), "-o", str(tmp_path / "index")]
    precisions = []
    for more in (["--precision", "bf16"], [], ["--rebuild"]):
        draw_photo(photos / f"{len(precisions)}.png", "red", "right", "ball")
        done = CliRunner().invoke(main, [*words, *more])
        assert done.exit_code == 0, done.output
        precisions.append(load_index(tmp_path / "index").manifest.precision)
    assert precisions == ["bf16", "bf16", "fp32"]
