"""Builds the engine of a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.config import Hardware
from harness.rollout.protocol import Engine

if TYPE_CHECKING:
    from pathlib import Path

    import torch


def build_engine(name: str, folder: Path, eos: int, device: str, dtype: torch.dtype, hardware: Hardware) -> Engine:
    """Returns the engine of this name for the model in a folder; it samples after its first `load`."""
    if name == "embedded":
        from harness.rollout.embedded import EmbeddedEngine

        return EmbeddedEngine(eos, device, dtype)
    from harness.rollout.vllm import VllmEngine

    return VllmEngine(folder, eos, device, dtype, hardware.cache_gib, hardware.share)
