"""Work in threads that this process does not wait for: with a time limit, or on several items at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def finished_within(seconds: float, work: Callable[[], object]) -> bool:
    """Run work that may never end, and return whether it ended in time; raise its error."""
    errors: list[Exception] = []

    def work_and_keep_error() -> None:
        try:
            work()
        except Exception as error:  # raised below, in the thread of the caller
            errors.append(error)

    # A daemon thread: if the work never ends, this process can still exit.
    thread = threading.Thread(target=work_and_keep_error, daemon=True)
    thread.start()
    thread.join(seconds)
    for error in errors:
        raise error
    return not thread.is_alive()


def results_as_ready(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[tuple[T, R]]:
    """Yield each item with the result of work on it, in the order in which they end; raise the first error.

    The threads are daemons, unlike those of an executor, which Python waits for when it exits, even if they hang.
    """
    waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
    number = 0
    for item in items:
        waiting.put(item)
        number += 1
    ended: queue.SimpleQueue[tuple[T, R] | Exception] = queue.SimpleQueue()
    stopped = threading.Event()

    def work_on_items() -> None:
        while not stopped.is_set():
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                ended.put((item, work(item)))
            except Exception as error:  # raised below, in the thread of the caller
                ended.put(error)

    for _ in range(min(threads, number)):
        threading.Thread(target=work_on_items, daemon=True).start()
    try:
        for _ in range(number):
            result = ended.get()
            if isinstance(result, Exception):
                raise result
            yield result
    finally:
        stopped.set()
