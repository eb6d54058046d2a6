"""Parts of work on one thread or several."""

from __future__ import annotations

import threading

import pytest

from sparsegen.system.threads import in_threads


@pytest.mark.parametrize("threads", [1, 3])
def test_every_part_is_done_once_and_errors_come_back(threads: int) -> None:
    done: list[int] = []
    where: set[int] = set()

    def work(part: int) -> None:
        if part == 99:
            raise ValueError("the last")
        done.append(part)
        where.add(threading.get_ident())

    in_threads(work, range(20), threads)
    assert sorted(done) == list(range(20))
    assert (where == {threading.get_ident()}) == (threads == 1)
    with pytest.raises(ValueError, match="the last"):
        in_threads(work, [1, 99], threads)
    in_threads(work, [], threads)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_results_come_in_the_order_of_the_parts(count: int) -> None:
    where: set[int] = set()

    def work(part: int) -> int:
        where.add(threading.get_ident())
        return part * part

    assert in_threads(work, range(count)) == [part * part for part in range(count)]
    assert (threading.get_ident() in where) == (count == 1)
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda part: 1 // part, [2, 1, 0])
