"""LoRA: adapters of the linear layers of a frozen model, which are trained instead of its weights."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from harness.base import seeds
from harness.base.shape import shape_of_config
from harness.config import Lora, check_adapters_fit
from harness.rollout.merged import ADAPTER


def add_adapters(model: PreTrainedModel, settings: Lora, seed: int) -> None:
    """Freeze a model, and add adapters to its linear layers, which then compute W x + alpha / rank * B A x.

    B starts at zero, so that the model stays the same until it is trained. A is drawn from the seed.
    """
    from peft import LoraConfig, inject_adapter_in_model  # of the extra `lora`; it takes seconds to import

    shape = shape_of_config(model.config.to_dict())
    assert shape is not None
    check_adapters_fit(settings, shape)  # again: a model of the Hub may have had no shape before it was here
    # `rank` and `alpha` are the only settings: a bias or dropout would make the engine's merged weights another policy.
    adapters = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=settings.targets)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seeds.derive("lora", seed))
        inject_adapter_in_model(adapters, model, ADAPTER)
