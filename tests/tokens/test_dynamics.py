"""Entropy dynamics against autograd, finite steps, loops and simulation in float64, and inside training."""

from __future__ import annotations

import dataclasses
import math
import statistics
from pathlib import Path

import loops
import pytest
import torch
from known import known
from ragged import Case, case
from torch import Tensor
from trainers import build, records, same, weights

import baselines
from harness.conformance.probe import stats_of
from harness.methods.batch import TokenStats
from harness.methods.composition import Method, Signal
from harness.tokens import dynamics
from harness.tokens.dynamics import Push
from harness.tokens.metrics import Stopwatch

pytestmark = pytest.mark.slow

TABLE = baselines.table()
TEMPERATURE = 0.7


def random_logits(seed: int, tokens: int = 6, vocabulary: int = 7, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(tokens, vocabulary, generator=generator, dtype=torch.float64)


def entropy_of(z_V: Tensor, temperature: float) -> Tensor:
    logp_V = torch.log_softmax(z_V / temperature, dim=-1)
    return -(logp_V.exp() * logp_V).sum()


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# One token, all of its vocabulary


@pytest.mark.parametrize("temperature", [1.0, TEMPERATURE, 2.5])
def test_first_and_second_order_are_gradient_and_hessian_of_the_entropy(temperature: float) -> None:
    z_TV, dz_TV = random_logits(0), random_logits(1)
    p_TV = torch.softmax(z_TV / temperature, dim=-1)
    first_T = dynamics.first_order(p_TV, dz_TV, temperature)
    second_T = dynamics.second_order(p_TV, dz_TV, temperature)
    for t, (z_V, dz_V) in enumerate(zip(z_TV, dz_TV, strict=True)):
        arguments = (lambda z: entropy_of(z, temperature), z_V)
        gradient_V = torch.autograd.functional.jacobian(*arguments)
        hessian_VV = torch.autograd.functional.hessian(*arguments)
        close(-dynamics.discriminators(p_TV)[t] / temperature, gradient_V)
        close(first_T[t], gradient_V @ dz_V)
        close(second_T[t], dz_V @ hessian_VV @ dz_V / 2)


def test_second_order_error() -> None:
    p_TV, dz_TV = random_logits(2).softmax(-1), random_logits(3, scale=1.0)

    def left_over(a: float, order: int) -> Tensor:
        series_T = a * dynamics.first_order(p_TV, dz_TV) + (order == 2) * a**2 * dynamics.second_order(p_TV, dz_TV)
        return dynamics.exact(p_TV, a * dz_TV) - series_T

    for order in (1, 2):
        torch.testing.assert_close(
            left_over(1e-3, order) / left_over(5e-4, order),
            torch.full((6,), 2.0 ** (order + 1), dtype=torch.float64),
            rtol=0.03,
            atol=0,
        )


def test_exact_by_two_entropies() -> None:
    z_TV, dz_TV = random_logits(4), random_logits(5, scale=5.0)
    p_TV = torch.softmax(z_TV / TEMPERATURE, dim=-1)
    expected = [
        loops.entropy(loops.softmax(((z + dz) / TEMPERATURE).tolist()))
        - loops.entropy(loops.softmax((z / TEMPERATURE).tolist()))
        for z, dz in zip(z_TV, dz_TV, strict=True)
    ]
    close(dynamics.exact(p_TV, dz_TV, TEMPERATURE), torch.tensor(expected, dtype=torch.float64))


def test_discriminators_sum_to_zero_and_stay_within_their_bounds() -> None:
    for scale in (0.01, 1.0, 5.0, 30.0):
        p_TV = random_logits(6, tokens=200, vocabulary=50, scale=scale).softmax(-1)
        s_TV, entropy_T = dynamics.discriminators(p_TV), dynamics.entropies(p_TV)
        close(s_TV.sum(-1), torch.zeros_like(entropy_T))
        assert (s_TV >= -(-1 - entropy_T).exp()[:, None] - 1e-15).all()
        above_TV = p_TV > (-entropy_T).exp()[:, None]
        assert ((s_TV > 0) == above_TV)[s_TV.abs() > 1e-12].all()
    q = torch.linspace(1e-4, 1 - 1e-4, 100_001, dtype=torch.float64)
    two_TV = torch.stack([q, 1 - q], dim=1)
    s_TV = dynamics.discriminators(two_TV)
    extremes = [(round(x.item(), 4), round(q[int(i)].item(), 3)) for x, i in (s_TV[:, 0].min(0), s_TV[:, 0].max(0))]
    assert extremes == [(-0.2239, 0.176), (0.2239, 0.824)]
    gap_T = s_TV[:, 0] + (-1 - dynamics.entropies(two_TV)).exp()
    assert 0 <= gap_T.min() < 1e-9, "the bound is reached where p = exp(-(1 + H))"


def test_extreme_distributions() -> None:
    one_hot_TV = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    uniform_TV = torch.full((1, 4), 0.25, dtype=torch.float64)
    masked_TV = torch.tensor([[1.0, -torch.inf, 0.5, -2.0]], dtype=torch.float64).softmax(-1)
    step_TV = torch.tensor([[0.3, -0.2, 0.1, 0.4]], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)

    assert torch.equal(dynamics.discriminators(one_hot_TV), torch.zeros_like(one_hot_TV))
    for change in (dynamics.first_order, dynamics.second_order, dynamics.exact):
        close(change(one_hot_TV, step_TV[:, :3]), zero)
    close(dynamics.discriminators(uniform_TV), torch.zeros_like(uniform_TV))
    close(dynamics.first_order(uniform_TV, step_TV), zero)
    close(dynamics.second_order(uniform_TV, step_TV), -step_TV.var(-1, correction=0) / 2)
    # A token that can never be sampled is as good as absent.
    left = [0, 2, 3]
    assert dynamics.discriminators(masked_TV)[0, 1] == 0
    for change in (dynamics.first_order, dynamics.second_order, dynamics.exact):
        close(change(masked_TV, step_TV), change(masked_TV[:, left], step_TV[:, left]))
    two_TV = torch.tensor([[0.2, 0.8]], dtype=torch.float64)
    close(dynamics.discriminators(two_TV)[:, 0], 0.2 * 0.8 * (two_TV[:, 0] / two_TV[:, 1]).log())


# Tokens, from their statistics alone


@pytest.mark.parametrize("temperature", [1.0, TEMPERATURE])
def test_predicted_equals_first_order(temperature: float) -> None:
    z_TV = random_logits(7)
    push_T, targets_T = random_logits(8)[:, 0], torch.tensor([0, 3, 6, 2, 2, 5])
    scaled_TV = z_TV / temperature
    p_TV, stats = scaled_TV.softmax(-1), stats_of(scaled_TV, targets_T)
    predicted_T = Push(push_T, 0 * push_T).predicted(stats, stats.logp, temperature)
    step_TV = dynamics.gradient_step(p_TV, targets_T, push_T, temperature)
    close(predicted_T, dynamics.first_order(p_TV, step_TV, temperature))
    for t in range(6):  # and that step is the gradient of push * log p
        z_V = z_TV[t].clone().requires_grad_()
        (push_T[t] * torch.log_softmax(z_V / temperature, dim=-1)[targets_T[t]]).backward()
        close(step_TV[t], known(z_V.grad))


@pytest.mark.parametrize("temperature", [1.0, TEMPERATURE])
def test_predicted_of_an_entropy_push(temperature: float) -> None:
    z_TV, sampler_TV = random_logits(9) / temperature, random_logits(10).log_softmax(-1)
    p_TV, push_T = z_TV.softmax(-1), random_logits(11)[:, 0]
    step_TV = -push_T[:, None] * dynamics.discriminators(p_TV) / temperature  # the gradient of push * H
    expected_T = torch.zeros_like(push_T)
    for y in range(z_TV.shape[1]):
        targets_T = torch.full((6,), y)
        predicted_T = Push(0 * push_T, push_T).predicted(stats_of(z_TV, targets_T), sampler_TV[:, y], temperature)
        expected_T += sampler_TV[:, y].exp() * predicted_T
    close(expected_T, dynamics.first_order(p_TV, step_TV, temperature))


def test_estimates_for_the_rarest_tokens_are_finite_in_single_precision() -> None:
    stats = stats_of(torch.tensor([[0.0, -200.0]]), torch.tensor([1]))
    assert dynamics.squared_discriminators(stats, stats.logp).item() == 0.0


def test_deviations_average_to_zero_on_policy_and_off_policy_with_the_ratio_alone() -> None:
    """Simulates corollaries 3.4 and 3.5: within four standard errors, and far outside without the ratio."""
    tokens, draws = 50, 4000
    z_TV, sampler_TV = random_logits(12, tokens), random_logits(13, tokens)
    generator = torch.Generator().manual_seed(0)

    def errors(deviation_TN: Tensor) -> tuple[Tensor, float]:
        """Return the mean in standard errors, of each token and of the whole batch."""
        error_T = deviation_TN.std(1) / math.sqrt(draws)
        return deviation_TN.mean(1) / error_T, float(deviation_TN.mean() / (error_T.square().sum().sqrt() / tokens))

    def drawn(from_TV: Tensor) -> tuple[Tensor, Tensor]:
        """Return S* - N of tokens sampled from another softmax, and their importance ratios."""
        targets_TN = from_TV.softmax(-1).multinomial(draws, replacement=True, generator=generator)
        stats = stats_of(z_TV.repeat_interleave(draws, 0), targets_TN.flatten())
        ratio_TN = stats.logp.view(tokens, draws).exp() / from_TV.softmax(-1).gather(1, targets_TN)
        return dynamics.deviation(stats).view(tokens, draws), ratio_TN

    on_TN, ones_TN = drawn(z_TV)
    close(ones_TN, torch.ones_like(ones_TN))
    off_TN, ratio_TN = drawn(sampler_TV)
    for deviation_TN in (on_TN, ratio_TN * off_TN):
        by_token_T, whole = errors(deviation_TN)
        assert by_token_T.abs().max() < 4
        assert abs(whole) < 4
    by_token_T, whole = errors(off_TN)
    assert abs(whole) > 20
    assert by_token_T.abs().median() > 20


def test_quadrants_are_by_both_signs_and_zeros_are_in_none() -> None:
    advantages, signal = [1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.0, 0.0], [2.0, -2.0, 0.0, 2.0, -2.0, 0.0, 1.0, -1.0]
    result = dynamics.quadrants(torch.tensor(advantages), torch.tensor(signal))
    assert {name: mask_T.nonzero().flatten().tolist() for name, mask_T in result.items()} == {
        "positive_above": [0],
        "positive_below": [1],
        "negative_above": [3],
        "negative_below": [4],
    }


# What a method pushes

SPECS = [
    *(f"{name}(k=2)" if name in ("passk", "pkpo") else name for name in TABLE),  # groups are of three
    "grpo(kl_coef=0.3, kl_estimator=k3, dual_clip=1.5)",
    "grpo(normalise=sequence)+clip_b(share=0.2)",
    "ppo(normalise=constant)+clip_v(mode=paper, mu=0.5, reference_denominator=true)",
    "ce_gppo(clip_low=0.01)+adaptive_entropy(target=9, start=0.1, highest=1)",
    "entropy_bonus(coefficient=0.3)+clip_b(share=0.2)",
]


def prepared(spec: str, drift: float = 0.3) -> tuple[Case, Method, Signal]:
    c, method = case(1, drift=drift), Method.of(spec, TABLE)
    return c, method, method.signal(c.old, c.batch, list(c.batch.split(2)))


@pytest.mark.parametrize("spec", SPECS)
def test_push_of_is_the_gradient_of_the_loss(spec: str) -> None:
    c, method, signal = prepared(spec)
    minibatches = list(c.batch.split(2))
    result = dynamics.push_of(method, signal, detached(c), minibatches)
    p_TV = c.logits_TV.detach().softmax(-1)
    ascent_TV = dynamics.gradient_step(p_TV, c.targets_T, result.logp)
    ascent_TV -= result.entropy[:, None] * dynamics.discriminators(p_TV)
    for part in minibatches:
        c.logits_TV.grad = None
        marked = method.for_step(detached(c).at(part.index_T), signal, part)
        # A push has no part through the entropy of the likeliest tokens.
        current = dataclasses.replace(c.current(part), likeliest_entropy=detached(c).at(part.index_T).likeliest_entropy)
        method.loss(current, marked.at(part.index_T), part).backward()
        assert c.logits_TV.grad is not None
        close(ascent_TV[part.index_T], -c.logits_TV.grad[part.index_T] * len(part.index_T))
    assert ascent_TV.abs().max() > 0.01


def detached(c: Case) -> TokenStats:
    with torch.no_grad():
        return c.current()


# The instrument of a training step


def test_of_step_by_loops() -> None:
    c, method, signal = prepared("clip_b(share=0.2)+entropy_bonus(coefficient=0.1)")
    after_T = detached(c).entropy
    assert after_T is not None
    actual = dynamics.of_step(method, signal, c.batch, list(c.batch.split(2)), after_T, TEMPERATURE)
    actual = {name.removeprefix("dynamics/"): value for name, value in actual.items()}

    advantages, (chosen, expected) = loops.group_advantages(c), loops.taken(c)
    deviations = [s - n for s, n in zip(chosen, expected, strict=True)]
    keep, n = (signal.weights_T != 0).tolist(), len(chosen)
    probabilities = [loops.softmax(z)[y] for z, y in zip(c.old_logits_TV.tolist(), c.targets_T.tolist(), strict=True)]
    bonus = [0.1 * s * s / p / TEMPERATURE**2 for s, p in zip(chosen, probabilities, strict=True)]
    surrogate = [-a * d / TEMPERATURE**2 for a, d in zip(advantages, deviations, strict=True)]
    predicted = [k * x + b for k, x, b in zip(keep, surrogate, bonus, strict=True)]
    old = [loops.entropy(loops.softmax(z)) for z in c.old_logits_TV.tolist()]
    measured = [x - y for x, y in zip(after_T.tolist(), old, strict=True)]

    spans = loops.responses(c)
    both = [[statistics.fmean(x[span.start : span.stop]) for span in spans] for x in (predicted, measured)]
    wanted = {
        "predicted": sum(predicted) / n,
        "measured": sum(measured) / n,
        "correlation": statistics.correlation(predicted, measured),
        "correlation_sequences": statistics.correlation(*both),
        "slope": statistics.linear_regression(predicted, measured, proportional=True).slope,
    }
    for name, values in (("s_star", chosen), ("baseline", expected), ("deviation", deviations)):
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        wanted |= {f"{name}/mean": sum(values) / n, f"{name}/std": statistics.pstdev(values)}
        wanted |= {f"{name}/q01": cuts[0], f"{name}/q50": cuts[49], f"{name}/q99": cuts[98]}
    for sign, side in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        name = f"{'positive' if sign > 0 else 'negative'}_{'above' if side > 0 else 'below'}"
        inside = [t for t in range(n) if sign * advantages[t] > 0 and side * deviations[t] > 0]
        wanted[f"{name}/share"] = len(inside) / n
        wanted[f"{name}/dropped"] = sum(not keep[t] for t in inside) / n
        wanted[f"{name}/push"] = sum(predicted[t] for t in inside if keep[t]) / n
        wanted[f"{name}/push_dropped"] = sum(surrogate[t] for t in inside if not keep[t]) / n
    assert actual == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    assert wanted["negative_below/dropped"] > 0
    assert wanted["negative_below/push_dropped"] < 0


def test_of_step_of_dropped_tokens() -> None:
    result = []
    for option in ("", ", reference_denominator=true"):
        c, method, signal = prepared(f"clip_b(share=0.2{option})")
        result.append(dynamics.of_step(method, signal, c.batch, list(c.batch.split(2)), known(c.old.entropy), 1.0))
    key = "dynamics/negative_below/push_dropped"
    assert result[0][key] == pytest.approx(result[1][key], rel=1e-12)
    assert result[0][key] != 0
    assert result[0]["dynamics/measured"] == 0
    assert "dynamics/correlation" not in result[0], "nothing moved, so there is nothing to compare"


# The lens


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("drift", [0.0, 0.5])
def test_lens_by_loops(spec: str, drift: float) -> None:
    c, method, signal = prepared(spec, drift)
    plain, minibatches = Method.of("grpo", TABLE), list(c.batch.split(2))
    current = detached(c)
    rows = dynamics.lens(method, plain, c.old, c.batch, minibatches, current if drift else None, TEMPERATURE)

    p_TV, n = c.logits_TV.detach().softmax(-1), len(c.targets_T)
    s_TV = dynamics.discriminators(p_TV)
    advantages, deviations = loops.group_advantages(c), []
    pushes = [dynamics.push_of(m, m.signal(c.old, c.batch, minibatches), current, minibatches) for m in (method, plain)]
    no_terms = dataclasses.replace(signal, term_scale_T=torch.zeros_like(signal.term_scale_T))
    surrogate_T = dynamics.push_of(method, no_terms, current, minibatches).logp
    changes: list[list[float]] = [[], []]
    for t, y in enumerate(c.targets_T.tolist()):
        deviations.append(float(s_TV[t, y] - p_TV[t] @ s_TV[t]))
        for push, change in zip(pushes, changes, strict=True):
            estimate = float(s_TV[t, y] ** 2 / c.old.logp[t].exp())
            pushed = float(push.entropy[t]) * estimate - float(push.logp[t]) * deviations[t]
            change.append(pushed / TEMPERATURE**2)
    places = {
        "positive_above": [t for t in range(n) if advantages[t] > 0 and deviations[t] > 0],
        "positive_below": [t for t in range(n) if advantages[t] > 0 and deviations[t] < 0],
        "negative_above": [t for t in range(n) if advantages[t] < 0 and deviations[t] > 0],
        "negative_below": [t for t in range(n) if advantages[t] < 0 and deviations[t] < 0],
        "rest": [t for t in range(n) if advantages[t] == 0],
        "all": list(range(n)),
    }
    assert list(rows) == list(places)
    for name, inside in places.items():
        assert inside
        assert vars(rows[name]) == pytest.approx(
            {
                "share": len(inside) / n,
                "dropped": sum(float(surrogate_T[t]) == 0 for t in inside) / len(inside),
                "size": sum(abs(float(pushes[0].logp[t])) for t in inside) / n,
                "plain_size": sum(abs(float(pushes[1].logp[t])) for t in inside) / n,
                "predicted": sum(changes[0][t] for t in inside) / n,
                "plain_predicted": sum(changes[1][t] for t in inside) / n,
            },
            rel=1e-9,
            abs=1e-12,
        )


# In training


def test_train_step_with_dynamics(tmp_path: Path) -> None:
    spec = "clip_b(share=0.05)+entropy_bonus(coefficient=0.03)"
    trainers = {every: build(tmp_path / str(every), spec, f"dynamics.every={every}") for every in (0, 1, 2)}
    for trainer in trainers.values():
        trainer.run(lambda step: None)
    logged = {every: records(tmp_path / str(every)) for every in trainers}

    def without(lines: list[dict[str, float]]) -> list[dict[str, float]]:
        own = ("dynamics/", "peaks/", "valleys/")
        return [{key: x for key, x in line.items() if not key.startswith(own)} for line in lines]

    assert without(logged[1]) == without(logged[2]) == logged[0]
    assert same(weights(trainers[1]), weights(trainers[0]))
    steps = {
        key: {every: [line["step"] for line in lines if key in line] for every, lines in logged.items()}
        for key in ("dynamics/predicted", "dynamics/measured")
    }
    assert steps["dynamics/predicted"] == {0: [], 1: [1, 2, 3, 4], 2: [1, 2, 3, 4]}
    assert steps["dynamics/measured"] == {0: [], 1: [1, 2, 3, 4], 2: [2, 4]}
    assert logged[2][4] == logged[1][4]
    for line in logged[1][1:]:
        quadrants = [
            line[f"dynamics/{sign}_{side}/share"] for sign in ("positive", "negative") for side in ("above", "below")
        ]
        assert sum(quadrants) == pytest.approx(1 - line["advantages/zero"], abs=0.02)
        assert line["dynamics/measured"] != 0


def test_methods_do_not_observe_the_instrument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, observed = build(tmp_path, "grpo", "dynamics.every=1"), set()
    monkeypatch.setattr(trainer.method, "observe", lambda metrics: observed.update(metrics))
    logged = set(trainer.train_step(1, Stopwatch()))
    assert "entropy/mean" in observed
    assert {name for name in logged - observed if not name.startswith("dynamics/")} == set()
    assert not [name for name in observed if name.startswith("dynamics/")]


def test_without_a_step_nothing_is_measured_and_micro_batches_have_no_say(tmp_path: Path) -> None:
    result = []
    for lr, budget in ((1e-30, 10**6), (1e-3, 10**6), (1e-3, 100)):
        overrides = ("dynamics.every=1", f"train.lr={lr}", f"hardware.micro_tokens={budget}")
        trainer = build(tmp_path, "clip_v(share=0.05)", *overrides)
        record = trainer.train_step(1, Stopwatch())
        result.append({name: x for name, x in record.items() if name.startswith("dynamics/")})
    still, whole, split = result
    assert still["dynamics/measured"] == 0
    assert abs(whole["dynamics/measured"]) > 1e-4
    assert whole["dynamics/predicted"] == still["dynamics/predicted"] != 0
    assert split == pytest.approx(whole, rel=2e-3, abs=2e-5)
