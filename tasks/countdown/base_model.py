"""The base model of Countdown: a small Qwen2-shaped decoder that has learned to write answers, mostly wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import cos, pi
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import tasks
from tasks.countdown import BOX, Countdown, examples
from tasks.countdown.recipe import Recipe

PAD, END = "<pad>", "<eos>"
CHARACTERS = "0123456789+-*()=: }"
LONGEST = 256  # tokens of a prompt with its response
WEIGHT_DECAY = 0.01
GRAD_CLIP = 1.0
FINAL_LR = 0.1  # of the peak


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each character and one for the opening of the box; other characters are an error, not a token."""
    vocabulary = {token: number for number, token in enumerate((PAD, END, BOX, *CHARACTERS))}
    backend = Tokenizer(models.WordLevel(vocabulary))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|."), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=PAD, eos_token=END, model_max_length=LONGEST)


def model(recipe: Recipe, characters: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(characters),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.mlp * recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=characters.eos_token_id,
        pad_token_id=characters.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def batches(
    recipe: Recipe, task: Countdown, characters: PreTrainedTokenizerFast
) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids, padded on the right, and the targets: -100 in the prompt and in the padding."""
    stream = examples(task, recipe.seed, recipe.solving)
    for _ in range(recipe.steps):
        prompts, responses = zip(*islice(stream, recipe.batch), strict=True)
        heads = characters(list(prompts))["input_ids"]
        tails = characters([response + END for response in responses])["input_ids"]
        longest = max(len(head) + len(tail) for head, tail in zip(heads, tails, strict=True))
        ids_BT = torch.full((recipe.batch, longest), characters.pad_token_id)
        targets_BT = torch.full((recipe.batch, longest), -100)
        for row, (head, tail) in enumerate(zip(heads, tails, strict=True)):
            end = len(head) + len(tail)
            ids_BT[row, :end] = torch.tensor(head + tail)
            targets_BT[row, len(head) : end] = torch.tensor(tail)
        yield ids_BT, targets_BT


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then a cosine."""
    if step < recipe.warmup_steps:
        return recipe.lr * (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(recipe.steps - recipe.warmup_steps, 1)
    return recipe.lr * (FINAL_LR + (1 - FINAL_LR) * (1 + cos(pi * progress)) / 2)


def train(recipe: Recipe, task: Countdown, characters: PreTrainedTokenizerFast, device: str) -> Qwen2ForCausalLM:
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        network = model(recipe, characters).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=WEIGHT_DECAY)
    for step, (ids_BT, targets_BT) in enumerate(batches(recipe, task, characters)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        # Padding stands on the right, where causal attention never looks: no mask is needed.
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits_BTV = network(ids_BT.to(device), use_cache=False).logits
        loss = cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), targets_BT[:, 1:].flatten().to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return network.cpu().eval()


def build(recipe: Recipe, folder: Path, device: str = "cpu") -> None:
    """Make the model and save it as an ordinary Hugging Face folder; on a CPU the same bits for the same recipe."""
    task = tasks.build(recipe.task)
    assert isinstance(task, Countdown)
    characters = tokenizer()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        network = train(recipe, task, characters, device)
    finally:
        torch.set_num_threads(threads)
    network.save_pretrained(folder)
    characters.save_pretrained(folder)
