"""What Countdown offers to make base models from: its recipe, with the way to follow it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.countdown.recipe import Recipe


@dataclass(frozen=True)
class BaseModel(Recipe):
    """A recipe that can be followed. A class of its own, since what follows a recipe imports Recipe, and torch."""

    def build(self, folder: Path) -> None:
        """Makes the model and saves it as a Hugging Face folder."""
        from tasks.countdown import base_model

        base_model.build(self, folder)
