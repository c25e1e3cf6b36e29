"""Token statistics and their gradients against loops over the vocabulary in float64."""

from __future__ import annotations

import math

import loops
import pytest
import torch
from torch import Tensor

from harness import tokenstats
from harness.batch import TokenStats
from harness.tokenstats import token_stats

TOKENS, WIDTH, VOCABULARY = 11, 5, 23


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_TD = torch.randn(TOKENS, WIDTH, generator=generator) * torch.linspace(0.1, 3, TOKENS)[:, None]
    weight_VD = torch.randn(VOCABULARY, WIDTH, generator=generator)
    targets_T = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    return hidden_TD.to(dtype).requires_grad_(), weight_VD.to(dtype).requires_grad_(), targets_T


def distributions(hidden_TD: Tensor, weight_VD: Tensor, temperature: float) -> list[list[float]]:
    hidden, weight = hidden_TD.tolist(), weight_VD.tolist()
    return [
        loops.softmax([math.fsum(x * y for x, y in zip(h, w, strict=True)) / temperature for w in weight])
        for h in hidden
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
@pytest.mark.parametrize("chunk", [2**25, 3 * VOCABULARY, 1])
def test_values(temperature: float, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenstats, "CHUNK", chunk)
    hidden_TD, weight_VD, targets_T = inputs()
    with torch.no_grad():
        stats = token_stats(hidden_TD, weight_VD, targets_T, temperature, sum_p2=True)
    for t, p in enumerate(distributions(hidden_TD, weight_VD, temperature)):
        y = int(targets_T[t])
        s = loops.discriminators(p)
        assert stats.logp[t].item() == pytest.approx(math.log(p[y]), rel=1e-5, abs=1e-6)
        assert stats.entropy[t].item() == pytest.approx(loops.entropy(p), rel=1e-5, abs=1e-6)
        assert stats.sum_p2[t].item() == pytest.approx(math.fsum(x**2 for x in p), rel=1e-5)
        assert stats.sum_p2_logp[t].item() == pytest.approx(
            math.fsum(x**2 * math.log(x) for x in p), rel=1e-5, abs=1e-6
        )
        assert stats.discriminator[t].item() == pytest.approx(s[y], rel=1e-4, abs=1e-6)
        expected = math.fsum(x * d for x, d in zip(p, s, strict=True))
        assert stats.expected_discriminator[t].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
@pytest.mark.parametrize("chunk", [2**25, 3 * VOCABULARY, 1])
@pytest.mark.parametrize(("of_logp", "of_entropy"), [(1, 0), (0, 1), (1, 1)])
def test_gradients(
    temperature: float, chunk: int, of_logp: float, of_entropy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dlogp/dz = (e_y - p) / T and dH/dz = -S / T, through the head to the hidden states and its weight."""
    monkeypatch.setattr(tokenstats, "CHUNK", chunk)
    hidden_TD, weight_VD, targets_T = inputs()
    stats = token_stats(hidden_TD, weight_VD, targets_T, temperature, entropy_grad=True, sum_p2=True)
    weights_T = torch.linspace(-1, 2, TOKENS)
    (weights_T * (of_logp * stats.logp + of_entropy * stats.entropy)).sum().backward()

    rows = []
    for t, p in enumerate(distributions(hidden_TD, weight_VD, temperature)):
        s = loops.discriminators(p)
        slopes = [of_logp * ((i == int(targets_T[t])) - p[i]) - of_entropy * s[i] for i in range(VOCABULARY)]
        rows.append([weights_T[t].item() * slope / temperature for slope in slopes])
    by_logits_TV = torch.tensor(rows, dtype=torch.float64)
    expected = (by_logits_TV @ weight_VD.detach().double(), by_logits_TV.T @ hidden_TD.detach().double())
    torch.testing.assert_close(hidden_TD.grad.double(), expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weight_VD.grad.double(), expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk", [2**25, 3 * VOCABULARY])
def test_the_gradient_goes_where_it_is_asked_for_and_nowhere_else(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenstats, "CHUNK", chunk)

    def graph(**which: bool) -> dict[str, bool | None]:
        stats: TokenStats = token_stats(*inputs(), 1.0, **which)
        columns = {name: getattr(stats, name) for name in ("logp", "entropy", "sum_p2", "sum_p2_logp")}
        return {name: None if x is None else x.requires_grad for name, x in columns.items()}

    assert graph() == {"logp": True, "entropy": False, "sum_p2": None, "sum_p2_logp": None}
    assert graph(entropy=False) == {"logp": True, "entropy": None, "sum_p2": None, "sum_p2_logp": None}
    everything = {"logp": True, "entropy": True, "sum_p2": False, "sum_p2_logp": False}
    assert graph(entropy_grad=True, sum_p2=True) == everything
    with torch.no_grad():
        assert graph(entropy_grad=True, sum_p2=True) == dict.fromkeys(everything, False)


def test_statistics_are_those_of_float32_logits_when_the_model_computes_in_bfloat16() -> None:
    hidden_TD, weight_VD, targets_T = inputs(torch.bfloat16)
    stats = token_stats(hidden_TD, weight_VD, targets_T, 1.0)
    logits_TV = (hidden_TD @ weight_VD.T).detach().tolist()
    assert stats.logp.dtype == stats.entropy.dtype == torch.float32
    for t, logits in enumerate(logits_TV):
        p = loops.softmax(logits)
        assert stats.logp[t].item() == pytest.approx(math.log(p[int(targets_T[t])]), rel=1e-5, abs=1e-6)
        assert stats.entropy[t].item() == pytest.approx(loops.entropy(p), rel=1e-5, abs=1e-6)


def test_a_token_that_cannot_come_adds_nothing() -> None:
    """0 log 0 = 0, whether the logit is -inf or only far below the others."""
    for low in (-math.inf, -1e4):
        weight_VD = torch.tensor([[0.0], [1.0], [low]])
        stats = token_stats(torch.ones(1, 1), weight_VD, torch.tensor([1]), 1.0, sum_p2=True)
        p = loops.softmax([0.0, 1.0])
        assert stats.entropy.item() == pytest.approx(loops.entropy(p), rel=1e-6)
        assert stats.sum_p2.item() == pytest.approx(p[0] ** 2 + p[1] ** 2, rel=1e-6)
        assert stats.sum_p2_logp.item() == pytest.approx(sum(x**2 * math.log(x) for x in p), rel=1e-6)
