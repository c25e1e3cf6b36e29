"""The shape of a decoder, and its number of parameters in closed form; imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from harness.base.errors import UserError, short, shown
from harness.base.schema import check, within

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")  # model_type of the models that the embedded engine decodes
MOST = 10**9  # for each count: larger numbers are mistakes, and would overflow estimates
COUNT = within(least=1, most=MOST)
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # in each layer


@dataclass(frozen=True)
class Shape:
    """A Llama-shaped decoder: RMSNorm, gated feed-forward layers, grouped attention, biases at most for q, k and v."""

    architecture: str  # the model_type of its config.json
    vocabulary: int = field(metadata=COUNT)
    hidden: int = field(metadata=COUNT)
    layers: int = field(metadata=COUNT)
    heads: int = field(metadata=COUNT)
    kv_heads: int = field(metadata=COUNT)
    head_dim: int = field(metadata=COUNT)
    mlp: int = field(metadata=COUNT)  # width of the feed-forward layers
    tied: bool = False  # the head is the embedding
    qkv_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        check(Shape, vars(self), "shape.")
        if self.heads % self.kv_heads:
            raise UserError(f"shape.kv_heads is {self.kv_heads}; it must divide shape.heads ({self.heads})")

    @property
    def queries(self) -> int:
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """The width of the keys, and of the values."""
        return self.kv_heads * self.head_dim

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """The number of parameters in each layer."""
        attention = 2 * self.hidden * (self.queries + self.keys)
        biases = self.qkv_bias * (self.queries + 2 * self.keys)
        norms = 2 * self.hidden + self.qk_norm * 2 * self.head_dim
        return attention + biases + 3 * self.hidden * self.mlp + norms

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """The inputs and outputs of the products in each layer, by their names in LINEAR."""
        return {
            "q_proj": (self.hidden, self.queries),
            "k_proj": (self.hidden, self.keys),
            "v_proj": (self.hidden, self.keys),
            "o_proj": (self.queries, self.hidden),
            "gate_proj": (self.hidden, self.mlp),
            "up_proj": (self.hidden, self.mlp),
            "down_proj": (self.mlp, self.hidden),
        }

    def adapters(self, rank: int, targets: Sequence[str]) -> int:
        """Return the number of parameters of adapters (LoRA) of this rank for some of LINEAR."""
        return self.layers * rank * sum(sum(self.linear[name]) for name in targets)

    @property
    def body(self) -> int:
        """The number of parameters between the embedding and the head."""
        return self.layers * self.layer + self.hidden

    @property
    def parameters(self) -> int:
        return self.body + self.embedding * (1 if self.tied else 2)

    @property
    def critic(self) -> int:
        """The number of parameters of a critic: the model with a single output instead of the head."""
        return self.body + self.embedding + self.hidden + 1


def read_model_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        settings = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{short(str(path))} is not valid JSON ({short(str(error))}); download or save the model again"
        ) from error
    if not isinstance(settings, dict):
        raise UserError(
            f"{short(str(path))} holds {shown(settings)}; it must be a mapping of keys, as transformers saves it"
        )
    return settings


def shape_of_config(settings: Mapping[str, Any]) -> Shape | None:
    """Return the shape that a config.json states; None if it lacks a key of such decoders."""
    counts = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    if any(settings.get(key) is None for key in ("model_type", *counts)):
        return None
    if not isinstance(settings["model_type"], str):
        raise UserError(f"model_type is {shown(settings['model_type'])} in a model's config.json; it must be text")
    for key in (*counts, "num_key_value_heads", "head_dim"):
        value = settings.get(key)
        if value is not None and not (type(value) is int and 1 <= value <= MOST):
            raise UserError(f"{key} is {shown(value)} in a model's config.json; it must be a whole number, 1 to {MOST}")
    heads = settings["num_attention_heads"]
    # Qwen2 always has biases, and Qwen3 norms of queries and keys, without a key that says so.
    return Shape(
        architecture=settings["model_type"],
        vocabulary=settings["vocab_size"],
        hidden=settings["hidden_size"],
        layers=settings["num_hidden_layers"],
        heads=heads,
        kv_heads=settings.get("num_key_value_heads") or heads,
        head_dim=settings.get("head_dim") or settings["hidden_size"] // heads,
        mlp=settings["intermediate_size"],
        tied=bool(settings.get("tie_word_embeddings")),
        qkv_bias=settings["model_type"] == "qwen2" or bool(settings.get("attention_bias") or settings.get("qkv_bias")),
        qk_norm=settings["model_type"] == "qwen3",
    )


def recomputed_layers(layers: int, share: float) -> int:
    """Return how many layers are recomputed, the first ones: at least the share."""
    return ceil(share * layers)
