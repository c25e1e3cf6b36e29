"""The settings of base models that are trained here, for the task and with the examples of a subclass; no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.base import identities
from harness.base.errors import UserError
from harness.base.schema import check, choice, number
from harness.base.shape import Shape
from harness.base.task import Task

VERSION = 1  # of base_model.py; a new version makes new models from the same settings


@dataclass(frozen=True)
class DecoderSettings:
    """A Qwen2-shaped decoder, trained from scratch on supervised examples of training problems."""

    characters: ClassVar[str]  # of prompts and answers; each is a token

    task: str = ""  # a specification, such as countdown(count=4)
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
        check(type(self), vars(self), "recipe.")
        if self.hidden % (2 * self.heads):
            raise UserError(
                f"recipe.heads is {self.heads}; each head needs an even share of recipe.hidden ({self.hidden})"
            )

    # Of the task

    def built_task(self) -> Task:
        """Return the task of the specification in `task`."""
        raise NotImplementedError

    def words(self) -> list[str]:
        """Return the tokens of several characters."""
        raise NotImplementedError

    def examples(self) -> Iterator[tuple[str, str]]:
        """Yield prompts of training problems with responses, without end, the same for the same settings."""
        raise NotImplementedError

    # For the cache, and for people

    def identity(self) -> dict[str, Any]:
        """Return the definition of the model; it is the same for all spellings of a task."""
        task = identities.component_identity(self.built_task())
        return {"recipe": {**dataclasses.asdict(self), "task": task}, "version": VERSION}

    def summary(self) -> str:
        """Return a description of the model in one line."""
        trained = f"{self.steps} supervised steps of {self.batch} examples"
        return f"made for {self.task}: {self.layers} layers of {self.hidden}, {trained}"

    def shape(self) -> Shape:
        """Return the shape of the model without making it."""
        return Shape(
            architecture="qwen2",
            vocabulary=2 + len(self.characters) + len(self.words()),  # 2: padding and the end of a response
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.hidden // self.heads,
            mlp=self.mlp * self.hidden,
            qkv_bias=True,
        )
