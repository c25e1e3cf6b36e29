"""The recipe of base models for Countdown; imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from harness.base import registry
from tasks.countdown import BOX, Countdown, examples
from tasks.recipe import DecoderRecipe


@dataclass(frozen=True)
class CountdownRecipe(DecoderRecipe):
    """A small decoder that writes expressions, most of which miss the target."""

    characters: ClassVar[str] = "0123456789+-*()=: }"

    task: str = "countdown"

    @cached_property
    def countdown(self) -> Countdown:
        return registry.build("task", {Countdown.name: Countdown}, self.task)

    def built_task(self) -> Countdown:
        return self.countdown

    def words(self) -> list[str]:
        """Return the opening of the box, and each number that can occur.

        With whole numbers instead of digits, the same training improves on random answers by three times as much, in
        less time.
        """
        return [BOX, *map(str, range(10, max(self.countdown.largest, self.countdown.target) + 1))]

    def examples(self) -> Iterator[tuple[str, str]]:
        return examples(self.countdown, self.seed, self.solving)
