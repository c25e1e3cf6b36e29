"""The weights of a model by the names in its folder, with adapters (LoRA) merged into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from harness import ranks

ADAPTER = "default"  # the name of the only adapter of each layer
# Of peft, which puts the former layer and its adapter into one module.
OF_LAYER, OF_ADAPTER = ".base_layer.", ".lora_"


class MergedWeights(Mapping[str, Tensor]):
    """The weights of a model; of several ranks, this rank's shards.

    A weight is merged with its adapter when it is read, in the type of the adapter. So no more than one is in memory
    twice. A tied weight is under each of its names.
    """

    def __init__(self, model: nn.Module) -> None:
        local = ranks.local_weights(model)
        self.unmerged: dict[str, Tensor] = {}
        for name, _ in model.named_parameters(remove_duplicate=False):
            if OF_ADAPTER not in name:
                self.unmerged[name.replace(OF_LAYER, ".")] = local[name]
        self.adapted: dict[str, Any] = {}
        for name, module in model.named_modules():
            if hasattr(module, "get_delta_weight"):
                self.adapted[f"{name}.weight"] = module

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        weight, layer = self.unmerged[name], self.adapted.get(name)
        return weight if layer is None else weight + layer.get_delta_weight(ADAPTER)

    def __iter__(self) -> Iterator[str]:
        return iter(self.unmerged)

    def __len__(self) -> int:
        return len(self.unmerged)
