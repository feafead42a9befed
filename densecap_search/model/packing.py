"""Convolutions of a tower that only encodes, with weights laid out for this CPU and the activation in the same pass.

torch lays out the weights of a convolution anew in every call, writes its output to memory, and reads it again for the
activation. These are the operators that torch.compile puts in their place, without its compiler and its start.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

LEAST_COSINE = 0.99999  # between the outputs of a tower and of its packed copy, or the copy is not used
ACTIVATIONS: dict[type[nn.Module], tuple[str, list[float]]] = {
    nn.ReLU: ("relu", []), nn.ReLU6: ("hardtanh", [0.0, 6.0])}


class PackedConvolution(nn.Module):
    """nn.Conv2d, or timm's kind that pads at the right and below first, with the activation that follows it."""

    def __init__(self, convolution: Any, activation: nn.Module | None, given: Sequence[int]) -> None:
        """given: a shape of what it takes; others work as well."""
        super().__init__()
        self.same = type(convolution).__name__ == "Conv2dSame"
        self.kernel, self.stride = convolution.kernel_size, list(convolution.stride)
        self.padding = [0, 0] if self.same else list(convolution.padding)
        self.dilation, self.groups, self.bias = list(convolution.dilation), convolution.groups, convolution.bias
        self.activation, self.limits = ACTIVATIONS[type(activation)] if activation is not None else ("none", [])
        given = list(self._padded(torch.empty(given, device="meta")).shape)
        self.weight = torch.ops.mkldnn._reorder_convolution_weight(
            convolution.weight, self.padding, self.stride, self.dilation, self.groups, given)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] → [B, C', H', W']."""
        outputs: Tensor = torch.ops.mkldnn._convolution_pointwise(
            self._padded(x), self.weight, self.bias, self.padding, self.stride, self.dilation, self.groups,
            self.activation, self.limits, "")
        return outputs

    def _padded(self, x: Tensor) -> Tensor:
        if not self.same:
            return x
        lacks = [max((-(-side // step) - 1) * step + kernel - side, 0)
                 for side, step, kernel in zip(x.shape[-2:], self.stride, self.kernel, strict=True)]
        return nn.functional.pad(x, [lacks[1] // 2, lacks[1] - lacks[1] // 2, lacks[0] // 2, lacks[0] - lacks[0] // 2])


@torch.no_grad()
def packed(tower: nn.Module, example: Tensor) -> nn.Module | None:
    """A copy of a tower in eval mode with packed convolutions; None where it has none, or this torch cannot do it.

    example: a batch as the tower takes it. What follows a convolution is seen by running the tower with it.
    """
    made = copy.deepcopy(tower).eval().requires_grad_(False)
    try:
        convolutions = _convolutions(made, example)
        for name, activation, shape in convolutions:
            follows = made.get_submodule(activation) if activation else None
            _replace(made, name, PackedConvolution(made.get_submodule(name), follows, shape))
            if activation:
                _replace(made, activation, nn.Identity())
        return made if convolutions and _agree(tower, made, example) else None
    except (AttributeError, RuntimeError, NotImplementedError):  # a torch without oneDNN, or with other operators
        return None


def _convolutions(tower: nn.Module, example: Tensor) -> list[tuple[str, str, tuple[int, ...]]]:
    """Of convolutions that run once: names, those of activations that take just their output, and shapes of inputs."""
    calls: list[tuple[str, nn.Module, Tensor, Tensor]] = []  # tensors are kept, so that no id is given to another

    def note(name: str) -> Any:
        return lambda module, inputs, output: calls.append((name, module, inputs[0], output))

    kinds: tuple[type[nn.Module], ...] = (nn.Conv2d, *ACTIVATIONS)
    handles = [module.register_forward_hook(note(name)) for name, module in tower.named_modules()
               if isinstance(module, kinds)]
    try:
        tower(example)
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name, *_ in calls]
    layers = []
    for (name, module, given, output), after in zip_longest(calls, calls[1:]):
        if type(module).__name__ not in ("Conv2d", "Conv2dSame") or names.count(name) > 1 or _is_odd(module):
            continue
        fits = after is not None and type(after[1]) in ACTIVATIONS and after[2] is output and names.count(after[0]) == 1
        layers.append((name, after[0] if after is not None and fits else "", tuple(given.shape)))
    return layers


def _is_odd(convolution: Any) -> bool:
    return isinstance(convolution.padding, str) or convolution.padding_mode != "zeros"


def _agree(tower: nn.Module, made: nn.Module, example: Tensor) -> bool:
    """Whether both return the same directions; something else may use what stood before an activation."""
    noisy = example + torch.linspace(-1, 1, example.numel()).reshape(example.shape)
    cosine = nn.functional.cosine_similarity(tower(noisy).flatten(1), made(noisy).flatten(1))
    return bool(cosine.min() >= LEAST_COSINE)


def _replace(root: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(root.get_submodule(parent), own, module)
