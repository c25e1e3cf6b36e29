"""The recipe of Countdown's base models with the function that makes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.countdown.recipe import CountdownRecipe


@dataclass(frozen=True)
class BaseModel(CountdownRecipe):
    """A recipe with `build`; a class of its own, since base_model imports CountdownRecipe."""

    def build(self, folder: Path) -> None:
        """Make the model and save it as a Hugging Face folder."""
        from tasks.countdown import base_model

        base_model.build_base_model(self, folder)
