"""Shared by the measurements on a GPU, which a machine without one runs with small sizes as a rehearsal."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from harness.base.devices import processor
from harness.base.shape import Shape

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# A rehearsal's model.
SMALL = Shape("qwen2", vocabulary=1000, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=128, tied=True)


def device_name() -> str:
    return torch.cuda.get_device_name() if DEVICE == "cuda" else f"rehearsal on {processor()}"


def wait() -> None:
    """Wait for the device, whose kernels run while Python goes on."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def used_gib() -> float:
    """Return the used memory of the device, of all processes together."""
    if DEVICE == "cpu":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


def config_of(shape: Shape) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=32768,
        tie_word_embeddings=shape.tied,
        bos_token_id=0,
        eos_token_id=0,
    )


@contextmanager
def random_model(shape: Shape) -> Iterator[Path]:
    """Yield the folder of a Qwen2 model with random weights, in bfloat16, in main memory where that is a folder."""
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = Qwen2ForCausalLM(config_of(shape)).to(torch.bfloat16)
    with torch.no_grad():
        model.model.norm.weight.mul_(5)  # logits that differ by more than 1, like those of a trained model
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        model.save_pretrained(folder)
        del model
        yield Path(folder)
