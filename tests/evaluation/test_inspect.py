from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import make_tiny

from densecap_search.evaluation.inspect import advise, ideal_loss, look_at_captions, take_inventory
from densecap_search.training.objectives import info_nce


def test_an_inventory_counts_pictures_captions_and_words(collection):
    records = list(collection.records)
    records[0] = replace(records[0], captions=())
    records[1] = replace(records[1], captions=records[2].captions, split="test")
    found = take_inventory(replace(collection, records=tuple(records)))
    assert (found.pictures, found.captions, found.without_caption, found.sharing_a_caption) == (24, 23, 1, 2)
    assert found.splits == {"(none)": 22, "test": 1}
    assert found.words["p50"] == 17


def test_the_ideal_loss_is_info_nce_of_pictures_that_lie_on_their_captions():
    vectors = torch.nn.functional.normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    groups = torch.tensor([0, 1, 2, 3, 0, 4, 5, 6, 7])
    expected = info_nce(vectors, vectors, torch.tensor(12.0), groups=groups).item()
    assert ideal_loss(vectors.numpy(), groups.numpy(), 12.0) == pytest.approx(expected, rel=1e-5)
    # two captions at 60°: gap s/2
    two = np.array([[1.0, 0.0], [0.5, 3**0.5 / 2]], np.float32)
    assert ideal_loss(two, np.arange(2), 4.0) == pytest.approx(math.log1p(math.exp(-2.0)), rel=1e-6)


def test_a_high_scale_is_predicted_to_saturate_and_a_low_one_not(collection):
    tiny = make_tiny()
    hot = look_at_captions(collection, tiny, model="tiny", batch_size=4, logit_scale=1e6)
    cold = look_at_captions(collection, tiny, model="tiny", batch_size=4, logit_scale=1.0)
    assert (hot.solved, cold.solved) == (100.0, 0.0)
    assert "hn_clip with gamma 0.5" in hot.advice
    assert cold.advice == advise(0.0)
    assert hot.similarity["p1"] <= hot.mean <= hot.hardest["p100"] <= 1.0 + 1e-6
    assert hot.hardest_in_batch <= hot.hardest["p100"]
