"""Checks after every synchronization that the engine samples from the policy that is trained.

A few columns of every parameter, different ones each time, are compared bit by bit between engine and trainer. A column
crosses every row, so it shows any part of a parameter that has not arrived, however small the update was: at a learning
rate of 1e-6, the effect of a skipped update on log-probabilities is lost in the rounding of bfloat16. Other faults (a
kernel, a temperature, a cache that outlived the weights) show in the log-probabilities of the sampled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from harness import ranks
from harness.base.errors import CellFailure
from harness.config import Mismatch
from harness.rollout.protocol import Engine

WIDTH = 16  # columns of each parameter; adjacent ones, which cost no more than one
NAMED = 3  # parameters named in an error
COARSE = "; if it is the rounding of bfloat16 alone, train.dtype=float32 ends it"


def draw_columns(weight: Tensor, rng: np.random.Generator) -> slice:
    """Draw WIDTH adjacent columns of a matrix, and all of a vector."""
    if weight.dim() == 1:
        return slice(None)
    start = int(rng.integers(max(weight.shape[-1] - WIDTH, 0) + 1))
    return slice(start, start + WIDTH)


def check_engine_weights(engine: Engine, module: nn.Module, dtype: torch.dtype, seed: int) -> None:
    """Raise CellFailure if the engine's weights differ from the module's, in the type that both compute in.

    Of a sharded module, only the checked columns are gathered. All ranks gather the same columns in the same order
    before any of them may fail, since a rank that left a collective operation would leave the others waiting. A tied
    head is checked under its own name too, since an engine may keep a copy of it.
    """
    rng = np.random.default_rng(seed)
    columns, wanted = {}, {}
    for name, weight in engine.expected(module).items():
        columns[name] = draw_columns(weight, rng)
        wanted[name] = ranks.whole_weight(weight[..., columns[name]].to(dtype))
    arrived = engine.weights(columns)
    wrong = [name for name, x in wanted.items() if not torch.equal(arrived[name].to(dtype), x.to(arrived[name].device))]
    if wrong:
        more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        raise CellFailure(
            f"{len(wrong)} of {len(columns)} parameters in the engine are not those of the policy that was just loaded "
            f"({', '.join(wrong[:NAMED])}{more}); likely cause: {likely_cause(wrong, len(columns))}"
        )


def likely_cause(wrong: Sequence[str], total: int) -> str:
    if len(wrong) == total:
        return "the load was skipped, or another model was loaded"
    if all(name.startswith("lm_head.") for name in wrong):
        return "a stale head, for example a copy of a head that is tied to the embedding"
    return "the load was skipped or partial, or layers were loaded in the wrong order"


def check_log_ratios(mismatch: Mapping[str, float], allowed: Mismatch, dtype: torch.dtype) -> None:
    """Raise CellFailure if trainer and engine disagree on the probabilities of sampled tokens beyond rounding."""
    name = str(dtype).removeprefix("torch.")
    for key, bound in vars(getattr(allowed, name)).items():
        value = mismatch[f"mismatch/{key}"]
        # Not `value > bound`, which is false if the value is NaN.
        if bound is not None and not value <= bound:
            raise CellFailure(
                f"mismatch/{key} is {value:.3g}, and mismatch.{name}.{key} allows {bound}: trainer and engine do not "
                "give sampled tokens the same log-probabilities, though their weights were the same at the last load; "
                "likely causes: another temperature, a prefix cache that outlived the load, a rotary embedding or a "
                "kernel that computes something else, a lower precision in the engine"
                + (COARSE if dtype == torch.bfloat16 else "")
            )
