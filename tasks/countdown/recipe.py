"""What defines a base model that is made here; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from harness.config import UserError, at_least


@dataclass(frozen=True)
class Recipe:
    """A Qwen2-shaped decoder, trained from nothing on supervised examples of training problems."""

    task: str = "countdown"  # a specification, such as countdown(count=4)
    hidden: int = 64
    layers: int = 3
    heads: int = 2
    mlp: int = 4  # width of the feed-forward layers, in hidden sizes
    steps: int = 400
    batch: int = 128
    lr: float = 4e-3
    warmup_steps: int = 30
    solving: float = 0.6  # share of the examples that solve their problem
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("hidden", "layers", "heads", "mlp", "steps", "batch", "warmup_steps")
        at_least(1, **{f"recipe.{key}": getattr(self, key) for key in counts})
        if self.hidden % (2 * self.heads):
            raise UserError(
                f"recipe.heads is {self.heads}; each head needs an even share of recipe.hidden ({self.hidden})"
            )
        if not 0 <= self.solving <= 1:
            raise UserError(f"recipe.solving is {self.solving}; allowed: 0 to 1")
