"""The recipe of base models for Coloring; imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import ClassVar

from harness.base import registry
from tasks.coloring import ALL_COLORS, NODES, Coloring, coloring_examples
from tasks.recipe import DecoderRecipe


@dataclass(frozen=True)
class ColoringRecipe(DecoderRecipe):
    """A small decoder that writes colors, most of them next to the same color."""

    characters: ClassVar[str] = ALL_COLORS + ":}"

    task: str = "coloring"

    @cached_property
    def coloring(self) -> Coloring:
        return registry.build("task", {Coloring.name: Coloring}, self.task)

    def built_task(self) -> Coloring:
        return self.coloring

    def words(self) -> list[str]:
        """Return the opening of the box, and each row that can occur.

        With whole rows, a color is as many tokens behind the row of its node as every other color.
        """
        found = [r"\boxed{"]
        for place in range(1, self.coloring.nodes):
            found += [NODES[place] + "".join(bits) for bits in product("01", repeat=place)]
        return found

    def examples(self) -> Iterator[tuple[str, str]]:
        return coloring_examples(self.coloring, self.seed, self.solving)
