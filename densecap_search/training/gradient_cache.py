"""True large batches in bounded memory: every pair of the batch is every other's negative, few are in memory at once.

Embed all pairs in micro-batches without a graph, compute the loss and its gradient by the embeddings once, then embed
each micro-batch again with a graph and hand it its part of that gradient. The result is the gradient of the whole
batch, for one more forward pass. Source: Gao et al. 2021, arXiv:2101.06983.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

Chunk = TypeVar("Chunk")
Embedded = tuple[Tensor, ...]


def backward_in_chunks(
    chunks: Sequence[Chunk], embed: Callable[[Chunk], Embedded], loss_of: Callable[..., Tensor],
    backward: Callable[[Tensor], None], device: torch.device,
) -> Tensor:
    """Leave in the parameters the gradient of ``loss_of(*embed(whole batch))``; returns the loss, [].

    embed: a chunk of the batch → tensors whose first dimension is the pairs; must depend on nothing but the chunk,
    the weights and torch's random state (which is replayed, so dropout is the same in both passes).
    loss_of: those tensors of the whole batch → []. backward: ``loss.backward``, or with a scaler's factor.
    """
    if len(chunks) == 1:
        loss = loss_of(*embed(chunks[0]))
        backward(loss)
        return loss.detach()
    states: list[_RandomState] = []
    embedded: list[Embedded] = []
    with torch.no_grad():
        for chunk in chunks:
            states.append(_RandomState.now(device))
            embedded.append(embed(chunk))
    whole = [torch.cat(parts).requires_grad_() for parts in zip(*embedded, strict=True)]
    loss = loss_of(*whole)
    backward(loss)
    sizes = [len(parts[0]) for parts in embedded]
    gradients = zip(*(torch.split(_gradient(tensor), sizes) for tensor in whole), strict=True)
    for chunk, state, parts in zip(chunks, states, gradients, strict=True):
        with state.replayed():
            again = embed(chunk)
        torch.autograd.backward(list(again), list(parts))
    return loss.detach()


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


@dataclass(frozen=True)
class _RandomState:
    """torch's random state on the CPU and on one device."""

    cpu: Tensor
    cuda: Tensor | None
    device: torch.device

    @classmethod
    def now(cls, device: torch.device) -> _RandomState:
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), cuda, device)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Within the block random numbers are those of then; after it, as if nothing had been drawn."""
        current = self.now(self.device)
        self.restore()
        try:
            yield
        finally:
            current.restore()
