from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from densecap_search.errors import DensecapError
from densecap_search.ui.batching import Batcher, Busy


class Slow:
    """Doubles numbers; each batch waits until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()

    def __call__(self, queries: Sequence[int]) -> list[int]:
        self.batches.append(list(queries))
        assert self.go.wait(10)
        if 13 in queries:
            raise DensecapError("13 cannot be asked")
        return [2 * query for query in queries]


async def until(holds) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def test_queries_that_come_while_one_is_answered_are_answered_together():
    slow = Slow()

    async def ask() -> list[int]:
        batcher = Batcher(slow, together=3)
        asked = [asyncio.create_task(batcher.ask(number)) for number in range(6)]
        await until(lambda: slow.batches)
        slow.go.set()
        return await asyncio.gather(*asked)

    assert asyncio.run(ask()) == [0, 2, 4, 6, 8, 10]
    assert slow.batches == [[0, 1, 2], [3, 4, 5]]


def test_more_than_may_wait_are_refused_and_those_that_wait_are_answered():
    slow = Slow()

    async def ask() -> list[int | BaseException]:
        batcher = Batcher(slow, together=2, most=4)
        asked = [asyncio.create_task(batcher.ask(number)) for number in range(6)]
        await until(lambda: slow.batches)
        slow.go.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(ask())
    assert answers[:4] == [0, 2, 4, 6]
    assert [type(answer) for answer in answers[4:]] == [Busy, Busy]


def test_who_has_gone_is_not_searched_for_and_makes_room():
    slow = Slow()

    async def ask() -> int:
        batcher = Batcher(slow, together=1, most=3)
        asked = [asyncio.create_task(batcher.ask(number)) for number in range(3)]
        await until(lambda: slow.batches)
        asked[1].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        late = asyncio.create_task(batcher.ask(7))
        await asyncio.sleep(0)
        slow.go.set()
        await asyncio.gather(asked[0], asked[2], late)
        return late.result()

    assert asyncio.run(ask()) == 14
    assert slow.batches == [[0], [2], [7]]


def test_what_is_wrong_with_one_query_is_not_the_fault_of_those_beside_it():
    slow = Slow()
    slow.go.set()

    async def ask() -> list[int | BaseException]:
        batcher = Batcher(slow)
        return await asyncio.gather(*(batcher.ask(number) for number in (1, 13, 3)), return_exceptions=True)

    first, second, third = asyncio.run(ask())
    assert (first, third) == (2, 6)
    with pytest.raises(DensecapError, match="13 cannot be asked"):
        raise second
