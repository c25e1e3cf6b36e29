"""Work in threads that a process does not wait for."""

from __future__ import annotations

import threading

import pytest

from harness.base.deadline import results_as_ready


def test_results_as_ready_order() -> None:
    second_ended = threading.Event()

    def work(number: int) -> int:
        if number == 1:
            assert second_ended.wait(60)
        return 10 * number

    results = results_as_ready(work, [1, 2], 2)
    assert next(results) == (2, 20)
    second_ended.set()
    assert list(results) == [(1, 10)]


def test_results_as_ready_of_one_thread_keep_the_order() -> None:
    assert list(results_as_ready(str, range(5), 1)) == [(number, str(number)) for number in range(5)]
    assert list(results_as_ready(str, [], 4)) == []


def test_results_as_ready_after_an_error_starts_no_item() -> None:
    started: list[int] = []
    released = threading.Event()

    def work(number: int) -> None:
        started.append(number)
        if number == 0:
            raise ValueError("the first one")
        assert released.wait(60)

    with pytest.raises(ValueError, match="the first one"):
        list(results_as_ready(work, range(9), 2))
    released.set()
    assert started in ([0], [0, 1], [1, 0], [0, 1, 2], [0, 2, 1], [1, 0, 2])
