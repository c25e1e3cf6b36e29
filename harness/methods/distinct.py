"""Equal items of a list, found once, so that the work on an item is done once for all of its copies."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Distinct:
    """The distinct items of a list, in the order of their first copies, and the distinct item that each one equals."""

    first: list[int]  # the place in the list of each distinct item's first copy
    copy_of: list[int]  # for each item of the list, the number of its equal among the distinct ones

    @classmethod
    def of(cls, items: Sequence[Hashable]) -> Distinct:
        numbers: dict[Hashable, int] = {}
        first: list[int] = []
        copy_of: list[int] = []
        for place, item in enumerate(items):
            if item not in numbers:
                numbers[item] = len(first)
                first.append(place)
            copy_of.append(numbers[item])
        return cls(first, copy_of)

    @property
    def copies(self) -> list[list[int]]:
        """The places in the list of all copies of each distinct item."""
        places: list[list[int]] = [[] for _ in self.first]
        for place, number in enumerate(self.copy_of):
            places[number].append(place)
        return places

    def once(self, items: Sequence[T]) -> list[T]:
        """Return the first copy of each distinct item, of a list with something for each item."""
        return [items[place] for place in self.first]

    def spread(self, results: Sequence[T]) -> list[T]:
        """Return a result for each item, given one for each distinct item."""
        return [results[number] for number in self.copy_of]
