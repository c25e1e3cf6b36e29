"""The objectives beyond GRPO and PPO against loops written from their formulas (objective_loops.py)."""

from __future__ import annotations

import dataclasses
import math
import random

import loops
import objective_loops as brute
import pytest
import torch
from known import known
from loops import Oracle
from portions import in_turn
from ragged import Case, batch_of, case
from registered import method

import baselines
from harness.conformance.probe import stats_of
from harness.methods.batch import Rollout, TokenStats
from harness.methods.verbs import Objective, View


def crowded() -> Case:
    """Make a batch in which responses come near the limit of their length."""
    c = case(2, groups=6, size=4)
    c.batch = dataclasses.replace(c.batch, budget=9)
    return c


def grpo(c: Case) -> list[float]:
    return loops.group_advantages(c)


def dr_grpo(c: Case) -> list[float]:
    return loops.group_advantages(c, divide_by_std=False)


# spec -> the same as loops; {} takes further options of the objective
ANY_NORM = {
    "grpo(clip_low_positive=0.3, clip_high_negative=0.4,{})": lambda c: Oracle(
        grpo(c), loops.clipped(low_positive=0.3, high_negative=0.4)
    ),
    "rloo({})": lambda c: Oracle(brute.by_group(c, brute.leave_one_out)),
    "reinforce_pp({})": lambda c: Oracle(loops.whitened(brute.by_group(c, loops.centred))),
    "lite_ppo({})": lambda c: Oracle(brute.by_group(c, brute.over_all(c))),
    "maxrl({})": lambda c: Oracle(brute.by_group(c, brute.over_mean)),
    "passk(k=2,{})": lambda c: Oracle(brute.by_group(c, brute.best_of(2))),
    "pkpo(k=3,{})": lambda c: Oracle(brute.by_group(c, brute.best_with(3, "sloo_minus_one"))),
    "rs_grpo({})": lambda c: Oracle(brute.by_group(c, brute.risk_seeking(2))),
    "a_grae({})": lambda c: Oracle(brute.by_difficulty(c)),
    "opo({})": lambda c: Oracle(brute.over_length(c)),
    "qae({})": lambda c: Oracle(brute.by_group(c, brute.above_quantile(0.4, True))),
    "qae(mode=paper, quantile=0.6,{})": lambda c: Oracle(
        brute.by_group(c, brute.above_quantile(0.6, False)), loops.clipped()
    ),
    "otb({})": lambda c: Oracle(brute.optimal_token_baseline(c)),
    "otb(zero_tail=false, dual_clip=null,{})": lambda c: Oracle(
        brute.optimal_token_baseline(c, zero_tail=False), loops.clipped(dual=None)
    ),
    "w_reinforce({})": lambda c: Oracle(brute.verdicts(c, 0.1, 1), loops.of_tokens(brute.reinforce)),
    "w_reinforce_ppo(right=0.3, wrong=0.7,{})": lambda c: Oracle(brute.verdicts(c, 0.3, 0.7)),
    "asymre({})": lambda c: Oracle([a + 0.1 for a in dr_grpo(c)], loops.of_tokens(brute.reinforce)),
    "topr({})": lambda c: Oracle(brute.verdicts(c, 1, 1), brute.topr("token")),
    "topr(level=sequence, right=0.4, wrong=0.6,{})": lambda c: Oracle(
        brute.verdicts(c, 0.4, 0.6), brute.topr("sequence")
    ),
    "gpg({})": lambda c: Oracle(brute.scaled_up(c), loops.of_tokens(brute.reinforce)),
    "cispo({})": lambda c: Oracle(grpo(c), brute.cispo(0, 5)),
    "cispo(clip_low=0.4, clip_high=0.2,{})": lambda c: Oracle(grpo(c), brute.cispo(0.6, 1.2)),
    "sapo({})": lambda c: Oracle(grpo(c), brute.sapo(1, 1.05)),
    "sapo(tau_positive=0.5, tau_negative=3,{})": lambda c: Oracle(grpo(c), brute.sapo(0.5, 3)),
    "vespo({})": lambda c: Oracle(grpo(c), brute.vespo((2, 3), (3, 2))),
    "vespo(k_positive=0.1, lambda_positive=0.2, k_negative=0.3, lambda_negative=0.1,{})": lambda c: Oracle(
        grpo(c), brute.vespo((0.1, 0.2), (0.3, 0.1))
    ),
    "dppo({})": lambda c: Oracle(dr_grpo(c), brute.dppo("tv", 0.15, 3)),
    "dppo(measure=kl,{})": lambda c: Oracle(dr_grpo(c), brute.dppo("kl", 0.05, 3)),
    "dppo(cap=10000, delta=3,{})": lambda c: Oracle(dr_grpo(c), brute.dppo("tv", 3, 1e4)),
    "dppo(measure=kl, delta=0.2, cap=1.5, divide_by_std=true,{})": lambda c: Oracle(
        grpo(c), brute.dppo("kl", 0.2, 1.5)
    ),
    "archer({})": lambda c: Oracle(
        grpo(c),
        brute.by_entropy(loops.clipped(0.2, 0.2, 10), loops.clipped(0.5, 0.5, 10)),
        kl=brute.kl_by_entropy(0.001, 0),
    ),
    "archer(quantile=0.45, kl_coef=0.3, high_entropy_kl=0.5, kl_estimator=k2, dual_clip=null,"
    "high_entropy_clip_low=0.1, high_entropy_clip_high=0.7, clip_low_positive=0.3,{})": lambda c: Oracle(
        grpo(c),
        brute.by_entropy(
            loops.clipped(dual=None, low_positive=0.3), loops.clipped(0.1, 0.7, None, low_positive=0.3), 0.45
        ),
        kl=brute.kl_by_entropy(0.3, 0.15, "k2", 0.45),
    ),
    "aspo(kl_coef=0,{})": lambda c: Oracle(grpo(c), brute.by_entropy(brute.aspo(0.2, 0.2), brute.aspo(0.4, 0.4))),
    "aspo(inverse_cap=1.4, dual_clip=1.3, clip_low=0.1, high_entropy_clip_high=0.9,{})": lambda c: Oracle(
        grpo(c),
        brute.by_entropy(brute.aspo(0.1, 0.2, 1.4, 1.3), brute.aspo(0.4, 0.9, 1.4, 1.3)),
        kl=brute.kl_by_entropy(0.001, 0),
    ),
    "dcpo({})": lambda c: Oracle(grpo(c), brute.dcpo(0.16, 0.2)),
    "dcpo(clip_low=0.02, clip_high=0.5, cap=1.6, dual_clip=null,{})": lambda c: Oracle(
        grpo(c), brute.dcpo(0.02, 0.5, 1.6, None)
    ),
}
# Those that have a normalisation of their own.
ONE_NORM = {
    "dr_grpo": lambda c: Oracle(loops.group_advantages(c, False), loops.clipped(dual=None), "constant"),
    "dapo": lambda c: Oracle(brute.by_group(c, brute.standard, brute.overlong(c)), loops.clipped(high=0.28, dual=10)),
    "abc_grpo": lambda c: Oracle(grpo(c), loops.clipped(dual=None, low_positive=0.2, high_negative=0.2)),
    "nsr": lambda c: Oracle(brute.verdicts(c, 0, 1), loops.of_tokens(brute.reinforce)),
    "psr": lambda c: Oracle(brute.verdicts(c, 1, 0), loops.of_tokens(brute.reinforce)),
    "gspo": lambda c: Oracle(grpo(c), brute.gspo(3e-4, 4e-4), "sequence"),
    "gspo(clip_low=0.3, clip_high=0.2, dual_clip=1.2)": lambda c: Oracle(
        grpo(c), brute.gspo(0.3, 0.2, 1.2), "sequence"
    ),
    "luspo": lambda c: Oracle(grpo(c), brute.times_length(brute.gspo(2e-3, 2.5e-3)), "sequence"),
    "luspo(clip_low=0.3, clip_high=0.2)": lambda c: Oracle(
        grpo(c), brute.times_length(brute.gspo(0.3, 0.2)), "sequence"
    ),
    "gmpo": lambda c: Oracle(grpo(c), brute.gmpo(0.4, 0.4), "sequence"),
    "gmpo(clip_low=0.1, clip_high=1)": lambda c: Oracle(grpo(c), brute.gmpo(0.1, 1), "sequence"),
}
# All objectives share the computation of the denominator.
NORMED = in_turn(ANY_NORM, loops.NORMS, each=["rloo({})"])
CASES = [
    *((template.format(f"normalise={n}"), ANY_NORM[template], n) for template, n in NORMED),
    *((spec, make, None) for spec, make in ONE_NORM.items()),
]


@pytest.mark.parametrize(("spec", "make", "normalise"), CASES, ids=[spec for spec, _, _ in CASES])
def test_loss_of_micro_batches_by_loops(spec: str, make: brute.Make, normalise: str | None) -> None:
    c = crowded()
    oracle = make(c)
    oracle.normalise = normalise or oracle.normalise
    loops.check_micro_batches(method(spec), c, oracle.loss)


# Advantages, of rewards of every kind


def rewarded(rewards: str, seed: int = 0) -> Case:
    """Make groups all right, all wrong and mixed, or of any rewards; some of them tie."""
    c, chance = case(seed, groups=8, size=5), random.Random(seed)
    rewards_of_all = [
        float(chance.randint(-2, 2)) / 2 if rewards == "any" else float(chance.random() < group / 7)
        for group in range(8)
        for _ in range(5)
    ]
    rewards_B = torch.tensor(rewards_of_all, dtype=torch.float64)
    c.batch = dataclasses.replace(c.batch, rewards_B=rewards_B, right_B=rewards_B > 0)
    return c


GROUPS = {
    "rloo": brute.leave_one_out,
    "maxrl": brute.over_mean,
    "qae": brute.above_quantile(0.4, True),
    "qae(quantile=0.75)": brute.above_quantile(0.75, True),
    **{f"qae(mode=paper, quantile={k / 10})": brute.above_quantile(k / 10, False) for k in range(1, 10)},
    **{f"passk(k={k})": brute.best_of(k) for k in range(1, 6)},
    **{f"pkpo(k={k})": brute.best_with(k, "sloo_minus_one") for k in range(2, 6)},
    **{f"pkpo(k={k}, baseline=sloo)": brute.best_with(k, "sloo") for k in range(2, 5)},
    **{f"rs_grpo(beta={beta})": brute.risk_seeking(beta) for beta in (0.1, 2, 8)},
}


@pytest.mark.parametrize("rewards", ["0 and 1", "any"])
@pytest.mark.parametrize("spec", GROUPS)
def test_advantages_are_those_of_the_formula(spec: str, rewards: str) -> None:
    c = rewarded("0 and 1" if spec.startswith("passk") else rewards)
    sums = set(c.batch.grouped(c.batch.rewards_B).sum(1).tolist())
    assert rewards == "any" or {0, 5} < sums, "there is no group that is all right or all wrong"
    advantages_T = method(spec).objective.advantages(c.old, c.batch)
    assert advantages_T.tolist() == pytest.approx(brute.by_group(c, GROUPS[spec]), rel=1e-12, abs=1e-12)


def test_least_group_of_pass_at_k() -> None:
    assert [method(spec).min_group for spec in ("passk(k=1)", "passk", "passk(k=9)+clip_b")] == [2, 5, 10]


# One update


def gradient(spec: str, seed: int = 3) -> torch.Tensor:
    """Return the gradient of the first update, in float32, as training computes it."""
    c, m = case(seed), method(spec)
    c.logits_TV = c.old_logits_TV.float().requires_grad_()
    old = stats_of(c.logits_TV.detach(), c.targets_T)
    c.old = dataclasses.replace(old, ref_logp=known(c.old.ref_logp).float())
    signal = m.signal(c.old, c.batch, [c.batch])
    m.loss(c.current(), m.for_step(c.current().detach(), signal, c.batch), c.batch).backward()
    assert c.logits_TV.grad is not None
    assert c.logits_TV.grad.abs().max() > 0
    return c.logits_TV.grad


OF_GRPO = ["abc_grpo", "cispo", "vespo", "archer(kl_coef=0)", "aspo(kl_coef=0)", "bapo", "fipo"]
OF_GRPO += ["grpo(clip_low_positive=0, clip_high_negative=0)", "grpo(clip_low=0, clip_high=0)"]
OF_GRPO += ["ce_gppo(beta1=0.1, beta2=3)", "ce_gppo(dual_clip=null)"]
SAME = {
    **dict.fromkeys(OF_GRPO, "grpo"),
    **dict.fromkeys(["gspo", "dcpo"], "grpo(normalise=sequence)"),
    **dict.fromkeys(["dppo", "dppo(measure=kl)"], "dr_grpo"),
    **dict.fromkeys(["kimi", "kimi(level=sequence)"], "asymre(shift=0)"),
    **dict.fromkeys(["topr(right=0.1)", "topr(right=0.1, level=sequence)"], "w_reinforce"),
    "w_reinforce": "w_reinforce_ppo",
}


@pytest.mark.parametrize("spec", SAME)
def test_at_one_update_the_gradient_is_bitwise_the_same(spec: str) -> None:
    assert torch.equal(gradient(spec), gradient(SAME[spec]))


@pytest.mark.parametrize("spec", ["gmpo", "sapo"])
def test_at_one_update_the_gradient_is_the_same_up_to_rounding(spec: str) -> None:
    torch.testing.assert_close(gradient(spec), gradient("grpo(normalise=sequence)"), rtol=1e-5, atol=1e-8)


# BAPO's search


def searched_bounds(c: Case, rows: range, **options: float) -> tuple[float, float]:
    given = {"clip_low": 0.4, "clip_high": 0.2, "least_clip_low": 0.1, "most_clip_high": 2.0, "target": 1.0} | options
    tokens = [t for row in rows for t in loops.responses(c)[row]]
    ratios = (c.current().logp - c.old.logp).exp().tolist()
    a = grpo(c)
    return brute.bapo_bounds(
        [ratios[t] for t in tokens],
        [a[t] for t in tokens],
        1 - given["clip_low"],
        1 + given["clip_high"],
        (1 - given["least_clip_low"], 1 + given["most_clip_high"]),
        given["target"],
    )


BAPO: dict[str, dict[str, float]] = {
    "the start is enough": {"target": 0.1},
    "the upper bound opens": {"target": 0.72},
    "the defaults": {},
    "the end is not enough": {"target": 50},
    "there is no way to go": {"target": 50, "least_clip_low": 0.4, "most_clip_high": 0.2},
    "another start": {"clip_low": 0.3, "clip_high": 0.1, "least_clip_low": 0.25, "most_clip_high": 1.03, "target": 0.9},
}


@pytest.mark.parametrize("what", BAPO)
def test_bapo_searched_bounds(what: str) -> None:
    options = BAPO[what]
    c = crowded()
    m = method(f"bapo({', '.join(f'{key}={x}' for key, x in options.items())})")
    highs: list[float] = []

    def within_bounds(c: Case, rows: range) -> tuple[float, loops.Gradient]:
        low, high = searched_bounds(c, rows, **options)
        minibatch = c.batch.take(rows)
        marks = m.for_step(c.current(minibatch).detach(), m.signal(c.old, c.batch, []), minibatch).marks["bapo"]
        assert (marks["low"].item(), marks["high"].item()) == pytest.approx((low, high), rel=1e-12)
        highs.append(high)
        return Oracle(grpo(c), loops.clipped(1 - low, high - 1)).loss(c, rows)

    loops.check_micro_batches(m, c, within_bounds)
    assert any(1.2 < high < 3 for high in highs) or what != "the upper bound opens"


def test_without_any_signal_bapo_s_bounds_stay() -> None:
    c = crowded()
    c.batch = dataclasses.replace(c.batch, rewards_B=torch.zeros_like(c.batch.rewards_B))
    m = method("bapo")
    signal = m.for_step(c.current().detach(), m.signal(c.old, c.batch, [c.batch]), c.batch)
    assert {name: x.item() for name, x in signal.marks["bapo"].items()} == {"low": 0.6, "high": 1.2}


def test_without_a_step_bapo_has_the_bounds_of_its_start() -> None:
    c = crowded()
    expected = method("grpo(clip_low=0.4, clip_high=0.2)")
    losses = [m.loss(c.current(), m.signal(c.old, c.batch, [c.batch]), c.batch) for m in (method("bapo"), expected)]
    assert losses[0].item() == losses[1].item()


# What an objective clips


def free_slopes(view: View, spec: str) -> torch.Tensor:
    """Return how much each token's log p would move its own surrogate if nothing were clipped."""
    log_ratio_T, batch = (view.current.logp - view.old.logp).detach(), view.batch
    if spec.startswith(("gspo", "luspo")):
        log_ratio_T = (batch.per_sequence(log_ratio_T) / batch.lengths_B)[batch.sequence_T]
    if spec == "topr(level=sequence)":
        log_ratio_T = batch.per_sequence(log_ratio_T)[batch.sequence_T]
    if spec.startswith("topr"):
        log_ratio_T = log_ratio_T * (view.advantages_T < 0)
    if spec.startswith("aspo"):
        log_ratio_T = log_ratio_T.where(view.advantages_T < 0, -log_ratio_T)
    slopes_T = log_ratio_T.exp() * view.advantages_T
    return slopes_T * batch.lengths_B[batch.sequence_T] if spec.startswith("luspo") else slopes_T


CLIPPING = ["grpo(dual_clip=1.3)", "ce_gppo(dual_clip=1.3)", "gspo(clip_low=0.3, clip_high=0.2)", "gmpo"]
CLIPPING += ["gspo(clip_low=0.3, clip_high=0.2, dual_clip=1.1)", "luspo(clip_low=0.3, clip_high=0.2)", "abc_grpo"]
CLIPPING += ["cispo(clip_low=0.5, clip_high=0.2)", "cispo", "dppo(cap=20)", "dppo(measure=kl, delta=0.1)"]
CLIPPING += ["archer(dual_clip=1.3, kl_coef=0)", "aspo(kl_coef=0)", "aspo(kl_coef=0, dual_clip=null, inverse_cap=null)"]
CLIPPING += ["dcpo(dual_clip=1.3)", "bapo(dual_clip=1.3)", "rloo(dual_clip=null)", "topr", "topr(level=sequence)"]
CLIP_NOTHING = ["w_reinforce", "gpg", "asymre", "sapo", "vespo"]


@pytest.mark.parametrize("spec", [*CLIPPING, *CLIP_NOTHING])
def test_clipped_tokens_have_another_gradient(spec: str) -> None:
    c, m = case(2, groups=6, size=4), method(spec)
    signal = m.for_step(c.current().detach(), m.signal(c.old, c.batch, [c.batch]), c.batch)
    touched = m.touched(c.current().detach(), signal, c.batch)
    low_T, high_T = touched["clipped_low"], touched["clipped_high"]
    assert not (low_T & high_T).any()
    if spec in CLIP_NOTHING:
        assert not (low_T | high_T).any()
        return
    assert high_T.any()
    current = c.current().detach()
    current.logp.requires_grad_()
    view = m.view(m.base, current, signal, c.batch)
    slopes_T = torch.autograd.grad(m.objective.surrogate(view).sum(), current.logp)[0]
    if spec == "gmpo":  # whose other tokens have the mean of all ratios in common
        changed_T = slopes_T == 0
    else:
        changed_T = ~torch.isclose(slopes_T, free_slopes(view, spec), rtol=1e-9, atol=0)
    live_T = signal.advantages_T != 0
    assert torch.equal((low_T | high_T)[live_T], changed_T[live_T])
    assert (high_T & (signal.advantages_T < 0)).any() or "dual_clip=1" not in spec, "what the dual clip stops"
    ratio_T = view.ratio_T
    if not spec.startswith(("gspo", "luspo")) and "sequence" not in spec:
        assert (ratio_T[low_T] < 1).all()
        assert (ratio_T[high_T] > 1).all()


# Edges

OBJECTIVES = [
    f"{name}(k=2)" if name in ("passk", "pkpo") else name
    for name, entry in baselines.METHODS.items()
    if not isinstance(entry, type) or (issubclass(entry, Objective) and name != "ppo")
]


# spec -> the same as loops, responses by their tokens' log p and log p before, and the signs of their advantages
FAR: dict[str, tuple[loops.Surrogate, list[tuple[list[float], list[float]]], str]] = {
    "gspo": (brute.gspo(3e-4, 4e-4), [([-1, -2], [-13, -13]), ([-1, -2], [-10, -10]), ([-9, -9], [-1, -1])], "---"),
    "vespo": (
        brute.vespo((2, 3), (3, 2)),
        [([-1, -31], [-26, -1]), ([-1, -2.5], [-1, -2]), ([-21, -25], [-1, -1]), ([-40, -12], [-1, -31])],
        "+-+-",
    ),
    "vespo(k_positive=0.05, lambda_positive=0, k_negative=0.05, lambda_negative=0)": (
        brute.vespo((0.05, 0), (0.05, 0)),
        [([-1, -31], [-26, -1]), ([-31, -32], [-1, -2]), ([-1, -1], [-17, -19])],
        "+--",
    ),
    "dppo(measure=kl, delta=1.3)": (
        brute.dppo("kl", 1.3, 3),
        [([-1e-9, -1e-7], [math.log(0.9)] * 2), ([-1e-9, -1e-4], [math.log(0.9)] * 2)],
        "+-",
    ),
    "dppo(cap=10000)": (brute.dppo("tv", 0.15, 1e4), [([-1, -2], [-30, -30]), ([-1, -0.01], [-1.1, -30])], "--"),
}


@pytest.mark.parametrize("spec", FAR)
def test_far_from_the_old_policy_the_surrogate_is_that_of_the_formula(spec: str) -> None:
    surrogate, pairs, signs = FAR[spec]
    groups = [[Rollout([0], [0] * len(now), [0.0] * len(now), True) for now, _ in pairs]]
    batch = batch_of(groups, [0.0] * len(pairs))
    a = [1.0 if sign == "+" else -1.0 for sign in signs]
    a_T = torch.tensor(a, dtype=torch.float64)[batch.sequence_T]
    now_T, old_T = (torch.tensor([x for pair in pairs for x in pair[i]], dtype=torch.float64) for i in range(2))
    now_T.requires_grad_()
    view = View(TokenStats(now_T), TokenStats(old_T), a_T, {}, batch, torch.ones_like(a_T))
    values_T = method(spec).objective.surrogate(view)
    slopes_T = torch.autograd.grad(values_T.sum(), now_T)[0]
    values, slopes = [], []
    for (now, old), sign in zip(pairs, a, strict=True):
        response = loops.Response(list(now), list(old), [sign] * len(now), [])
        result = surrogate(response, [1.0] * len(now))
        values += result[0]
        slopes += result[1]
    assert values_T.tolist() == pytest.approx(values, rel=1e-9)
    assert slopes_T.tolist() == pytest.approx(slopes, rel=1e-9)


def test_needs_of_objectives() -> None:
    assert method("otb").needs == {"sum_p2"}
    assert method("archer").needs == method("aspo").needs == {"entropy_now", "ref_logp"}
    assert method("archer(kl_coef=0)").needs == {"entropy_now"}
    assert [name for name in OBJECTIVES if method(name).marks_steps] == ["bapo", "real", "siren_release"]
    alone = ["w_reinforce", "w_reinforce_ppo", "nsr", "psr", "topr", "a2po"]
    assert [name for name in OBJECTIVES if method(name).min_group == 1] == alone
