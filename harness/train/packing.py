"""Runs sequences in one row, one after the other and without padding, and each prompt once for all of its group there.

Attention alone has to know where sequences begin and end. It puts each one together, prompt and response, computes them
apart from each other, and gives back a result for each place of the row. So it costs what it costs one by one, and all
else is computed once for each token of the row.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from harness.batch import TokenBatch

# Whose attention is causal, perhaps within a window that it names, and takes its positions from what it is given.
ARCHITECTURES = ("gemma3_text", "granite", "llama", "mistral", "phi3", "qwen2", "qwen3")

ATTENTION = "sdpa_or_packed"  # the name that transformers knows ours by


@dataclass(frozen=True)
class Row:
    """Holds where the sequences of a batch stand in a row (_R) and in what attention reads, where each has its prompt
    (_A)."""

    tokens_R: Tensor
    places_R: Tensor  # of the tokens in their sequences, 0 ...
    whole_A: Tensor  # the sequences, by places of the row
    back_R: Tensor  # where attention computes each place of the row
    asked_T: Tensor  # the places of the row from which the response tokens are predicted
    ends: Tensor  # 0, and where each sequence ends for attention
    lengths: list[int]  # of the sequences there, without the last token, from which nothing is predicted

    @classmethod
    def of(cls, batch: TokenBatch, device: str) -> Row:
        prompts, groups = batch.prompt_lengths_B.tolist(), batch.groups_B.tolist()
        lengths = [len(sequence) - 1 for sequence in batch.sequences]
        tokens, places, whole, back, asked = (list[Tensor]() for _ in range(5))
        row = seen = start = 0  # the places that are taken: of the row, and for attention; where the prompt begins
        for number, (sequence, prompt, length) in enumerate(zip(batch.sequences, prompts, lengths, strict=True)):
            fresh = number == 0 or groups[number] != groups[number - 1]
            first = 0 if fresh else prompt  # token that the row does not have yet
            if fresh:
                start = row
            own = torch.arange(row, row + length - first)
            tokens.append(sequence[first:length])
            places.append(torch.arange(first, length))
            back.append(torch.arange(seen + first, seen + length))
            whole.append(own if fresh else torch.cat([torch.arange(start, start + prompt), own]))
            asked.append(whole[-1][prompt - 1 :])
            row, seen = row + length - first, seen + length

        def flat(parts: list[Tensor]) -> Tensor:
            return torch.cat(parts).to(device, non_blocking=True)

        ends = torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32)
        return cls(flat(tokens), flat(places), flat(whole), flat(back), flat(asked), ends, lengths)


def packed_hidden_states(backbone: PreTrainedModel, batch: TokenBatch, device: str) -> Tensor:
    """Returns the hidden state from which each response token is predicted, flat; of a model that is `prepared`."""
    row = Row.of(batch, device)
    hidden_1RD = backbone(
        input_ids=row.tokens_R[None],
        position_ids=row.places_R[None],
        attention_mask=torch.empty(1, 1, 0, 0, device=device),  # in the place of one over the whole row
        use_cache=False,
        row=row,
    ).last_hidden_state
    return hidden_1RD[0].index_select(0, row.asked_T)


def prepared(model: PreTrainedModel) -> bool:
    """Gives the model an attention that can take a row apart, and says whether that is possible."""
    able = model.config.model_type in ARCHITECTURES
    if able:
        model.set_attn_implementation(ATTENTION)
    return able


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row: Row | None = None,
    sliding_window: int | None = None,
    scaling: float | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Returns what torch's attention does, of a row for each of its sequences apart."""
    if row is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **settings)
    q, k, v = (x_1HRD.index_select(2, row.whole_A) for x_1HRD in (query, key, value))
    if fused(v):
        q_AHD, k_AHD, v_AHD = (x_1HAD[0].transpose(0, 1).to(v.dtype) for x_1HAD in (q, k, v))
        longest, window = max(row.lengths), (-1 if sliding_window is None else sliding_window - 1, 0)
        ends = (row.ends, row.ends, longest, longest)  # of queries and keys
        found = varlen_attn(q_AHD, k_AHD, v_AHD, *ends, scale=scaling, window_size=window, enable_gqa=True)
        assert isinstance(found, Tensor)
        found_1AHD = found[None]
    else:
        apart = zip(*(x_1HAD.split(row.lengths, 2) for x_1HAD in (q, k, v)), strict=True)
        masks = (band(length, sliding_window, query.device) for length in row.lengths)
        parts = [
            sdpa_attention_forward(module, *part, mask, scaling=scaling, **settings)[0]
            for part, mask in zip(apart, masks, strict=True)
        ]
        found_1AHD = torch.cat(parts, dim=1)
    return found_1AHD.index_select(1, row.back_R), None


def fused(value: Tensor) -> bool:
    """Says whether torch has one kernel for sequences of many lengths here."""
    able = value.is_cuda and value.dtype == torch.bfloat16 and torch.cuda.get_device_capability() >= (8, 0)
    return able and "enable_gqa" in inspect.signature(varlen_attn).parameters  # which earlier torch does not have


def band(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Returns the mask of a sequence that is longer than the window; None stands for that of all earlier tokens."""
    if window is None or length <= window:
        return None
    place = torch.arange(length, device=device)
    back = place[:, None] - place
    return (back >= 0) & (back < window)


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
