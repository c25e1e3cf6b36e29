"""Sampling by the engines of all ranks, for what only the first one does: evaluations and the difficulty filter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from harness.base import ranks
from harness.batch import Rollout
from harness.rollout.protocol import OnGroup, Sampling

Request = dict[str, Any]


class Together:
    """The engine that rank 0 asks; each request goes to all ranks, which answer it together."""

    def __init__(self, engine: Sampling) -> None:
        self.engine = engine

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, *, on_group: OnGroup | None = None, **settings: Any
    ) -> list[list[Rollout]]:
        groups = answer(self.engine, ranks.of_first({"prompts": prompts, "n": n, **settings}))
        if on_group is not None:
            for number, group in enumerate(groups):
                on_group(number, group)
        return groups


@contextmanager
def led(engine: Sampling) -> Iterator[Sampling | None]:
    """Yields an engine of all ranks to rank 0.

    The other ranks answer its requests until it has nothing more to ask, and then get None.
    """
    if not ranks.several():
        yield engine
    elif ranks.number() == 0:
        yield Together(engine)
        ranks.of_first(None)
    else:
        while (request := ranks.of_first(None)) is not None:
            answer(engine, request)
        yield None


def answer(engine: Sampling, request: Request) -> list[list[Rollout]]:
    """Samples this rank's share of the prompts; returns the groups of all ranks in the order of the prompts."""
    world, own = ranks.count(), slice(ranks.number(), None, ranks.count())
    mine = {key: value[own] if key in ("prompts", "seeds") else value for key, value in request.items()}
    found = ranks.each(engine.generate(mine.pop("prompts"), mine.pop("n"), **mine))
    return [found[place % world][place // world] for place in range(len(request["prompts"]))]
