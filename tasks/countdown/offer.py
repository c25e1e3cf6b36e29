"""The recipe for base models that Countdown offers, with the way to follow it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.countdown.recipe import CountdownRecipe


@dataclass(frozen=True)
class BaseModel(CountdownRecipe):
    """A recipe that can be followed. Recipe itself cannot: what follows it imports it, and torch."""

    def build(self, folder: Path) -> None:
        """Makes the model and saves it as a Hugging Face folder."""
        from tasks.countdown import base_model

        base_model.build_base_model(self, folder)
