"""Compares the search for equal items with loops over a list."""

from __future__ import annotations

import random

from harness.methods.distinct import Distinct


def test_distinct_first_equals() -> None:
    rng = random.Random(0)
    items = [rng.choice("abcdefg") for _ in range(50)]
    distinct = Distinct.of(items)
    assert distinct.first == [i for i, item in enumerate(items) if item not in items[:i]]
    assert [items[distinct.first[number]] for number in distinct.copy_of] == items
    assert distinct.copies == [[i for i, item in enumerate(items) if item == items[first]] for first in distinct.first]
    assert distinct.once(items) == list(dict.fromkeys(items))
    assert distinct.spread(distinct.once(items)) == items
    assert distinct.spread([items.index(item) for item in distinct.once(items)]) == [items.index(i) for i in items]


def test_distinct_without_copies() -> None:
    distinct = Distinct.of([(3, 1), (2,), ()])
    assert distinct.first == distinct.copy_of == [0, 1, 2]
    assert Distinct.of([]) == Distinct([], [])
