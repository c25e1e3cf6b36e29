"""The recipe of base models for Coloring; imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from harness.base import registry
from tasks.coloring import ALL_COLORS, Coloring, coloring_examples
from tasks.recipe import DecoderRecipe


@dataclass(frozen=True)
class ColoringRecipe(DecoderRecipe):
    """A small decoder that writes colors, most of them next to the same color."""

    characters: ClassVar[str] = "0" + ALL_COLORS + " :}"

    task: str = "coloring"

    @cached_property
    def coloring(self) -> Coloring:
        return registry.build("task", {Coloring.name: Coloring}, self.task)

    def built_task(self) -> Coloring:
        return self.coloring

    def words(self) -> list[str]:
        """Return the opening of the box."""
        return [r"\boxed{"]

    def examples(self) -> Iterator[tuple[str, str]]:
        return coloring_examples(self.coloring, self.seed, self.solving)
