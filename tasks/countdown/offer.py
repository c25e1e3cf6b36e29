"""The recipe of Countdown's base models that can also make them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.countdown.recipe import CountdownRecipe


@dataclass(frozen=True)
class BaseModel(CountdownRecipe):
    """A recipe with `build`, apart from CountdownRecipe because base_model imports that."""

    def build(self, folder: Path) -> None:
        """Make the model and save it as a Hugging Face folder."""
        from tasks.countdown import base_model

        base_model.build_base_model(self, folder)
