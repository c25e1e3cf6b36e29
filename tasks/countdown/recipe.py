"""The settings of a base model for Countdown; imports no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness.base import identities, registry
from harness.base.errors import UserError
from harness.base.schema import check, choice, number
from harness.base.shape import Shape
from tasks.countdown import BOX, Countdown

VERSION = 1  # of base_model.py; a new version makes new models from the same settings
PAD, END = "<pad>", "<eos>"
CHARACTERS = "0123456789+-*()=: }"


@dataclass(frozen=True)
class CountdownRecipe:
    """A Qwen2-shaped decoder, trained from scratch on supervised examples of training problems."""

    task: str = "countdown"  # a specification, such as countdown(count=4)
    hidden: int = number(64, least=1)
    layers: int = number(3, least=1)
    heads: int = number(2, least=1)
    mlp: int = number(4, least=1)  # width of the feed-forward layers, in hidden sizes
    steps: int = number(800, least=1)
    batch: int = number(64, least=1)
    lr: float = number(4e-3, above=0)
    warmup_steps: int = number(30, least=1)
    solving: float = number(0.8, least=0, most=1)  # share of the examples that solve their problem
    seed: int = number(0, least=0)
    # auto: a GPU if there is one. Only a CPU makes bitwise the same model each time.
    device: str = choice("cpu", ("auto", "cpu", "cuda"))

    def __post_init__(self) -> None:
        check(CountdownRecipe, vars(self), "recipe.")
        if self.hidden % (2 * self.heads):
            raise UserError(
                f"recipe.heads is {self.heads}; each head needs an even share of recipe.hidden ({self.hidden})"
            )

    @cached_property
    def countdown(self) -> Countdown:
        """The task of the specification in `task`."""
        return registry.build("task", {Countdown.name: Countdown}, self.task)

    def identity(self) -> dict[str, Any]:
        """Return the definition of the model; it is the same for all spellings of a task."""
        task = identities.component_identity(self.countdown)
        return {"recipe": {**dataclasses.asdict(self), "task": task}, "version": VERSION}

    def summary(self) -> str:
        """Return a description of the model in one line."""
        trained = f"{self.steps} supervised steps of {self.batch} examples"
        return f"made for {self.task}: {self.layers} layers of {self.hidden}, {trained}"

    def shape(self) -> Shape:
        """Return the shape of the model without making it."""
        return Shape(
            architecture="qwen2",
            vocabulary=2 + len(CHARACTERS) + len(words(self.countdown)),
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.hidden // self.heads,
            mlp=self.mlp * self.hidden,
            qkv_bias=True,
        )


def words(task: Countdown) -> list[str]:
    """Return the tokens of several characters: the opening of the box, and each number that can occur."""
    return [BOX, *map(str, range(10, max(task.largest, task.target) + 1))]
