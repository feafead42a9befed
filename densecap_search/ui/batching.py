"""Queries that wait are answered together: one thread, one pass through the tower for all that came meanwhile.

How many may wait is bounded, and who has gone away is not searched for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from densecap_search.errors import DensecapError

Q = TypeVar("Q")
A = TypeVar("A")


class Busy(DensecapError):
    """As many wait as may wait; ask again in a moment."""


class Batcher(Generic[Q, A]):
    """answer: queries → their answers, in order. It runs in one thread, on at most ``together`` queries at once.

    Belongs to the event loop in which it is asked. most: how many may wait or be answered at a time.
    """

    def __init__(self, answer: Callable[[Sequence[Q]], Sequence[A]], *, together: int = 16, most: int = 64) -> None:
        self._answer, self._together, self._most = answer, together, most
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._running: asyncio.Task[None] | None = None
        self._in_hand = 0

    @property
    def in_flight(self) -> int:
        """Queries that wait or are being answered, without those that were given up."""
        return self._in_hand + sum(1 for _, future in self._waiting if not future.done())

    async def ask(self, query: Q) -> A:
        """The answer to one query. Cancelling this gives it up: if it still waits it is never searched for."""
        if self.in_flight >= self._most:
            raise Busy(f"{self._most} searches are waiting already; try again in a moment")
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((query, future))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await future

    def close(self) -> None:
        """End the thread once what it has in hand is answered."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        while batch := self._next():
            self._in_hand = len(batch)
            try:
                await self._serve(batch)
            finally:
                self._in_hand = 0

    def _next(self) -> list[tuple[Q, asyncio.Future[A]]]:
        batch: list[tuple[Q, asyncio.Future[A]]] = []
        while self._waiting and len(batch) < self._together:
            query, future = self._waiting.popleft()
            if not future.done():  # done before it was answered: given up
                batch.append((query, future))
        return batch

    async def _serve(self, batch: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._pool, self._answer, [query for query, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                if not batch[0][1].done():
                    batch[0][1].set_exception(error)
                return
            for one in batch:  # what is wrong with one query is not the others' fault
                await self._serve([one])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
