"""The engine of a model that is sampled and not trained, in as much memory as the machine has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from harness.config import Config
from harness.rollout import engines
from harness.rollout.choice import EMBEDDED, EMBEDDED_SEQUENCES
from harness.rollout.embedded import EmbeddedEngine
from harness.rollout.proof import check_engine_weights
from harness.rollout.protocol import Sampling
from harness.train.parts import training_device
from harness.train.policy import check_vocabulary
from harness.train.weights import load_model

PROMPT = 2048  # tokens assumed for a prompt when memory is divided among sequences


def untrained_engine(folder: Path, tokenizer: Any, ends: Sequence[int], config: Config, budget: int) -> Sampling:
    """Return an engine with the weights in a folder, for responses of at most `budget` tokens."""
    device, dtype = training_device(config)
    if config.rollout.engine != EMBEDDED:  # vLLM loads the model from the folder
        return engines.build_engine(config.rollout.engine, folder, ends, device, dtype, config.hardware)
    model = load_model(folder, dtype)
    check_vocabulary(tokenizer, model, folder)
    engine = EmbeddedEngine(ends, device, dtype, side_by_side(model.config, device, dtype, budget))
    engine.load(model)
    check_engine_weights(engine, model, dtype, seed=0)
    return engine


def side_by_side(config: Any, device: str, dtype: torch.dtype, budget: int) -> int:
    """Return the number of sequences whose keys and values fill half of the memory.

    Half of all memory, not of the free memory, which varies from run to run.
    """
    heads = config.num_key_value_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    bytes_of_token = 2 * config.num_hidden_layers * heads * head_size * dtype.itemsize  # a key and a value
    bytes_of_sequence = bytes_of_token * (PROMPT + budget)
    if device == "cuda":
        memory = torch.cuda.get_device_properties(0).total_memory
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(max(memory // 2 // bytes_of_sequence, 1), EMBEDDED_SEQUENCES))
