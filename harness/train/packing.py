"""Packed forward passes: sequences in one row without padding, and what several have in common once.

Each prompt is in the row once for its group, and a beginning that all prompts share, such as worked examples, once for
all. Only attention has to know where sequences begin and end. Where torch has a kernel for sequences of many lengths,
it takes all of them, each with its prompt. Elsewhere attention takes blocks of the row, each with what it follows.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from harness.methods.batch import TokenBatch
from harness.methods.distinct import shared_beginning

# Model types whose attention is causal, perhaps within a window that it passes on, and uses the given positions.
ARCHITECTURES = ("gemma3_text", "granite", "llama", "mistral", "phi3", "qwen2", "qwen3")

ATTENTION = "sdpa_or_packed"  # the name under which it is registered with transformers

# Whether torch's kernel takes fewer heads of keys and values than of queries; before torch 2.12 it does not.
TAKES_GROUPED_HEADS = "enable_gqa" in inspect.signature(varlen_attn).parameters


@dataclass(frozen=True)
class Part:
    """The tokens from `first` to `end` of a sequence, and the place in a row where they begin."""

    sequence: int
    first: int
    end: int
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.end - self.first

    @property
    def row_places(self) -> Tensor:
        return torch.arange(self.start, self.stop)


@dataclass(frozen=True)
class Block:
    """Neighboring places of a row that attention takes together, and the earlier parts of the row that they follow."""

    own: slice
    before: tuple[slice, ...]

    def with_before(self, x: Tensor, dim: int) -> Tensor:
        """Select along a dimension of size R."""
        return torch.cat([x.narrow(dim, part.start, part.stop - part.start) for part in (*self.before, self.own)], dim)


@dataclass(frozen=True)
class PackedRow:
    """The places of sequences in a row (_R), and in the kernel's input (_A), where each sequence has its prompt."""

    tokens_R: Tensor
    places_R: Tensor  # of the tokens in their sequences, 0 ...
    response_R: Tensor  # the number of the token's response; -1 in prompts
    whole_A: Tensor  # the sequences of the kernel's input, as places of the row
    back_R: Tensor  # the place in the kernel's input of each place of the row
    predicting_T: Tensor  # the places of the row from which the response tokens are predicted
    ends: Tensor  # 0, and the end of each sequence in the kernel's input
    lengths: list[int]  # of the sequences there, without the last token, from which nothing is predicted
    blocks: list[Block]  # the row, in order
    masks: dict[tuple[int, int | None], Tensor] = field(default_factory=dict)  # by block and window

    @classmethod
    def of(cls, batch: TokenBatch, device: str) -> PackedRow:
        """Return the row of a batch; a prompt is in it once for all neighboring responses of its group."""
        prompt_lengths = batch.prompt_lengths_B.tolist()
        lengths = [len(sequence) - 1 for sequence in batch.sequences]
        groups = [list(rows) for _, rows in groupby(range(len(batch)), key=batch.groups_B.tolist().__getitem__)]
        prompts = [batch.sequences[rows[0]][: prompt_lengths[rows[0]]].tolist() for rows in groups]
        beginning = Part(0, 0, shared_beginning(prompts), 0)
        parts, response_numbers, whole, blocks = [beginning], [-1], [], [Block(slice(0, beginning.stop), ())]
        for rows in groups:
            prompt_length = prompt_lengths[rows[0]]
            # Of an idle batch the prompt is all there is, and nothing is predicted from its last token.
            prompt = Part(rows[0], beginning.end, min(prompt_length, lengths[rows[0]]), parts[-1].stop)
            responses: list[Part] = []
            for number in rows:
                start = responses[-1].stop if responses else prompt.stop
                responses.append(Part(number, prompt_length, max(lengths[number], prompt_length), start))
                whole.append(torch.cat([beginning.row_places, prompt.row_places, responses[-1].row_places]))
            blocks += blocks_of_group(beginning, prompt, responses)
            parts += [prompt, *responses]
            response_numbers += [-1, *rows]

        def flat(tensors: list[Tensor]) -> Tensor:
            return torch.cat(tensors).to(device, non_blocking=True)

        sizes = torch.tensor([part.stop - part.start for part in parts])
        whole_A = flat(whole)
        places_A = torch.arange(len(whole_A), device=device)
        unknown_R = torch.full((parts[-1].stop,), len(whole_A), device=device)
        return cls(
            tokens_R=flat([batch.sequences[part.sequence][part.first : part.end] for part in parts]),
            places_R=flat([torch.arange(part.first, part.end) for part in parts]),
            response_R=flat([torch.tensor(response_numbers).repeat_interleave(sizes)]),
            whole_A=whole_A,
            # What sequences have in common has several places there, with the same result: the first one.
            back_R=unknown_R.scatter_reduce(0, whole_A, places_A, "amin"),
            # A token is predicted from the one before it.
            predicting_T=flat([places[n - 1 :] for places, n in zip(whole, prompt_lengths, strict=True)]),
            ends=torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32),
            lengths=lengths,
            blocks=[block for block in blocks if block.own.start < block.own.stop],
        )

    def mask(self, number: int, window: int | None) -> Tensor:
        """Return which places a block's own ones see: earlier ones of their prompt and response, within the window."""
        if (number, window) not in self.masks:
            block = self.blocks[number]
            place_Q, place_K = self.places_R[block.own], block.with_before(self.places_R, 0)
            response_Q, response_K = self.response_R[block.own], block.with_before(self.response_R, 0)
            back_QK = place_Q[:, None] - place_K
            mask_QK = (response_K == -1) | (response_K == response_Q[:, None])
            mask_QK &= back_QK >= 0
            if window is not None:
                mask_QK &= back_QK < window
            self.masks[number, window] = mask_QK
        return self.masks[number, window]


def blocks_of_group(beginning: Part, prompt: Part, responses: Sequence[Part]) -> list[Block]:
    """Return the group in one block where its responses are short: fewer calls, in which more pairs are masked."""
    before, end = slice(0, beginning.stop), responses[-1].stop
    if end - prompt.stop <= prompt.end:
        return [Block(slice(prompt.start, end), (before,))]
    of_prompt = slice(prompt.start, prompt.stop)
    of_responses = [Block(slice(response.start, response.stop), (before, of_prompt)) for response in responses]
    return [Block(of_prompt, (before,)), *of_responses]


def packed_hidden_states(backbone: PreTrainedModel, batch: TokenBatch, device: str) -> Tensor:
    """Return the hidden state from which each response token is predicted, flat; for a prepared model."""
    row = PackedRow.of(batch, device)
    hidden_1RD = backbone(
        input_ids=row.tokens_R[None],
        position_ids=row.places_R[None],
        # A mask of four dimensions is passed on as it is: without one transformers would build one over the whole row.
        attention_mask=torch.empty(1, 1, 0, 0, device=device),
        use_cache=False,
        row=row,  # an argument that transformers does not know, which it passes on to `attention`
    ).last_hidden_state
    return hidden_1RD[0].index_select(0, row.predicting_T)


def prepare_for_packing(model: PreTrainedModel) -> bool:
    """Give the model an attention that can take a row apart, if its type allows that; return whether it does."""
    possible = model.config.model_type in ARCHITECTURES
    if possible:
        model.set_attn_implementation(ATTENTION)
    return possible


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row: PackedRow | None = None,
    sliding_window: int | None = None,
    scaling: float | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Return torch's own attention; of a packed row, each sequence sees only itself and its prompt."""
    if row is None:  # the mask has the window already
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **settings)
    if fused(value):
        return kernel(query, key, value, row, sliding_window, scaling), None
    parts = []
    for number, block in enumerate(row.blocks):
        q, k, v = query[:, :, block.own], block.with_before(key, 2), block.with_before(value, 2)
        mask = row.mask(number, sliding_window)
        parts.append(sdpa_attention_forward(module, q, k, v, mask, scaling=scaling, **settings)[0])
    return torch.cat(parts, dim=1), None


def kernel(
    query: Tensor, key: Tensor, value: Tensor, row: PackedRow, sliding_window: int | None, scaling: float | None
) -> Tensor:
    """Return torch's attention over sequences of many lengths."""
    q_AHD, k_AHD, v_AHD = (x[0].index_select(1, row.whole_A).transpose(0, 1) for x in (query, key, value))
    # Under autocast, rotary embeddings leave queries and keys in float32, and the kernel takes one type.
    q_AHD, k_AHD = q_AHD.to(v_AHD.dtype), k_AHD.to(v_AHD.dtype)
    settings_of_heads: dict[str, Any] = {}
    if TAKES_GROUPED_HEADS:
        settings_of_heads["enable_gqa"] = True
    else:
        queries_a_head = q_AHD.shape[1] // k_AHD.shape[1]
        k_AHD, v_AHD = (x.repeat_interleave(queries_a_head, dim=1) for x in (k_AHD, v_AHD))
    longest = max(row.lengths)
    # Tokens back, and forward: -1 means unlimited, and a window of n tokens holds the token itself.
    window = (-1 if sliding_window is None else sliding_window - 1, 0)
    ends = (row.ends, row.ends, longest, longest)  # of queries and keys
    result_AHD = varlen_attn(q_AHD, k_AHD, v_AHD, *ends, scale=scaling, window_size=window, **settings_of_heads)
    assert isinstance(result_AHD, Tensor)
    return result_AHD.index_select(0, row.back_R)[None]


def fused(value: Tensor) -> bool:
    """Return whether torch has one kernel for sequences of many lengths here."""
    return value.is_cuda and value.dtype == torch.bfloat16 and torch.cuda.get_device_capability() >= (8, 0)


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
