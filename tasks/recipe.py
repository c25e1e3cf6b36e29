"""Recipes of base models that can also make them, apart from their settings because base_model imports those."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tasks.recipe_settings import DecoderSettings


@dataclass(frozen=True)
class DecoderRecipe(DecoderSettings):
    """Settings with `build`."""

    def build(self, folder: Path, say: Callable[[str], None]) -> None:
        """Make the model and save it as a Hugging Face folder."""
        from tasks import base_model

        base_model.build_base_model(self, folder)
