"""Sequences packed into one row, and prompts shared by a group, against the same sequences one by one."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from harness.config import Hardware, Train
from harness.methods.batch import Rollout, TokenBatch
from harness.train import hidden, packing
from harness.train.policy import Policy

WINDOW = 7
SIZES = {
    "vocab_size": 41,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
CASES: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "granite": {"logits_scaling": 8.0},
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "phi3": {"sliding_window": WINDOW},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {},
}


def model(architecture: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, **SIZES, **CASES[architecture])
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double()


def batch(lengths: list[list[int]]) -> TokenBatch:
    """Make groups of responses with these lengths; the prompt of group i has 2 i + 1 tokens."""
    generator = torch.Generator().manual_seed(0)

    def tokens(number: int) -> list[int]:
        return torch.randint(1, 41, (number,), generator=generator).tolist()

    groups = []
    for number, group in enumerate(lengths):
        prompt = tokens(2 * number + 1)
        groups.append([Rollout(prompt, tokens(length), [0.0] * length, True) for length in group])
    return TokenBatch.of(groups, [0.0] * sum(map(len, lengths)), 50, "cpu")


UNEQUAL = batch([[1, 30, 5], [2, 1, 1], [12, 3, 25]])


def after_examples(batch: TokenBatch) -> TokenBatch:
    """Put the same 40 tokens before all prompts; then responses are shorter than their prompts."""
    beginning = torch.arange(1, 41)
    sequences = [torch.cat([beginning, sequence]) for sequence in batch.sequences]
    return dataclasses.replace(batch, sequences=sequences, prompt_lengths_B=batch.prompt_lengths_B + 40)


BATCHES = {"unequal": UNEQUAL, "after examples": after_examples(UNEQUAL), "one group": after_examples(batch([[4, 9]]))}


def computed(network: PreTrainedModel, parts: list[TokenBatch]) -> tuple[Tensor, list[Tensor]]:
    """Return the hidden states of all parts and the gradient of a sum over them in which each number has a weight."""
    network.zero_grad()
    result = torch.cat([hidden.hidden_states(network.base_model, part, "cpu") for part in parts])
    (result * torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result)).sum().backward()
    return result.detach(), [x.grad.clone() for x in network.base_model.parameters() if x.grad is not None]


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("architecture", CASES)
def test_states_and_gradients_are_those_of_one_by_one(architecture: str, name: str) -> None:
    network, batch = model(architecture), BATCHES[name]
    alone = computed(network, [batch.take([row]) for row in range(len(batch))])
    assert packing.prepare_for_packing(network)
    row = computed(network, [dataclasses.replace(batch, packed=True)])
    torch.testing.assert_close(row[0], alone[0], rtol=1e-10, atol=1e-12)
    for one, other in zip(row[1], alone[1], strict=True):  # added up in float32 by the models' norms
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6 * other.abs().max().item())


@pytest.mark.parametrize("architecture", CASES)
def test_statistics_are_those_of_the_models_own_logits(architecture: str, tmp_path: Path) -> None:
    network = model(architecture).float()
    network.save_pretrained(tmp_path)
    stats = Policy(tmp_path, Train(), 0.7, "cpu", torch.float32, Hardware()).stats(UNEQUAL)
    logp, entropy = [], []
    for tokens, prompt in zip(UNEQUAL.sequences, UNEQUAL.prompt_lengths_B.tolist(), strict=True):
        logits_TV = network(input_ids=tokens[None]).logits[0, prompt - 1 : -1] / 0.7
        logp_TV = logits_TV.log_softmax(-1)
        logp.append(logp_TV.gather(1, tokens[prompt:, None])[:, 0])
        entropy.append(-(logp_TV.exp() * logp_TV).sum(-1))
    torch.testing.assert_close(stats.logp, torch.cat(logp).detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(stats.entropy, torch.cat(entropy).detach(), rtol=1e-5, atol=1e-5)


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool = False,
) -> Tensor:
    """Compute what torch's documentation says of the function with this name, token by token."""
    assert enable_gqa or query.shape[1] == key.shape[1]
    assert max_q == max_k == cu_seq_q.diff().max()
    assert torch.equal(cu_seq_q, cu_seq_k)
    share = query.shape[1] // key.shape[1]
    k_AHD, v_AHD = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    left, right = window_size
    assert right == 0, "causal"
    result = []
    for start, end in itertools.pairwise(cu_seq_q.tolist()):
        for place in range(start, end):
            seen = slice(start if left < 0 else max(start, place - left), place + 1)
            p_HA = (torch.einsum("hd,ahd->ha", query[place], k_AHD[seen]) * scale).softmax(-1)
            result.append(torch.einsum("ha,ahd->hd", p_HA, v_AHD[seen]))
    return torch.stack(result)


@pytest.mark.parametrize("grouped", [True, False])  # whether the kernel takes fewer heads of keys than of queries
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("architecture", ["mistral", "qwen3"])
def test_packed_forward_fused(architecture: str, name: str, grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "TAKES_GROUPED_HEADS", grouped)
    network = model(architecture)
    packing.prepare_for_packing(network)
    row = dataclasses.replace(BATCHES[name], packed=True)
    states = computed(network, [row])[0]
    monkeypatch.setattr(packing, "fused", lambda value: True)
    monkeypatch.setattr(packing, "varlen_attn", varlen_attn)
    torch.testing.assert_close(computed(network, [row])[0], states, rtol=1e-10, atol=1e-12)


def test_packed_row_runs_prompts_once() -> None:
    row = packing.PackedRow.of(UNEQUAL, "cpu")
    first, other, last = ([s.tolist() for s in UNEQUAL.sequences[i : i + 3]] for i in (0, 3, 6))
    expected = [first[0][:-1] + first[1][1:-1] + first[2][1:-1], other[0][:-1], last[0][:-1] + last[1][5:-1]]
    assert row.tokens_R.tolist() == [token for part in [*expected, last[2][5:-1]] for token in part]
    assert row.lengths == [len(sequence) - 1 for sequence in UNEQUAL.sequences]
    assert torch.equal(row.whole_A[row.back_R], torch.arange(len(row.tokens_R)))


def test_packed_row_runs_a_shared_beginning_once() -> None:
    row, without = (packing.PackedRow.of(batch, "cpu") for batch in (BATCHES["after examples"], UNEQUAL))
    assert row.tokens_R.tolist() == [*range(1, 41), *without.tokens_R.tolist()]
    # In blocks: the beginning, and each group, whose responses are shorter than its prompt.
    assert [block.own.start for block in row.blocks] == [0, 40, 40 + 34, 40 + 34 + 4]
    assert all(block.before == (slice(0, 40),) for block in row.blocks[1:])


def test_prepare_for_packing_of_other_architectures() -> None:
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", n_embd=8, n_layer=1, n_head=2))
    assert not packing.prepare_for_packing(network)
    assert network.config._attn_implementation == "sdpa"
