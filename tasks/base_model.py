"""The training of a base model: a small Qwen2-shaped decoder that writes answers, most of them wrong."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import cos, pi
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from harness.base.terminal import without_bars
from tasks.recipe_settings import DecoderSettings

PAD, END = "<pad>", "<eos>"
BYTE_LEVEL_SPACE = "\u0120"  # the character as which a byte-level tokenizer such as Qwen2's writes a space
LONGEST = 256  # tokens of a prompt with its response
WEIGHT_DECAY = 0.01
GRAD_CLIP = 1.0
FINAL_LR = 0.1  # of the peak
IGNORED = -100  # the target that torch's cross entropy skips


def tokenizer(recipe: DecoderSettings) -> Qwen2Tokenizer:
    """Return a tokenizer with a token for each character and each word of the recipe.

    The class is Qwen2Tokenizer because AutoTokenizer loads it for every Qwen2 model, ignoring the model's folder.
    """
    characters = recipe.characters.replace(" ", BYTE_LEVEL_SPACE)
    vocabulary = {token: index for index, token in enumerate((PAD, END, *characters))}
    encoder = Qwen2Tokenizer(
        vocabulary, merges=[], unk_token=None, pad_token=PAD, eos_token=END, model_max_length=LONGEST
    )
    encoder.add_tokens(recipe.words())
    return encoder


def model(recipe: DecoderSettings, encoder: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(encoder),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.mlp * recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=encoder.eos_token_id,
        pad_token_id=encoder.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def batches(recipe: DecoderSettings, encoder: Qwen2Tokenizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield token IDs, padded on the right, with their targets; prompts and padding are IGNORED."""
    stream = recipe.examples()
    for _ in range(recipe.steps):
        prompts, responses = zip(*islice(stream, recipe.batch), strict=True)
        heads = encoder(list(prompts))["input_ids"]
        tails = encoder([response + END for response in responses])["input_ids"]
        longest = max(len(head) + len(tail) for head, tail in zip(heads, tails, strict=True))
        ids, targets = [], []
        for head, tail in zip(heads, tails, strict=True):
            padding = longest - len(head) - len(tail)
            ids.append(head + tail + [encoder.pad_token_id] * padding)
            targets.append([IGNORED] * len(head) + tail + [IGNORED] * padding)
        yield torch.tensor(ids), torch.tensor(targets)


def learning_rate(recipe: DecoderSettings, step: int) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine."""
    if step < recipe.warmup_steps:
        return recipe.lr * (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(recipe.steps - recipe.warmup_steps, 1)
    return recipe.lr * (FINAL_LR + (1 - FINAL_LR) * (1 + cos(pi * progress)) / 2)


def train(recipe: DecoderSettings, encoder: Qwen2Tokenizer, device: str) -> Qwen2ForCausalLM:
    # The weights are drawn on the CPU; the caller's random state stays as it is.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = model(recipe, encoder).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=WEIGHT_DECAY)
    for step, (ids_BT, targets_BT) in enumerate(batches(recipe, encoder)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        # Padding is on the right, where causal attention never looks, so no mask is needed.
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits_BTV = network(ids_BT.to(device), use_cache=False).logits
        loss = cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), targets_BT[:, 1:].flatten().to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return network.cpu().eval()


def build_base_model(recipe: DecoderSettings, folder: Path) -> None:
    """Make the model and save it as a Hugging Face folder; on a CPU, the same recipe gives the same bits."""
    device = recipe.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder = tokenizer(recipe)
    # With one thread, the order of additions does not depend on the number of cores.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        network = train(recipe, encoder, device)
    finally:
        torch.set_num_threads(threads)
    if device == "cuda":
        torch.cuda.empty_cache()  # this process may live as long as a matrix, and its cells need the memory
    with without_bars():
        network.save_pretrained(folder)
    encoder.save_pretrained(folder)
