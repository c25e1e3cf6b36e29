"""The tensors and lists that a caller gives to a method, read in one form; each refusal names the argument."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.base.errors import UserError, shown

Rows = Sequence[int] | Tensor


@dataclass(frozen=True)
class Layout:
    """The arrangement of response tokens in a caller's tensors: padded with a mask, or flat with lengths."""

    lengths_B: Tensor
    mask_BT: Tensor | None

    @classmethod
    def of(cls, mask: Any, lengths: Any, device: torch.device) -> Layout:
        if (mask is None) == (lengths is None):
            raise UserError("give either mask, for padded tensors [B, T], or lengths, for flat ones [T]")
        if mask is not None:
            mask_BT = tensor_of("mask", mask).to(device) != 0
            if mask_BT.ndim != 2:
                raise UserError(f"mask has the shape {list(mask_BT.shape)}; it must be [B, T]")
            return cls(mask_BT.sum(1), mask_BT)
        lengths_B = tensor_of("lengths", lengths).to(device).long()
        if lengths_B.ndim != 1 or (lengths_B < 0).any():
            raise UserError(f"lengths is {shown(lengths)}; allowed: a number of tokens, 0 and more, for each response")
        return cls(lengths_B, None)

    def rows(self, rows_B: Tensor) -> Layout:
        """Return the layout of some responses."""
        return Layout(self.lengths_B[rows_B], None if self.mask_BT is None else self.mask_BT[rows_B])

    def padded_by(self, mask: Any) -> Layout:
        """Return the layout by another mask, with as many tokens in each row; None: this layout."""
        if mask is None:
            return self
        other = Layout.of(mask, None, self.lengths_B.device)
        if other.lengths_B.tolist() != self.lengths_B.tolist():
            raise UserError("mask has other numbers of response tokens than the signal of these rows")
        return other

    def shaped(self, name: str, values: Any, *shape: int) -> Tensor:
        """Return values as a tensor of this shape, which follows from the mask or the lengths."""
        x = tensor_of(name, values).to(self.lengths_B.device)
        if x.shape != shape:
            by = "lengths" if self.mask_BT is None else "mask"
            raise UserError(f"{name} has the shape {list(x.shape)}; by {by} it must be {list(shape)}")
        return x

    def flat(self, name: str, values: Any) -> Tensor:
        """Return the values of the response tokens, row after row; refuse NaN."""
        if self.mask_BT is None:
            x_T = self.shaped(name, values, int(self.lengths_B.sum()))
        else:
            x_T = self.shaped(name, values, *self.mask_BT.shape)[self.mask_BT]
        allowed_T = torch.isfinite(x_T.detach())
        if name.endswith("min_p_logp"):  # in `of_columns` it is old/min_p_logp
            # A token below the threshold of `min_p` has log p -infinity among the likely ones.
            allowed_T |= x_T.detach() == -math.inf
        if not allowed_T.all():
            raise UserError(f"{name} holds NaN or infinity at a response token; allowed: finite numbers")
        return x_T

    def arranged(self, x_T: Tensor) -> Tensor:
        """Return values of the response tokens in the caller's shape, 0 elsewhere."""
        if self.mask_BT is None:
            return x_T
        return x_T.new_zeros(self.mask_BT.shape).masked_scatter(self.mask_BT, x_T)

    def of_responses(self, name: str, values: Any) -> Tensor:
        """Return one value per response."""
        return self.shaped(name, values, len(self.lengths_B)).detach()

    def rewards(self, rewards: Any) -> Tensor:
        rewards_B = self.of_responses("rewards", rewards)
        if not rewards_B.is_floating_point():
            rewards_B = rewards_B.float()
        for row, reward in enumerate(rewards_B.tolist()):
            if not math.isfinite(reward):
                raise UserError(f"the reward of response {row} is {reward}; allowed: finite numbers")
        return rewards_B

    def numbers(self, name: str, values: Iterable[Any]) -> Tensor:
        """Return a number for each response, equal for equal values, in the order of their first rows."""
        places: dict[Any, int] = {}
        try:
            plain = [x.tolist() if hasattr(x, "tolist") else x for x in values]  # a tensor has the hash of its place
            numbers = [places.setdefault(x, len(places)) for x in plain]
        except TypeError as error:
            raise UserError(f"{name} must have a number, a text or a tuple for each response ({error})") from error
        return self.of_responses(name, numbers)


def tensor_of(name: str, values: Any) -> Tensor:
    """Return values as a tensor, halves as float32: denominators and ratios would overflow or be rounded."""
    try:
        x = torch.as_tensor(values)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{name} is not a tensor, nor numbers of one shape: {error}") from error
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def row_numbers(rows: Any, responses: int) -> Tensor:
    """Return the numbers of rows in a batch; refuse masks."""
    rows_B = tensor_of("rows", rows)
    if rows_B.ndim != 1 or not all(type(row) is int for row in rows_B.tolist()):
        raise UserError(f"rows is {shown(rows)}; it must be a list of the numbers of rows")
    for row in rows_B.tolist():
        if not 0 <= row < responses:
            raise UserError(f"rows has {row}; allowed: 0 to {responses - 1}, the rows of the signal's batch")
    return rows_B.long()  # also of an empty list, which torch takes for floats
