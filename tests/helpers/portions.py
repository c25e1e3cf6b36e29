"""Parametrizations by methods, of which each run of the tests takes a part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")


def one_in(number: int, specs: Iterable[str], *, first: int = 0) -> list[object]:
    """Mark all but every n-th spec as `long`: `make test-long` tests these.

    Tests of the same specs have different values of `first`, so that together they test more of them in each run.
    """
    return [
        pytest.param(spec, marks=[] if place % number == first else [pytest.mark.long])
        for place, spec in enumerate(specs)
    ]


def in_turn(specs: Iterable[str], values: Sequence[T], *, each: Iterable[str] = ()) -> list[tuple[str, T]]:
    """Pair each spec with one of the values in turn, and the specs of `each` with all of them."""
    pairs = dict.fromkeys((spec, values[place % len(values)]) for place, spec in enumerate(specs))
    return list(pairs | dict.fromkeys((spec, value) for spec in each for value in values))
