"""The engine of a model that is sampled and not trained, in as much memory as the machine has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from harness.base.units import GIB
from harness.config import Config
from harness.rollout import engines
from harness.rollout.choice import EMBEDDED
from harness.rollout.embedded import EmbeddedEngine
from harness.rollout.proof import check_engine_weights
from harness.rollout.protocol import Sampling
from harness.train.parts import training_device
from harness.train.policy import check_vocabulary
from harness.train.weights import load_model


def untrained_engine(folder: Path, tokenizer: Any, ends: Sequence[int], config: Config) -> Sampling:
    device, dtype = training_device(config)
    if config.rollout.engine != EMBEDDED:  # vLLM loads the model from the folder
        return engines.build_engine(config.rollout.engine, folder, ends, device, dtype, config.hardware)
    model = load_model(folder, dtype)
    check_vocabulary(tokenizer, model, folder)
    engine = EmbeddedEngine(ends, device, dtype, config.hardware.cache_gib or half_of_memory(device))
    engine.load(model)
    check_engine_weights(engine, model, dtype, seed=0)
    return engine


def half_of_memory(device: str) -> float:
    """Return half of a device's memory in GiB: of all of it, since the free part varies from run to run."""
    if device == "cuda":
        memory = torch.cuda.get_device_properties(0).total_memory
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return memory / 2 / GIB
