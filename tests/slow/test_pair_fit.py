"""Captions that were swapped on purpose among real photographs, and photographs of which nothing is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection
from densecap_search.config import ModelConfig
from densecap_search.inspection.crops import look_for_crops
from densecap_search.inspection.geometry import look_at_captions
from densecap_search.inspection.inspect import inspect
from densecap_search.inspection.pair_fit import look_at_pairs
from densecap_search.inspection.pictures import look_at_pictures
from densecap_search.model.loading import load_encoder

pytestmark = pytest.mark.slow


@pytest.fixture
def flickr8k_test(real_data: Path) -> Collection:
    """992 pictures that the starter has never seen."""
    found = read_collection(real_data / "flickr8k" / "captions.jsonl")
    ids = set(json.loads((real_data / "flickr8k" / "splits.json").read_text())["test"])
    return replace(found, records=tuple(record for record in found.records if record.image_id in ids))


def test_forty_swapped_captions_of_992_are_found_among_the_worst(flickr8k_test: Collection):
    generator = np.random.default_rng(0)
    records = list(flickr8k_test.records)
    swapped = generator.choice(len(records), 40, replace=False).tolist()
    for row, other in zip(swapped, [*swapped[1:], swapped[0]], strict=True):
        records[row] = replace(records[row], captions=flickr8k_test.records[other].captions)
    planted = {records[row].image_id for row in swapped}
    encoder = load_encoder(ModelConfig(name="starter"), device="cpu")
    found = look_at_pairs(replace(flickr8k_test, records=tuple(records)), encoder, model="starter", batch_size=128, logit_scale=20.0)
    assert found is not None
    assert found.told_apart >= 0.95  # swapped ones among them; of the pairs as they were it is 0.99
    first = [pair.image_id in planted for pair in found.worst[:40]]
    assert sum(first) >= 30  # of 40; three quarters of those to look at first
    flagged = [pair.image_id in planted for pair in found.worst[: found.wrong]]
    assert sum(flagged) >= 0.8 * len(flagged) > 10
    # the area under the curve of the list itself: swapped ones stand before others
    ranks = [rank for rank, hit in enumerate(pair.image_id in planted for pair in found.worst) if hit]
    missed = len(swapped) - len(ranks)
    above = sum(rank - number for number, rank in enumerate(ranks)) + missed * (len(records) - len(swapped))  # missed: at worst last
    assert 1 - above / (len(swapped) * (len(records) - len(swapped))) >= 0.95


def test_nothing_is_to_mend_in_three_hundred_photographs_with_good_captions(flickr8k_test: Collection):
    clean = replace(flickr8k_test, records=flickr8k_test.records[:300])
    encoder = load_encoder(ModelConfig(name="starter"), device="cpu")
    settings = {"model": "starter", "batch_size": 128, "logit_scale": 20.0}
    crops = look_for_crops(clean.records, encoder)
    assert crops == []
    found = inspect(clean, look_at_pictures(clean.records), look_at_captions(clean, encoder, **settings),
                    look_at_pairs(clean, encoder, **settings), crops)
    assert [finding.what for finding in found.findings if finding.do] == []
    objective = found.suggestions[1]
    assert objective.words == "--objective info_nce"  # solved on 0 % of real batches
    assert found.fit is not None
    assert found.fit.solved == 0
