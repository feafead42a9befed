from __future__ import annotations

import math

import pytest
import torch
from open_clip.loss import ClipLoss
from torch.nn import functional as F

from densecap_search.training.objectives import (
    OBJECTIVES,
    HNClipLoss,
    constant_margin,
    hn_clip,
    info_nce,
    label_smoothing,
    late_interaction,
    siglip,
)

# what an objective needs beside the common arguments, for the tests that take every one of them
EXTRA = {"siglip": {"logit_bias": torch.tensor(-3.0, dtype=torch.float64), "gamma": 0.3}}


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
    assert info_nce(image, text, scale).item() == pytest.approx(expected, rel=1e-6)
    assert hn_clip(image, text, scale, gamma=0.0).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_in_rank_local_form_averages_to_the_square_form(name: str):
    image, text, scale = unit(8, 6, 5), unit(8, 6, 6), torch.tensor(20.0, dtype=torch.float64)
    groups = torch.tensor([0, 1, 2, 3, 0, 4, 5, 1])
    loss = OBJECTIVES[name].loss
    extra = EXTRA.get(name, {})
    whole = loss(image, text, scale, groups=groups, **extra)
    parts = [
        loss(image[rows], text[rows], scale, all_image=image, all_text=text, labels=torch.arange(8)[rows],
             groups=groups[rows], all_groups=groups, **extra)
        for rows in (slice(0, 4), slice(4, 8))
    ]
    assert (sum(parts) / 2).item() == pytest.approx(whole.item(), abs=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_passes_gradcheck(name: str):
    text = unit(4, 3, 8)
    # Ḡ is a constant for the gradient, so the text side is held fixed here
    args = (unit(4, 3, 7).requires_grad_(), torch.tensor(5.0, dtype=torch.float64, requires_grad=True))
    loss, extra = OBJECTIVES[name].loss, EXTRA.get(name, {})
    assert torch.autograd.gradcheck(lambda image, scale: loss(image, text, scale, **extra), args)


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


def test_a_constant_similarity_is_the_constant_margin():
    # captions at 60° from each other: Ḡ is 0.5 everywhere
    text = torch.linalg.cholesky(torch.full((5, 5), 0.5, dtype=torch.float64).fill_diagonal_(1.0))
    image, scale = unit(5, 5, 17), torch.tensor(15.0, dtype=torch.float64)
    adaptive = hn_clip(image, text, scale, gamma=0.6)
    assert adaptive.item() == pytest.approx(constant_margin(image, text, scale, margin=0.3).item(), abs=1e-12)
    assert adaptive.item() == pytest.approx(constant_margin(image, text, scale, gamma=0.6).item(), abs=1e-12)
    # and a centred constant is nothing at all
    plain = info_nce(image, text, scale).item()
    assert hn_clip(image, text, scale, gamma=0.6, similarity="centred").item() == pytest.approx(plain, abs=1e-12)


def test_the_constant_margin_matches_two_pairs_worked_by_hand():
    text = torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2]])
    expected = math.log1p(math.exp(2.0 * (0.5 + 0.25 - 1.0)))
    assert constant_margin(text, text, torch.tensor(2.0), margin=0.25).item() == pytest.approx(expected)
    assert constant_margin(text, text, torch.tensor(2.0), gamma=0.5).item() == pytest.approx(expected)


def test_the_centred_similarity_equals_a_slow_mean():
    image, text, scale = unit(6, 4, 18), unit(6, 4, 19), torch.tensor(9.0, dtype=torch.float64)
    cosines = text @ text.T
    mean = sum(float(cosines[i, j]) for i in range(6) for j in range(6) if i != j) / 30
    logits = scale * (image @ text.T + 0.8 * (cosines - mean).fill_diagonal_(0))
    turned = scale * (text @ image.T + 0.8 * (cosines - mean).fill_diagonal_(0))
    labels = torch.arange(6)
    expected = (F.cross_entropy(logits, labels) + F.cross_entropy(turned, labels)) / 2
    assert hn_clip(image, text, scale, gamma=0.8, similarity="centred").item() == pytest.approx(expected.item(), abs=1e-12)


def test_a_frozen_similarity_comes_from_the_reference():
    image, text, before = unit(6, 4, 20), unit(6, 4, 21), unit(6, 3, 22)
    scale = torch.tensor(9.0, dtype=torch.float64)
    extra = 0.5 * (before @ before.T).fill_diagonal_(0)
    labels = torch.arange(6)
    expected = (F.cross_entropy(scale * (image @ text.T + extra), labels)
                + F.cross_entropy(scale * (text @ image.T + extra), labels)) / 2
    found = hn_clip(image, text, scale, similarity="frozen", reference=before)
    assert found.item() == pytest.approx(expected.item(), abs=1e-12)
    local = [hn_clip(image[rows], text[rows], scale, similarity="frozen", reference=before[rows], all_reference=before,
                     all_image=image, all_text=text, labels=labels[rows]) for rows in (slice(0, 3), slice(3, 6))]
    assert (sum(local) / 2).item() == pytest.approx(expected.item(), abs=1e-12)
    with pytest.raises(ValueError, match="needs reference"):
        hn_clip(image, text, scale, similarity="frozen")


def test_the_guard_takes_captions_that_are_too_alike_for_the_same():
    text = F.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], dtype=torch.float64), dim=1)
    image, scale = unit(3, 2, 23), torch.tensor(7.0, dtype=torch.float64)
    grouped = hn_clip(image, text, scale, groups=torch.tensor([0, 0, 1]))
    assert hn_clip(image, text, scale, guard=0.98).item() == pytest.approx(grouped.item(), abs=1e-12)
    assert hn_clip(image, text, scale, guard=0.9999).item() != pytest.approx(grouped.item())


def test_label_smoothing_is_torchs_and_leaves_the_excluded_out():
    image, text, scale = unit(6, 4, 24), unit(6, 4, 25), torch.tensor(9.0, dtype=torch.float64)
    labels = torch.arange(6)
    expected = sum(F.cross_entropy(logits, labels, label_smoothing=0.2)
                   for logits in (scale * image @ text.T, scale * text @ image.T)) / 2
    assert label_smoothing(image, text, scale, smoothing=0.2).item() == pytest.approx(expected.item(), abs=1e-12)
    assert label_smoothing(image, text, scale, smoothing=0.0).item() == pytest.approx(info_nce(image, text, scale).item())
    # rows 0 and 1 are one group: each has 5 candidates, the loss is that of the smaller problem
    logits = (scale * image @ text.T)[0, [0, 2, 3, 4, 5]]
    row = F.cross_entropy(logits[None], torch.tensor([0]), label_smoothing=0.2)
    groups = torch.tensor([0, 0, 1, 2, 3, 4])
    one = label_smoothing(image[:1], text[:1], scale, smoothing=0.2, all_image=image, all_text=text,
                          labels=torch.tensor([0]), groups=groups[:1], all_groups=groups)
    other = F.cross_entropy((scale * text @ image.T)[0, [0, 2, 3, 4, 5]][None], torch.tensor([0]), label_smoothing=0.2)
    assert one.item() == pytest.approx(((row + other) / 2).item(), abs=1e-12)


def test_siglip_equals_open_clips_and_slow_loops():
    from open_clip.loss import SigLipLoss

    image, text = unit(6, 4, 26), unit(6, 4, 27)
    scale, bias = torch.tensor(10.0, dtype=torch.float64), torch.tensor(-4.0, dtype=torch.float64)
    expected = SigLipLoss()(image, text, scale, bias).item()
    assert siglip(image, text, scale, logit_bias=bias).item() == pytest.approx(expected, abs=1e-12)
    total = 0.0
    for i in range(6):
        for j in range(6):
            margin = 0.5 * float(text[i] @ text[j]) if i != j else 0.0
            logit = 10.0 * (float(image[i] @ text[j]) + margin) - 4.0
            total += math.log1p(math.exp(-logit if i == j else logit))
    assert siglip(image, text, scale, logit_bias=bias, gamma=0.5).item() == pytest.approx(total / 6, abs=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_finite_with_its_gradients_when_all_rows_are_one_group(name: str):
    image, text = unit(3, 4, 28).requires_grad_(), unit(3, 4, 29).requires_grad_()
    scale = torch.tensor(50.0, dtype=torch.float64, requires_grad=True)
    loss = OBJECTIVES[name].loss(image, text, scale, groups=torch.zeros(3, dtype=torch.long), **EXTRA.get(name, {}))
    assert torch.isfinite(loss)
    assert all(torch.isfinite(gradient).all() for gradient in torch.autograd.grad(loss, (image, text, scale)))


def test_the_module_takes_the_place_of_clip_loss():
    image, text, scale = (unit(6, 4, 30).requires_grad_(), unit(6, 4, 31).requires_grad_(),
                          torch.tensor(14.0, dtype=torch.float64))
    ours, theirs = HNClipLoss(gamma=0.0)(image, text, scale), ClipLoss()(image, text, scale)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
    for a, b in zip(torch.autograd.grad(ours, (image, text)), torch.autograd.grad(theirs, (image, text)), strict=True):
        assert torch.allclose(a, b, atol=1e-12)
    assert HNClipLoss()(image, text, scale, output_dict=True).keys() == ClipLoss()(image, text, scale, output_dict=True).keys()
    assert HNClipLoss()(image, text, scale).item() == pytest.approx(hn_clip(image, text, scale).item())


def slow_late_interaction(patches, words, mask, scale: float) -> float:
    count = len(patches)
    by_patch, by_word = torch.zeros(count, count, dtype=torch.float64), torch.zeros(count, count, dtype=torch.float64)
    for i in range(count):
        for j in range(count):
            own = [word for word, there in zip(words[j], mask[j], strict=True) if there]
            by_patch[i, j] = sum(max(float(p @ w) for w in own) for p in patches[i]) / len(patches[i])
            by_word[i, j] = sum(max(float(p @ w) for p in patches[i]) for w in own) / len(own)
    labels = torch.arange(count)
    return float((F.cross_entropy(scale * by_patch, labels) + F.cross_entropy(scale * by_word.T, labels)) / 2)


@pytest.mark.parametrize("block_scores", [1, 100, 1 << 22])
def test_late_interaction_equals_slow_loops_in_blocks_of_any_size(block_scores: int):
    patches, words = unit(4 * 5, 3, 32).reshape(4, 5, 3), unit(4 * 6, 3, 33).reshape(4, 6, 3)
    mask = torch.arange(6)[None] < torch.tensor([6, 3, 1, 4])[:, None]
    found = late_interaction(patches, words, mask, torch.tensor(8.0, dtype=torch.float64), block_scores=block_scores)
    assert found.item() == pytest.approx(slow_late_interaction(patches, words, mask, 8.0), abs=1e-12)


def test_late_interaction_of_single_tokens_is_info_nce_and_has_gradients_in_blocks():
    image, text = unit(5, 4, 34).requires_grad_(), unit(5, 4, 35).requires_grad_()
    scale, mask, groups = torch.tensor(9.0, dtype=torch.float64), torch.ones(5, 1, dtype=torch.bool), torch.tensor([0, 1, 0, 2, 3])
    tokens = late_interaction(image[:, None], text[:, None], mask, scale, groups=groups, block_scores=1)
    plain = info_nce(image, text, scale, groups=groups)
    assert tokens.item() == pytest.approx(plain.item(), abs=1e-12)
    for a, b in zip(torch.autograd.grad(tokens, (image, text)), torch.autograd.grad(plain, (image, text)), strict=True):
        assert torch.allclose(a, b, atol=1e-12)
