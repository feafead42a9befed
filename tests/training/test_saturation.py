from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from densecap_search.training.objectives import hn_clip
from densecap_search.training.saturation import gradient_of, measure


def at_gap(gap: float, batch: int):
    """InfoNCE on logits whose own column is higher than all others by this much."""
    logits = nn.Parameter(gap * torch.eye(batch))
    labels = torch.arange(batch)
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    return gradient_of(loss, [logits], [logits])[0]


def first(condition, batch: int, start: float, stop: float) -> float:
    """The first gap, in steps of 0.05, at which the condition holds; that it does not hold before is checked too."""
    gaps = [start + 0.05 * step for step in range(round((stop - start) / 0.05))]
    found = [gap for gap in gaps if condition(at_gap(gap, batch))]
    assert found, (batch, start, stop)
    return found[0]


# where each threshold is first passed, for a uniform gap in the logits
THRESHOLDS = {8: (8.9, 18.6, 50.0, 101.2), 16: (9.65, 18.75, 49.3, 100.5), 32: (10.35, 19.45, 48.6, 99.8),
              128: (11.8, 20.8, 47.2, 98.5)}


@pytest.mark.parametrize("batch", THRESHOLDS)
def test_the_four_zeros_begin_at_four_different_gaps(batch: int):
    solved, z1, z4, z2 = THRESHOLDS[batch]
    assert first(lambda g: g.loss < 1e-3, batch, solved - 1, solved + 1) == pytest.approx(solved, abs=0.06)
    assert first(lambda g: g.z1, batch, z1 - 2, z1 + 2) == pytest.approx(z1, abs=0.7)
    assert first(lambda g: g.z4, batch, z4 - 2, z4 + 2) == pytest.approx(z4, abs=0.7)
    assert first(lambda g: g.z2, batch, z2 - 2, z2 + 3) == pytest.approx(z2, abs=1.5)
    assert solved == pytest.approx(math.log((batch - 1) / 1e-3), abs=0.1)


def test_a_loss_of_zero_still_has_a_gradient():
    found = at_gap(30.0, 16)
    assert (found.z1, found.z2, found.z3, found.z4) == (True, False, False, False)
    assert found.below_no_update
    assert found.norm > 0
    squared = at_gap(60.0, 16)
    assert (squared.z2, squared.z4) == (False, True)  # only its float32 square is lost
    assert squared.norm > 0


def test_a_measurement_worked_by_hand():
    image = nn.Parameter(torch.eye(2))
    text = torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2]], requires_grad=True)
    found = measure(7, image * 1.0, text * 1.0, torch.tensor(2.0), lambda *a, **k: hn_clip(*a, gamma=0.5, **k), [image])
    # S = [[1, 0.5], [0, 0.866]], s = 2
    s = 3**0.5 / 2
    rows = (math.log1p(math.exp(2 * (0.5 - 1))) + math.log1p(math.exp(2 * (0 - s)))) / 2
    columns = (math.log1p(math.exp(2 * (0 - 1))) + math.log1p(math.exp(2 * (0.5 - s)))) / 2
    assert found.info_nce.loss == pytest.approx((rows + columns) / 2, abs=1e-6)
    assert found.objective.loss > found.info_nce.loss
    assert (found.step, found.batch, found.logit_scale) == (7, 2, 2.0)
    assert found.similarity_mean == found.similarity_max == pytest.approx(0.5)
    assert found.smallest_gap == pytest.approx(2 * (s - 0.5), abs=1e-6)
    assert found.cosine == pytest.approx(1.0, abs=0.05)
    assert not found.saturated
    assert found.as_json()["diagnose"]["info_nce"]["z1"] is False


def test_twins_are_left_out_of_the_statistics():
    rows = torch.eye(3, requires_grad=True) * 1.0
    text = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [0, 0, 1.0]], requires_grad=True) * 1.0
    leaf = nn.Parameter(torch.ones(()))
    found = measure(0, rows * leaf, text, torch.tensor(5.0), hn_clip, [leaf], groups=torch.tensor([0, 0, 1]))
    assert found.similarity_max == 0.0
