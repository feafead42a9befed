"""BatchNorm of a tower that only encodes, folded into the convolutions before it.

After training, a BatchNorm multiplies and adds numbers that no longer change: (x − mean) · weight / √(var + ε) + bias.
The convolution before it can do that with other weights, and one pass over the activations is saved.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

LEAST_COSINE = 0.99999  # between the outputs of a tower and of its folded copy, or the copy is not used


@torch.no_grad()
def folded(tower: nn.Module, example: Tensor) -> nn.Module | None:
    """A copy of a tower in eval mode without its BatchNorms; None where it has none that can be folded.

    example: a batch as the tower takes it. Which convolution stands before which BatchNorm is seen by running it:
    module names and orders say nothing certain.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in tower.modules()):
        return None
    made = copy.deepcopy(tower).eval().requires_grad_(False)
    pairs = _pairs(made, example)
    for convolution, norm in pairs:
        fused = fuse_conv_bn_eval(_module(made, convolution), _module(made, norm))
        _replace(made, convolution, fused)
        _replace(made, norm, _rest(_module(made, norm)))
    if not pairs or not _agree(tower, made, example):
        return None
    return made


def _pairs(tower: nn.Module, example: Tensor) -> list[tuple[str, str]]:
    """Names of convolutions and of the BatchNorms that take just their output, each used once in a pass."""
    made_by: dict[int, tuple[str, Tensor]] = {}  # the tensor is kept, so that its id is not given to another
    pairs: list[tuple[str, str]] = []
    calls: dict[str, int] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            calls[name] = calls.get(name, 0) + 1
            if isinstance(module, nn.Conv2d):
                made_by[id(output)] = (name, output)
            elif id(inputs[0]) in made_by:
                pairs.append((made_by[id(inputs[0])][0], name))
        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in tower.named_modules()
               if isinstance(module, (nn.Conv2d, nn.BatchNorm2d))]
    try:
        tower(example)
    finally:
        for handle in handles:
            handle.remove()
    return [pair for pair in pairs if all(calls[name] == 1 for name in pair)]


def _rest(norm: nn.Module) -> nn.Module:
    """What a BatchNorm does beside normalising: timm's kinds hold their activation."""
    parts = [getattr(norm, name) for name in ("drop", "act") if isinstance(getattr(norm, name, None), nn.Module)]
    return nn.Sequential(*(part for part in parts if not isinstance(part, nn.Identity)))


def _agree(tower: nn.Module, made: nn.Module, example: Tensor) -> bool:
    """Whether both return the same directions for the example; a tower may use a convolution's output twice."""
    cosine = nn.functional.cosine_similarity(tower(example).flatten(1), made(example).flatten(1))
    return bool(cosine.min() >= LEAST_COSINE)


def _module(root: nn.Module, name: str) -> Any:
    return root.get_submodule(name)


def _replace(root: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(root.get_submodule(parent), own, module)
