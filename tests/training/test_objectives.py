from __future__ import annotations

import math

import pytest
import torch
from open_clip.loss import ClipLoss
from torch.nn import functional as F

from densecap_search.training.objectives import OBJECTIVES, hn_clip, info_nce


def unit(rows: int, dim: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, dim, generator=generator, dtype=dtype), dim=1)


def slow(image, text, scale, gamma, groups) -> float:
    """The same loss as loops over pairs of numbers."""
    count, total = len(image), 0.0
    for i in range(count):
        for anchor, others in ((image[i], text), (text[i], image)):
            weights = {}
            for j in range(count):
                if j != i and groups[j] == groups[i]:
                    continue
                margin = 0.0 if j == i else gamma * float(text[i] @ text[j])
                weights[j] = math.exp(scale * (float(anchor @ others[j]) + margin))
            total -= math.log(weights[i] / sum(weights.values()))
    return total / (2 * count)


def test_info_nce_matches_two_pairs_worked_by_hand():
    text = torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2]])  # 60° apart, so S₁₂ = 0.5
    expected = math.log1p(math.exp(2.0 * (0.5 - 1.0)))
    assert info_nce(text, text, torch.tensor(2.0)).item() == pytest.approx(expected)


def test_hn_clip_matches_two_pairs_worked_by_hand():
    text = torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2]])  # 60° apart, so S₁₂ = G₁₂ = 0.5
    expected = math.log1p(math.exp(2.0 * (0.5 + 0.5 * 0.5 - 1.0)))
    assert hn_clip(text, text, torch.tensor(2.0), gamma=0.5).item() == pytest.approx(expected)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_hn_clip_equals_slow_loops_with_groups(gamma: float):
    image, text = unit(7, 5, 1), unit(7, 5, 2)
    groups = torch.tensor([0, 1, 0, 2, 3, 1, 4])
    loss = hn_clip(image, text, torch.tensor(11.0, dtype=torch.float64), gamma=gamma, groups=groups)
    assert loss.item() == pytest.approx(slow(image, text, 11.0, gamma, groups.tolist()), abs=1e-12)


def test_gamma_zero_is_info_nce_and_both_are_clip_loss_of_open_clip():
    image, text = unit(9, 6, 3, torch.float32), unit(9, 6, 4, torch.float32)
    scale = torch.tensor(14.0)
    expected = ClipLoss()(image, text, scale).item()
    assert info_nce(image, text, scale).item() == pytest.approx(expected, abs=1e-6)
    assert hn_clip(image, text, scale, gamma=0.0).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_in_rank_local_form_averages_to_the_square_form(name: str):
    image, text, scale = unit(8, 6, 5), unit(8, 6, 6), torch.tensor(20.0, dtype=torch.float64)
    groups = torch.tensor([0, 1, 2, 3, 0, 4, 5, 1])
    loss = OBJECTIVES[name].loss
    whole = loss(image, text, scale, groups=groups)
    parts = [
        loss(image[rows], text[rows], scale, all_image=image, all_text=text, labels=torch.arange(8)[rows],
             groups=groups[rows], all_groups=groups)
        for rows in (slice(0, 4), slice(4, 8))
    ]
    assert (sum(parts) / 2).item() == pytest.approx(whole.item(), abs=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_passes_gradcheck(name: str):
    text = unit(4, 3, 8)
    # Ḡ is a constant for the gradient, so the text side is held fixed here
    args = (unit(4, 3, 7).requires_grad_(), torch.tensor(5.0, dtype=torch.float64, requires_grad=True))
    assert torch.autograd.gradcheck(lambda image, scale: OBJECTIVES[name].loss(image, text, scale), args)


def test_no_gradient_flows_through_the_caption_similarity():
    image, text, scale = unit(5, 4, 9), unit(5, 4, 10).requires_grad_(), torch.tensor(8.0, dtype=torch.float64)
    (live,) = torch.autograd.grad(hn_clip(image, text, scale, gamma=0.7), text)
    constant = 0.7 * (text.detach() @ text.detach().T).fill_diagonal_(0)
    logits = scale * (image @ text.T + constant)
    turned = scale * (text @ image.T + constant)
    labels = torch.arange(5)
    (frozen,) = torch.autograd.grad((F.cross_entropy(logits, labels) + F.cross_entropy(turned, labels)) / 2, text)
    assert torch.allclose(live, frozen, atol=1e-12)


def test_rows_of_one_group_push_nothing():
    twin = unit(1, 4, 11).repeat(3, 1).requires_grad_()
    scale = torch.tensor(50.0, dtype=torch.float64, requires_grad=True)
    loss = hn_clip(twin, twin, scale, gamma=0.5, groups=torch.zeros(3, dtype=torch.long))
    assert loss.item() == pytest.approx(0.0, abs=1e-7)
    for gradient in torch.autograd.grad(loss, (twin, scale)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_the_margin_is_computed_in_float32_under_autocast():
    image, text = unit(6, 8, 12, torch.float32), unit(6, 8, 13, torch.float32)
    expected = hn_clip(image, text, torch.tensor(100.0)).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert hn_clip(image, text, torch.tensor(100.0)).item() == pytest.approx(expected, rel=1e-6)


def test_a_larger_gamma_asks_for_more_of_similar_captions():
    image, text = unit(6, 8, 14), F.normalize(unit(6, 8, 15) * 0.2 + unit(1, 8, 16), dim=1)
    losses = [hn_clip(image, text, torch.tensor(20.0), gamma=gamma).item() for gamma in (0.0, 0.25, 0.5, 1.0)]
    assert losses == sorted(losses)
    assert losses[0] < losses[-1]
