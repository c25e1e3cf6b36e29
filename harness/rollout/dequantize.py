"""The conversion of a GGUF file to a Hugging Face folder, by transformers, with checks of its result."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, modeling_gguf_pytorch_utils

from harness.base import terminal
from harness.base.errors import UserError, short
from harness.base.shape import Shape, shape_of_config

# Read twice: a model whose queries and keys have the right order of rows copies the second time.
PASSAGE = (
    "The old man walked down to the river. It had rained all night, and the water was high and brown. He sat on a "
    "stone, took some bread out of his bag, and watched the birds on the other side."
)
KNOWN_TEXT = f"{PASSAGE} {PASSAGE}"
# In nats per character of the text, so that vocabularies compare. SmolLM2-135M of 4 bits has 0.42, and 0.93 to
# 0.98 with the rows of its queries and keys in another order; larger models have less.
MOST_NATS = 0.65


def convert(path: Path, folder: Path, shape: Shape) -> None:
    """Save the model of a file in float32; UserError if the result is not the model that its header describes."""
    bar = modeling_gguf_pytorch_utils.tqdm
    modeling_gguf_pytorch_utils.tqdm = partial(bar, disable=True)
    try:
        with terminal.without_bars():
            tokenizer, network = read(path)
            check(tokenizer, network, shape)
            dequantized(network).save_pretrained(folder)
            save_tokenizer(tokenizer, folder, shape.vocabulary)
    except UserError as error:
        raise UserError(f"{short(str(path))} cannot be converted: {error}") from error
    finally:
        modeling_gguf_pytorch_utils.tqdm = bar


def read(path: Path) -> tuple[Any, PreTrainedModel]:
    """Return the tokenizer and the model in a file."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        network, loading = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # readers of headers, tokenizers and tensors share no base class
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"transformers reads no model in it ({type(error).__name__}: {reason})") from error
    for what, names in loading.items():
        if names:
            raise UserError(f"transformers reports {what.replace('_', ' ')}: {short(', '.join(map(str, names)))}")
    return tokenizer, network


def check(tokenizer: Any, network: PreTrainedModel, shape: Shape) -> None:
    """Raise UserError for another shape, or weights that do not know English."""
    converted = shape_of_config(network.config.to_dict())
    if converted != shape:
        raise UserError(f"transformers reads the shape {converted}, and its header states {shape}")
    nats = nats_per_character(tokenizer, network)
    if not nats <= MOST_NATS:
        raise UserError(
            f"its weights give a plain English text {nats:.2f} nats per character, and a language model gives at most "
            f"{MOST_NATS}: they are in another order, or untrained"
        )


@torch.inference_mode()
def nats_per_character(tokenizer: Any, network: PreTrainedModel) -> float:
    """Return the negative log-likelihood of KNOWN_TEXT, divided by its characters."""
    ids = torch.tensor([tokenizer(KNOWN_TEXT)["input_ids"]])
    mean = network(input_ids=ids, labels=ids).loss.item()
    return float(mean * (ids.shape[1] - 1) / len(KNOWN_TEXT))


def save_tokenizer(tokenizer: Any, folder: Path, vocabulary: int) -> None:
    """Save a tokenizer with the tokens that the model has; UserError if it then reads a text differently."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    saved = json.loads(path.read_bytes())
    # transformers adds <|endoftext|> to each byte-level vocabulary that lacks it, such as that of Llama 3.
    saved["added_tokens"] = [token for token in saved["added_tokens"] if token["id"] < vocabulary]
    path.write_text(json.dumps(saved, ensure_ascii=False), "utf-8")
    again = AutoTokenizer.from_pretrained(folder)
    if sorted(again.get_vocab().values()) != list(range(vocabulary)):
        raise UserError(f"transformers reads {len(again)} tokens, and its embedding has {vocabulary}")
    if again(KNOWN_TEXT)["input_ids"] != tokenizer(KNOWN_TEXT)["input_ids"]:
        raise UserError("its tokenizer gives other tokens once it is saved and read again")


def dequantized(network: PreTrainedModel) -> PreTrainedModel:
    """Return the same weights in a model that can be saved: transformers refuses one that was read from GGUF."""
    config = network.config
    del config.quantization_config
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(network.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = network.generation_config
    return plain
