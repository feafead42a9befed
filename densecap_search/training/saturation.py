"""Is the loss solved? What share of batches it is, where the gradient went, and how alike the captions are.

Measured on the batch of a step with the weights before it: in evaluation mode, in float32, both losses and their
gradients on one graph. Four different zeros are kept apart, because a loss of exactly 0 still has gradients (the loss
is rounded long before they are) and Adam is blind to their size down to about its ε.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from densecap_search.inspection.geometry import SOLVED
from densecap_search.training.objectives import info_nce

NO_UPDATE = 1e-8  # Adam's ε: gradients below it barely move a weight


@dataclass(frozen=True)
class Gradient:
    """A loss and its gradient by all trained parameters. Norms are accumulated in float64.

    z1: the loss is 0.0. z2: every gradient by the scores (here: by the embeddings they are made of) is 0.
    z3: every element of every parameter's gradient is 0.
    z4: the float32 norm of the parameters' gradient is 0. below_no_update: no element reaches NO_UPDATE.
    """

    loss: float
    norm: float
    z1: bool
    z2: bool
    z3: bool
    z4: bool
    below_no_update: bool


@dataclass(frozen=True)
class Saturation:
    """One measurement. cosine: of the two gradients, None where one is zero.

    similarity_*: of different captions in the batch (Ḡ), cosine. smallest_gap: the least s·(S_ii − S_ij), logits.
    """

    step: int
    batch: int
    logit_scale: float
    info_nce: Gradient
    objective: Gradient
    cosine: float | None
    similarity_mean: float
    similarity_max: float
    smallest_gap: float

    @property
    def saturated(self) -> bool:
        """Whether InfoNCE counts as solved on this batch."""
        return self.info_nce.loss < SOLVED

    def as_json(self) -> dict[str, Any]:
        """One line of the log."""
        return {"diagnose": {**asdict(self), "saturated": self.saturated}}


def measure(
    step: int, image: Tensor, text: Tensor, logit_scale: Tensor, objective: Callable[..., Tensor],
    parameters: Sequence[nn.Parameter], groups: Tensor | None = None,
) -> Saturation:
    """One measurement on a batch's embeddings [B, D] float32 that carry a graph to the parameters.

    objective: called with image, text, logit_scale and groups.
    """
    scores = (image, text)
    plain, plain_gradient = gradient_of(info_nce(image, text, logit_scale, groups=groups), scores, parameters)
    other, other_gradient = gradient_of(objective(image, text, logit_scale, groups=groups), scores, parameters)
    with torch.no_grad():
        different = ~torch.eye(len(text), dtype=torch.bool, device=text.device)
        if groups is not None:
            different &= groups[:, None] != groups[None, :]
        similarity = (text @ text.T)[different]
        cosines = image @ text.T
        own = cosines.diagonal()
        gaps = logit_scale * torch.stack([own[:, None] - cosines, own[None, :] - cosines])
        gap = gaps[:, different].min() if different.any() else torch.tensor(float("nan"))
        empty = not len(similarity)
    return Saturation(
        step, len(image), logit_scale.item(), plain, other, _cosine(plain_gradient, other_gradient),
        similarity_mean=float("nan") if empty else similarity.mean().item(),
        similarity_max=float("nan") if empty else similarity.max().item(), smallest_gap=gap.item(),
    )


def gradient_of(loss: Tensor, scores: Sequence[Tensor], parameters: Sequence[Tensor]
                ) -> tuple[Gradient, list[Tensor]]:
    """A loss, its gradient in figures, and the gradient itself.

    scores: what z2 looks at: the logits, or the embeddings they are made of, whose gradient is 0 when theirs is.
    """
    by_score = torch.autograd.grad(loss, list(scores), retain_graph=True)
    of_each = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, of_each, strict=True)]
    norm = sum(float(gradient.double().square().sum()) for gradient in gradients) ** 0.5
    norm32 = torch.stack([gradient.float().square().sum() for gradient in gradients]).sum().sqrt()
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    value = loss.item()
    return Gradient(
        value, norm, z1=value == 0.0, z2=not any(bool(gradient.any()) for gradient in by_score),
        z3=not any(bool(gradient.any()) for gradient in gradients), z4=norm32.item() == 0.0,
        below_no_update=largest < NO_UPDATE,
    ), gradients


def _cosine(first: Sequence[Tensor], second: Sequence[Tensor]) -> float | None:
    product = sum(float((a.double() * b.double()).sum()) for a, b in zip(first, second, strict=True))
    norms = [sum(float(g.double().square().sum()) for g in gradients) ** 0.5 for gradients in (first, second)]
    return product / (norms[0] * norms[1]) if norms[0] * norms[1] > 0 else None
