"""Work that only the first rank asks for and all ranks do: the sampling of evaluations, and the difficulty filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from harness.dist import ranks

Work = Callable[..., list[Any]]  # a list of items, and settings by name, to a result for each item


@contextmanager
def led(work: Work) -> Iterator[Work | None]:
    """Yields to rank 0 what has its work done by all ranks.

    The other ranks do their shares of what it is asked for, until there is nothing more to ask, and then get None.
    """
    if not ranks.several():
        yield work
    elif ranks.number() == 0:
        yield lambda items, **settings: done(work, *ranks.of_first((items, settings)))
        ranks.of_first(None)
    else:
        while (request := ranks.of_first(None)) is not None:
            done(work, *request)
        yield None


def done(work: Work, items: Sequence[Any], settings: dict[str, Any]) -> list[Any]:
    """Does this rank's share; returns the results of all ranks in the order of the items."""
    world, own = ranks.count(), items[ranks.number() :: ranks.count()]
    found = ranks.each(work(own, **settings) if own else [])
    return [found[place % world][place // world] for place in range(len(items))]
