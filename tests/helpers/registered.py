"""Registered methods by their specs, and their losses of a whole batch compared with those of loops."""

from __future__ import annotations

import pytest
import torch
from loops import Oracle
from ragged import Case

import baselines
from harness.methods.composition import Method


def method(spec: str) -> Method:
    return Method.of(spec, baselines.table())


def check_loss(m: Method, c: Case, oracle: Oracle) -> None:
    """Compare the loss and the gradient of a batch as one mini-batch in one part."""
    expected, gradient = oracle.loss(c, range(len(c.batch)))
    loss = m.loss(c.current(), m.signal(c.old, c.batch, [c.batch]), c.batch)
    loss.backward()
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    expected_TV = torch.tensor([gradient[t] for t in sorted(gradient)], dtype=torch.float64)
    torch.testing.assert_close(c.logits_TV.grad, expected_TV, rtol=1e-9, atol=1e-12)
