"""Every backend of the token statistics, values and gradients, against loops over the vocabulary in float64."""

from __future__ import annotations

import math
from typing import Any

import loops
import pytest
import torch
from known import known
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.methods.batch import TokenStats
from harness.tokens.head import Head
from harness.tokens.statistics import BACKENDS, SMALL, streaming, token_stats

TOKENS, WIDTH, VOCABULARY = 11, 5, 23
BLOCKS: dict[str, list[tuple[int, int] | None]] = {  # how a backend may cut its work
    "dense": [None],
    "torch": [(2**7, 2**10), (4, 7), (1, 1)],
}
ASKED = ("logp", "entropy", "sum_p2", "sum_p2_logp", "min_p_logp", "likeliest_entropy")
ALL = dict.fromkeys(("entropy_grad", "sum_p2", "min_p", "likeliest_entropy"), True)
CUTS = [(name, block) for name in BACKENDS for block in BLOCKS[name]]


@pytest.fixture(params=CUTS, ids=str)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name, block = request.param
    if block is not None:
        monkeypatch.setitem(streaming.BLOCK, "cpu", block)
    return name


@pytest.fixture(params=["plain", "bias", "softcap", "both"])
def form(request: pytest.FixtureRequest) -> tuple[bool, float | None]:
    return request.param in ("bias", "both"), 2.5 if request.param in ("softcap", "both") else None


def inputs(
    dtype: torch.dtype = torch.float32, bias: bool = False, softcap: float | None = None
) -> tuple[Tensor, Head, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_TD = torch.randn(TOKENS, WIDTH, generator=generator) * torch.linspace(0.1, 3, TOKENS)[:, None]
    weight_VD = torch.randn(VOCABULARY, WIDTH, generator=generator)
    targets_T = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    bias_V = torch.randn(VOCABULARY, generator=generator).to(dtype).requires_grad_() if bias else None
    head = Head(weight_VD.to(dtype).requires_grad_(), bias_V, softcap)
    return hidden_TD.to(dtype).requires_grad_(), head, targets_T


def logits(hidden_TD: Tensor, head: Head) -> list[list[float]]:
    hidden, weight = hidden_TD.tolist(), head.weight_VD.tolist()
    bias = [0.0] * len(weight) if head.bias_V is None else head.bias_V.tolist()
    rows = [
        [math.fsum(x * y for x, y in zip(h, w, strict=True)) + b for w, b in zip(weight, bias, strict=True)]
        for h in hidden
    ]
    cap = head.softcap
    return rows if cap is None else [[cap * math.tanh(z / cap) for z in row] for row in rows]


def distributions(hidden_TD: Tensor, head: Head, temperature: float) -> list[list[float]]:
    return [loops.softmax([z / temperature for z in row]) for row in logits(hidden_TD, head)]


def check(stats: TokenStats, p_TV: list[list[float]], targets_T: Tensor, tolerance: float = 1e-6) -> None:
    for t, p in enumerate(p_TV):
        y, s = int(targets_T[t]), loops.discriminators(p)
        assert stats.logp[t].item() == pytest.approx(math.log(p[y]), rel=1e-5, abs=tolerance)
        assert known(stats.entropy)[t].item() == pytest.approx(loops.entropy(p), rel=1e-5, abs=tolerance)
        assert known(stats.sum_p2)[t].item() == pytest.approx(math.fsum(x**2 for x in p), rel=1e-5)
        sum_p2_logp = math.fsum(x * loops.xlogx(x) for x in p)
        assert known(stats.sum_p2_logp)[t].item() == pytest.approx(sum_p2_logp, rel=1e-5, abs=tolerance)
        if stats.min_p_logp is not None:
            kept = [x for x in p if x >= 0.02 * max(p)]
            filtered = math.log(p[y] / math.fsum(kept)) if p[y] in kept else -math.inf
            assert stats.min_p_logp[t].item() == pytest.approx(filtered, rel=1e-5, abs=tolerance)
        if stats.likeliest_entropy is not None:
            of_two = loops.likeliest(p)[0]
            assert stats.likeliest_entropy[t].item() == pytest.approx(of_two, rel=1e-5, abs=5 * tolerance)
        assert stats.discriminator[t].item() == pytest.approx(s[y], rel=1e-4, abs=tolerance)
        expected = math.fsum(x * d for x, d in zip(p, s, strict=True))
        assert stats.expected_discriminator[t].item() == pytest.approx(expected, rel=1e-4, abs=tolerance)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
def test_values(backend: str, form: tuple[bool, float | None], temperature: float) -> None:
    hidden_TD, head, targets_T = inputs(bias=form[0], softcap=form[1])
    with torch.no_grad():
        stats = token_stats(hidden_TD, head, targets_T, temperature, **ALL, backend=backend)
    check(stats, distributions(hidden_TD, head, temperature), targets_T)


@pytest.mark.parametrize(("of_logp", "of_entropy", "of_likeliest"), [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)])
def test_gradients(backend: str, of_logp: float, of_entropy: float, of_likeliest: float) -> None:
    """Expect dlogp/dz = (e_y - p) / T and dH/dz = -S / T, through the head to the hidden states and its weight."""
    temperature = 0.7
    hidden_TD, head, targets_T = inputs()
    stats = token_stats(hidden_TD, head, targets_T, temperature, **ALL, backend=backend)
    weights_T = torch.linspace(-1, 2, TOKENS)
    of_both_T = of_entropy * known(stats.entropy) + of_likeliest * known(stats.likeliest_entropy)
    (weights_T * (of_logp * stats.logp + of_both_T)).sum().backward()

    rows = []
    for t, p in enumerate(distributions(hidden_TD, head, temperature)):
        s, of_two = loops.discriminators(p), loops.likeliest(p)[1]
        slopes = [of_logp * ((i == int(targets_T[t])) - p[i]) - of_entropy * s[i] for i in range(VOCABULARY)]
        slopes = [slope + of_likeliest * x for slope, x in zip(slopes, of_two, strict=True)]
        rows.append([weights_T[t].item() * slope / temperature for slope in slopes])
    by_logits_TV = torch.tensor(rows, dtype=torch.float64)
    expected = (by_logits_TV @ head.weight_VD.detach().double(), by_logits_TV.T @ hidden_TD.detach().double())
    torch.testing.assert_close(known(hidden_TD.grad).double(), expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(known(head.weight_VD.grad).double(), expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("entropies", [False, True])
@pytest.mark.parametrize("form", ["plain", "both"], indirect=True)
def test_gradients_by_finite_differences(backend: str, form: tuple[bool, float | None], entropies: bool) -> None:
    hidden_TD, head, targets_T = inputs(torch.float64, bias=form[0], softcap=form[1])
    few = VOCABULARY // 2  # since the work grows with its square where each token is a block
    two_TD, targets_T = hidden_TD.detach()[-2:].requires_grad_(), targets_T[-2:] % few

    def differentiable(hidden_TD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> tuple[Tensor, ...]:
        changed = Head(weight_VD, bias_V, head.softcap)
        asked: dict[str, Any] = dict.fromkeys(("entropy_grad", "likeliest_entropy"), entropies)
        stats = token_stats(hidden_TD, changed, targets_T, 1.3, **asked, backend=backend)
        return (stats.logp, known(stats.entropy), known(stats.likeliest_entropy)) if entropies else (stats.logp,)

    parts: Any = (None if x is None else x.detach()[:few].requires_grad_() for x in (head.weight_VD, head.bias_V))
    assert torch.autograd.gradcheck(differentiable, (two_TD, *parts))


def test_token_stats_gradients(backend: str) -> None:
    def graph(**which: Any) -> dict[str, bool | None]:
        stats = token_stats(*inputs(), 1.0, **which, backend=backend)
        columns = {name: getattr(stats, name) for name in ASKED}
        return {name: None if x is None else x.requires_grad for name, x in columns.items()}

    nothing = dict.fromkeys(ASKED)
    assert graph() == nothing | {"logp": True, "entropy": False}
    assert graph(entropy=False) == nothing | {"logp": True}
    assert graph(entropy=False, min_p=True) == nothing | {"logp": True, "min_p_logp": False}
    sums = {"sum_p2": False, "sum_p2_logp": False}
    assert graph(entropy_grad=True, sum_p2=True) == nothing | sums | {"logp": True, "entropy": True}
    with_gradient = {"logp": True, "entropy": True, "likeliest_entropy": True}
    assert graph(**ALL) == dict.fromkeys(ASKED, False) | with_gradient
    with torch.no_grad():
        assert graph(**ALL) == dict.fromkeys(ASKED, False)


def test_asking_for_more_changes_nothing(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        more = token_stats(*inputs(), 1.0, sum_p2=True, likeliest_entropy=True, backend=backend)
        monkeypatch.setattr(Tensor, "topk", None)  # without the request no tokens are ranked
        less = token_stats(*inputs(), 1.0, backend=backend)
    assert torch.equal(less.logp, more.logp)
    assert torch.equal(known(less.entropy), known(more.entropy))


def test_token_stats_with_a_frozen_head(backend: str) -> None:
    hidden_TD, head, targets_T = inputs()
    frozen = Head(head.weight_VD.detach())
    for given in (head, frozen):
        token_stats(hidden_TD, given, targets_T, 1.0, backend=backend).logp.sum().backward()
    assert torch.isfinite(known(head.weight_VD.grad)).all()
    assert frozen.weight_VD.grad is None


def test_statistics_of_a_model_in_bfloat16(backend: str) -> None:
    """Expect those of bfloat16 inputs, whose product is not rounded again."""
    hidden_TD, head, targets_T = inputs(torch.bfloat16)
    with torch.no_grad():
        stats = token_stats(hidden_TD, head, targets_T, 1.0, **ALL, backend=backend)
    assert stats.logp.dtype == known(stats.entropy).dtype == torch.float32
    check(stats, distributions(hidden_TD, head, 1.0), targets_T)


def test_token_stats_under_autocast_on_a_cpu_keep_the_head_as_it_is(backend: str) -> None:
    hidden_TD, head, targets_T = inputs()
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            stats = token_stats(hidden_TD, head, targets_T, 1.0, backend=backend)
        expected = token_stats(hidden_TD.to(torch.bfloat16), head, targets_T, 1.0, backend=backend)
    assert torch.equal(stats.logp, expected.logp)
    assert torch.equal(known(stats.entropy), known(expected.entropy))


EXTREMES = {
    "one-hot": [200.0] + [0.0] * 30,
    "uniform": [3.0] * 31,
    "far from 0": [-1000.0, -1001.0, -1002.5],
    "two tokens": [0.3, -0.4],
    "masked": [-math.inf, 0.5, -math.inf, -math.inf, 1.5, -math.inf],
    "masked at first": [-math.inf] * 8 + [0.0, 1.0],
    "out of reach": [0.0, 1.0, -1e4],
    "masked but for one": [-math.inf, -math.inf, 0.5],
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("upstream", [1.0, -3.0, 1e6])
def test_extreme_distributions(backend: str, name: str, temperature: float, upstream: float) -> None:
    """Take 0 log 0 as 0, whether a logit is -inf or only far below the others, and whatever the gradient that comes
    back to it."""
    bias_V = torch.tensor(EXTREMES[name], requires_grad=True)
    hidden_TD = torch.zeros(1, 1, requires_grad=True)
    target = max(range(len(bias_V)), key=EXTREMES[name].__getitem__)
    head = Head(torch.ones(len(bias_V), 1), bias_V)
    stats = token_stats(hidden_TD, head, torch.tensor([target]), temperature, **ALL, backend=backend)
    p = loops.softmax([z / temperature for z in EXTREMES[name]])
    check(stats, [p], torch.tensor([target]))
    (upstream * (stats.logp + known(stats.entropy) + known(stats.likeliest_entropy))).sum().backward()
    numbers = enumerate(zip(p, loops.discriminators(p), loops.likeliest(p)[1], strict=True))
    slopes = [((i == target) - x - s + of_two) / temperature for i, (x, s, of_two) in numbers]
    result_V = known(bias_V.grad).double() / upstream
    torch.testing.assert_close(result_V, torch.tensor(slopes, dtype=torch.float64), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 5.0, 60.0])
def test_token_stats_of_a_large_vocabulary(scale: float) -> None:
    """Compare with float64 on the very same logits, which are far from 0."""
    generator = torch.Generator().manual_seed(0)
    logits_TV = torch.randn(6, 152_064, generator=generator) * scale / 4 + 40
    targets_T = torch.randint(152_064, (6,), generator=generator)
    with torch.no_grad():
        # Hidden states of one-hot rows pick the logits out of the head as they are.
        stats = token_stats(torch.eye(6), Head(logits_TV.T.contiguous()), targets_T, 1.0, sum_p2=True)
    logp_TV = logits_TV.double().log_softmax(-1)
    p_TV, h_T = logp_TV.exp(), torch.special.entr(logp_TV.exp()).sum(-1)
    s_TV = p_TV * (h_T[:, None] + logp_TV)
    n_T, s_T = (p_TV * s_TV).sum(-1), s_TV.gather(1, targets_T[:, None]).squeeze(1)
    assert (stats.entropy - h_T).abs().max() < 1e-6
    assert (stats.expected_discriminator - n_T).abs().max() < 5e-7
    assert (stats.expected_discriminator - stats.discriminator - (n_T - s_T)).abs().max() < 5e-7


class Largest(TorchDispatchMode):
    """Counts the most elements of a tensor that an operation made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        made = [x for x in (result if isinstance(result, tuple | list) else [result]) if isinstance(x, Tensor)]
        self.elements = max([self.elements, *(x.numel() for x in made)])
        return result


def test_logits_are_never_held_for_all_tokens() -> None:
    tokens, vocabulary = 600, 2 * SMALL
    generator = torch.Generator().manual_seed(0)
    hidden_TD = torch.randn(tokens, 8, generator=generator, requires_grad=True)
    weight_VD = torch.randn(vocabulary, 8, generator=generator, requires_grad=True)
    targets_T = torch.randint(vocabulary, (tokens,), generator=generator)
    with Largest() as largest:
        stats = token_stats(hidden_TD, Head(weight_VD), targets_T, 1.0, entropy_grad=True, sum_p2=True)
        (stats.logp + known(stats.entropy)).sum().backward()
    assert largest.elements == max(math.prod(streaming.BLOCK["cpu"]), weight_VD.numel())
    assert largest.elements < tokens * vocabulary / 30
