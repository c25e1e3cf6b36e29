"""Hidden states of response tokens, by the cheapest of three forward passes that the model and the batch allow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from harness import ranks
from harness.methods.batch import TokenBatch
from harness.train import packing


def hidden_states(backbone: PreTrainedModel, batch: TokenBatch, device: str) -> Tensor:
    """Return the hidden state from which each response token is predicted, flat.

    The three passes agree up to rounding:

        packed            sequences in one row without padding, each prompt once; for long sequences, and models whose
                          attention can take a row apart. `TokenBatch.micro_batches` decides
        shared prompts    each prompt once for its whole group, then the responses; where prompts are long
        padded            one row a response, padded on the right; always possible
    """
    if batch.packed:
        return packing.packed_hidden_states(backbone, batch, device)
    if batch.prompts_weigh and can_share_prompts(backbone):
        return hidden_after_shared_prompts(backbone, batch, device)
    return padded_hidden_states(backbone, batch, device)


def can_share_prompts(backbone: PreTrainedModel) -> bool:
    """Return whether a model can run prompts first, which takes two passes, a cache, and an attention mask of ours."""
    if ranks.several():
        return False  # each pass gathers weights from all ranks, so all must make the same number of passes
    if backbone.is_gradient_checkpointing:
        return False  # layers that are recomputed keep no cache
    # For attention that reads a window of the context only, the model has a mask of its own.
    return getattr(backbone.config, "sliding_window", None) is None


def padded(rows: Sequence[Tensor], device: str) -> Tensor:
    """Return rows padded on the right, where no mask is needed: by causal attention no real token sees the padding."""
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True).to(device, non_blocking=True)


def padded_hidden_states(backbone: PreTrainedModel, batch: TokenBatch, device: str) -> Tensor:
    """Return the hidden states by one pass of the padded sequences."""
    hidden_BLD = backbone(input_ids=padded(batch.sequences, device), use_cache=False).last_hidden_state
    # A token is predicted from the one before it, so the first of a response from the last of its prompt.
    position_T = batch.prompt_lengths_B[batch.sequence_T] + batch.within_T - 1
    return hidden_BLD[batch.sequence_T, position_T]


def hidden_after_shared_prompts(backbone: PreTrainedModel, batch: TokenBatch, device: str) -> Tensor:
    """Return the hidden states by a pass of each prompt, once for its group, and one of the responses.

    Gradients flow through the cache of the prompts.
    """
    _, prompt_B, sizes_P = batch.groups_B.unique_consecutive(return_inverse=True, return_counts=True)
    first_P = sizes_P.cumsum(0) - sizes_P
    lengths_B, lengths = batch.prompt_lengths_B, batch.prompt_lengths_B.tolist()
    prompts_of_groups = [batch.sequences[row][: lengths[row]] for row in first_P.tolist()]
    prompts = padded(prompts_of_groups, device)
    # From the last token nothing is predicted.
    tails = padded([sequence[n:-1] for sequence, n in zip(batch.sequences, lengths, strict=True)], device)

    cache = DynamicCache()
    after_prompt = backbone(input_ids=prompts, past_key_values=cache, use_cache=True).last_hidden_state
    last_B1D = after_prompt[prompt_B, lengths_B - 1][:, None]
    if tails.shape[1] == 0:  # responses of one token each
        return last_B1D[batch.sequence_T, batch.within_T]
    cache.batch_select_indices(prompt_B)  # the cache of its prompt for each response, whose gradients add up
    slots, places = torch.arange(prompts.shape[1], device=device), torch.arange(tails.shape[1], device=device)
    # Padding lies between a prompt and its response here, so a mask is needed: a token sees the real tokens of its
    # prompt (_L) and the earlier tokens of its response (_R).
    own_BRL = (slots < lengths_B[:, None])[:, None].expand(-1, len(places), -1)
    earlier_BRR = (places <= places[:, None]).expand(len(batch), -1, -1)
    hidden_BRD = backbone(
        input_ids=tails,
        past_key_values=cache,
        attention_mask=torch.cat([own_BRL, earlier_BRR], dim=2)[:, None],
        position_ids=lengths_B[:, None] + places,
        use_cache=True,
    ).last_hidden_state
    return torch.cat([last_B1D, hidden_BRD], dim=1)[batch.sequence_T, batch.within_T]


def response_tokens(batch: TokenBatch, device: str) -> Tensor:
    """Return the tokens of all responses, flat: the targets of the hidden states."""
    pairs = zip(batch.sequences, batch.prompt_lengths_B.tolist(), strict=True)
    return torch.cat([sequence[prompt_length:] for sequence, prompt_length in pairs]).to(device, non_blocking=True)
