"""Equal items of a list, and equal beginnings, found once, so that the work on them is done once for all copies."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
LEAST_SHARED = 32  # tokens; a shorter beginning of all prompts costs less in each of them than a pass of its own


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


def shared_beginning(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many first tokens all prompts have in common, fewer than the shortest has; 0 if too few to matter."""
    shared = 0
    for tokens in zip(*(prompt[:-1] for prompt in prompts), strict=False):
        if len(set(tokens)) > 1:
            break
        shared += 1
    return shared if len(prompts) > 1 and shared >= LEAST_SHARED else 0
