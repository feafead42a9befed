"""Several processes as one: what torchrun sets up, gathering with gradients, one gradient for all.

Every process holds the whole model and a share of each batch. Rows are scored against the columns of all processes, so
the batch is as large as all shares together; gradients are averaged by hand after the backward pass rather than by
DistributedDataParallel, because embeddings are also computed outside a module's forward (heads, gradient caching).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

TIMEOUT = timedelta(minutes=30)  # the slowest process may still be decoding pictures for validation
T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among all of them; rank 0 is the one that writes and speaks."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of a sequence; the parts differ in length by one at most."""
        return items[self.rank::self.count]

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            dist.barrier()

    def gather(self, rows: Tensor) -> Tensor:
        """The rows [b, …] of all processes in the order of ranks, [N, …], with gradients; b may differ."""
        if self.count == 1:
            return rows
        gathered: Tensor = _Gather.apply(rows, self.rank, self.count)
        return gathered

    def offset(self, rows: int) -> int:
        """Where this process's rows begin among all."""
        if self.count == 1:
            return 0
        return sum(self._lengths(rows)[: self.rank])

    def mean(self, value: Tensor) -> Tensor:
        """The mean of a number over processes, without gradient."""
        value = value.detach().clone()
        if self.count > 1:
            dist.all_reduce(value)
            value /= self.count
        return value

    def of_the_first(self, value: T) -> T:
        """The first process's value, in all of them."""
        if self.count == 1:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0)
        chosen: T = values[0]
        return chosen

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Leave in every process the mean of all processes' gradients."""
        if self.count == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:  # a process whose share was empty still takes part
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.count

    def _lengths(self, rows: int) -> list[int]:
        lengths: list[Any] = [None] * self.count
        dist.all_gather_object(lengths, rows)
        return lengths


ALONE = Processes()


@contextmanager
def joined() -> Iterator[Processes]:
    """The group that torchrun describes in the environment, or this process alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


class _Gather(torch.autograd.Function):
    """all_gather of shares that may differ in length; the gradient of a row is the sum over all processes' losses."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, rank: int, count: int) -> Tensor:
        lengths = Processes(rank, count)._lengths(len(rows))
        padded = rows.new_zeros((max(lengths), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(count)]
        dist.all_gather(parts, padded)
        ctx.start, ctx.length = sum(lengths[:rank]), len(rows)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient)
        return gradient[ctx.start:ctx.start + ctx.length], None, None
