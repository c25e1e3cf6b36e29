"""Every control's loss and gradient against loops written from the formulas (control_loops.py), in float64.

Controls with a memory are followed step by step.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import control_loops as brute
import loops
import pytest
import torch
from companions import on_ranks
from loops import Oracle, check_micro_batches
from ragged import Case, batch_of, case
from registered import method

import baselines
from baselines.siren import Siren
from harness.methods.batch import Rollout


def grpo(c: Case, rewards: Sequence[float] | None = None) -> list[float]:
    if rewards is None:
        return loops.group_advantages(c)
    changed = dataclasses.replace(c.batch, rewards_B=torch.tensor(rewards, dtype=torch.float64))
    return loops.group_advantages(dataclasses.replace(c, batch=changed))


def kept(c: Case, keep: Callable[[list[float]], Sequence[float]], counted: bool = False) -> Oracle:
    """Return the loops of GRPO with weights that are made of its advantages."""
    weights = keep(grpo(c))
    return Oracle(grpo(c), keep=weights, counted=[w != 0 for w in weights] if counted else None)  # type: ignore[arg-type]


def clip_b(c: Case, share: float) -> list[bool]:
    return loops.keep_share(loops.centred(brute.before(c).s_star), grpo(c), "reference", share)


def clip_v(c: Case, share: float) -> list[bool]:
    d = [s - n for s, n in zip(brute.before(c).s_star, brute.before(c).expected, strict=True)]
    return loops.keep_share(d, grpo(c), "paper", share)


# spec -> the same as loops, of the responses of a mini-batch; {} takes further options of the objective
ORACLES: dict[str, Callable[[Case, Sequence[int]], Oracle]] = {
    "grpo({})+clip_cov(fraction=0.05, lowest=0.2, highest=2)": lambda c, _: kept(
        c, lambda a: brute.keep_clip_cov(c, a, 0.05, 0.2, 2)
    ),
    "grpo({})+clip_cov(lowest=0.2, highest=2)": lambda c, _: kept(c, lambda a: brute.keep_clip_cov(c, a, 2e-4, 0.2, 2)),
    "grpo(clip_low=1, clip_high=1e9, dual_clip=null,{})+kl_cov(fraction=0.2)": lambda c, _: brute.WithTerm(
        a := grpo(c), loops.clipped(1, 1e9, None), term=brute.kl_cov_term(c, brute.held_by_kl_cov(c, a, 0.2), 1)
    ),
    "grpo({})+kl_cov(coefficient=0.4)": lambda c, _: brute.WithTerm(
        a := grpo(c), term=brute.kl_cov_term(c, brute.held_by_kl_cov(c, a, 0.002), 0.4)
    ),
    "grpo({})+top_entropy": lambda c, _: kept(c, lambda a: brute.keep_top_entropy(c, 0.2)),
    "grpo({})+top_entropy(share=0.33, reference_denominator=true)": lambda c, _: kept(
        c, lambda a: brute.keep_top_entropy(c, 0.33), counted=True
    ),
    "grpo({})+lp_reg(share=0.5)": lambda c, _: brute.WithTerm(a := grpo(c), term=brute.lp_reg_term(c, a, 0.5, 1)),
    "grpo({})+lp_reg(share=1, coefficient=0.3)": lambda c, _: brute.WithTerm(
        a := grpo(c), term=brute.lp_reg_term(c, a, 1, 0.3)
    ),
    "grpo({})+low_prob": lambda c, _: Oracle(brute.low_prob(c, grpo(c), 0.2)),
    "grpo({})+low_prob(alpha=0.7)": lambda c, _: Oracle(brute.low_prob(c, grpo(c), 0.7)),
    "grpo({})+entropy_advantage": lambda c, _: Oracle(brute.entropy_advantage(c, grpo(c), 0.4, 2)),
    "grpo({})+entropy_advantage(scale=3, bound=1)": lambda c, _: Oracle(brute.entropy_advantage(c, grpo(c), 3, 1)),
    "grpo({})+unlikeliness": lambda c, _: Oracle(grpo(c, brute.unlikely_rewards(c, 0.25))),
    "grpo({})+unlikeliness(beta=0.9)": lambda c, _: Oracle(grpo(c, brute.unlikely_rewards(c, 0.9))),
    "grpo({})+ucpo": lambda c, _: Oracle(brute.ucpo(c, grpo(c), 0.2)),
    "grpo({})+ucpo(tau=1)": lambda c, _: Oracle(brute.ucpo(c, grpo(c), 1)),
    "grpo({})+outcome_exploration": lambda c, _: Oracle(brute.less_for_repetition(c, grpo(c), 1)),
    "grpo({})+outcome_exploration(coefficient=0.3)": lambda c, _: Oracle(brute.less_for_repetition(c, grpo(c), 0.3)),
    "grpo({})+erc(beta_low=0.3, beta_high=0.5)": lambda c, _: kept(
        c, lambda a: brute.within_entropy_ratio(c, 0.3, 0.5)
    ),
    "grpo({})+steer": lambda c, _: kept(c, lambda a: brute.steer(c, a, "linear", 0.8, 1.2)),
    "grpo({})+steer(lowest=0.3, highest=2)": lambda c, _: kept(c, lambda a: brute.steer(c, a, "linear", 0.3, 2)),
    "grpo({})+steer(mode=exponential, lowest=0.6)": lambda c, _: kept(
        c, lambda a: brute.steer(c, a, "exponential", 0.6, 1)
    ),
    "grpo({})+stare(target=9)": lambda c, _: kept(c, lambda a: brute.stare(c, a, 9, 0.1, 1.1, None)),
    "grpo({})+stare(target=9, variant=c2, share=0.4, positive=1.4, negative=0.6)": lambda c, _: kept(
        c, lambda a: brute.stare(c, a, 9, 0.4, 1.4, 0.6)
    ),
    "grpo({})+stare(target=0.01)": lambda c, _: Oracle(grpo(c)),
    "grpo({})+opefo": lambda c, _: kept(c, lambda a: brute.opefo(c, a)),
    "grpo({})+entropic": lambda c, _: kept(c, lambda a: brute.entropic(c, a, 0.3, 1, 0.01)),
    "grpo({})+entropic(target=1.2, k_p=0.4, k_i=0.2)": lambda c, _: kept(
        c, lambda a: brute.entropic(c, a, 1.2, 0.4, 0.2)
    ),
    "grpo({})+entropic(target=5)": lambda c, _: kept(c, lambda a: brute.entropic(c, a, 5, 1, 0.01)),
    "grpo({})+entrocraft(lower=[0, 5], upper=[0.1, 9])": lambda c, _: kept(c, lambda a: brute.entrocraft(c, a, 0, 0.1)),
    "grpo({})+entrocraft(lower=[3, 0], upper=[4, 0], reference_denominator=true)": lambda c, _: kept(
        c, lambda a: brute.entrocraft(c, a, 3, 4), counted=True
    ),
    "grpo({})+entrocraft(lower=[0, 0], upper=[4, 4])": lambda c, _: Oracle(grpo(c)),
    "grpo({})+repo_r": lambda c, _: Oracle(brute.repo_r(c, grpo(c), 0.01)),
    "grpo({})+repo_r(zeta=0.5)": lambda c, _: Oracle(brute.repo_r(c, grpo(c), 0.5)),
    "grpo({})+sequence_mask(delta=0.1)": lambda c, _: kept(c, lambda a: brute.keep_responses(c, a, 0.1)),
    "grpo({})+m2po": lambda c, _: kept(c, lambda a: brute.near_behaviour(c, a, 0.04)),
    "grpo({})+m2po(threshold=0.3, reference_denominator=true)": lambda c, _: kept(
        c, lambda a: brute.near_behaviour(c, a, 0.3), counted=True
    ),
    "grpo({})+quadrant": lambda c, _: kept(c, lambda a: brute.keep_quadrants(c, a, {(1, -1), (-1, 1)}, True)),
    "grpo({})+quadrant(keep=[positive_above, negative_below], by=s_star, reference_denominator=true)": (
        lambda c, _: kept(c, lambda a: brute.keep_quadrants(c, a, {(1, 1), (-1, -1)}, False), counted=True)
    ),
    "grpo({})+random_reward": lambda c, _: Oracle(grpo(c, brute.random_rewards(c, 0.5))),
    "grpo({})+random_reward(chance=0.2)": lambda c, _: Oracle(grpo(c, brute.random_rewards(c, 0.2))),
    "grpo({})+clip_servo(start=0.1, damping=0)": lambda c, _: kept(c, lambda a: clip_b(c, 0.1)),
    "grpo({})+clip_servo(start=0.1, damping=2, target=1.4)": lambda c, _: kept(
        c, lambda a: clip_b(c, 0.1 * math.exp(2 * (1.4 - statistics.fmean(brute.before(c).entropy))))
    ),
    "grpo({})+clip_servo(by=clip_v, mode=paper, target=0, lowest=0.02)": lambda c, _: kept(
        c, lambda a: clip_v(c, 0.02)
    ),
    "grpo({})+clip_predict": lambda c, _: kept(c, lambda a: brute.keep_predicted(c, a, 0, 0.2)),
    "grpo({})+clip_predict(most=0.03)": lambda c, _: kept(c, lambda a: brute.keep_predicted(c, a, 0, 0.03)),
    "grpo({})+clip_predict(target=1.2, start=2, most=1, reference_denominator=true)": lambda c, _: kept(
        c,
        lambda a: brute.keep_predicted(c, a, 0.2 * (1.2 - statistics.fmean(brute.before(c).entropy)) / 2, 1),
        counted=True,
    ),
}


@pytest.mark.parametrize("template", ORACLES)
def test_loss_of_micro_batches_by_loops(template: str) -> None:
    c = case(2, groups=6, size=4)
    check_micro_batches(method(template.format("normalise=token")), c, lambda rows: ORACLES[template](c, rows))


def normalised(oracle: Oracle, normalise: str) -> Oracle:
    return dataclasses.replace(oracle, normalise=normalise)


# The denominator is the objective's, whatever the control; so one control of each kind of denominator is enough. Clip_B
# (test_clips.py) and SIREN below have all three as well.
KEEPS = "grpo({})+top_entropy(share=0.33, reference_denominator=true)"
ADDS = "grpo({})+kl_cov(coefficient=0.4)"


@pytest.mark.parametrize("normalise", ["sequence", "constant"])
@pytest.mark.parametrize("template", [KEEPS, ADDS])
def test_controls_with_other_denominators(template: str, normalise: str) -> None:
    c = case(2, groups=6, size=4)
    m = method(template.format(f"normalise={normalise}"))
    check_micro_batches(m, c, lambda rows: normalised(ORACLES[template](c, rows), normalise))


ACTS = ("keep", "counted", "advantages", "term")


@pytest.mark.parametrize(
    "template", [template for template in ORACLES if "target=0.01)" not in template and "4, 4]" not in template]
)
def test_controls_act_on_the_random_batch(template: str) -> None:
    """Make sure that no comparison above is one of plain GRPO with itself, nor of nothing with nothing."""
    c = case(2, groups=6, size=4)
    oracle, plain = ORACLES[template](c, range(24)), Oracle(grpo(c))
    assert any(getattr(oracle, name, None) != getattr(plain, name, None) for name in ACTS)
    if oracle.keep is not None:
        weights = [weight for weight, a in zip(oracle.keep, oracle.advantages, strict=True) if a]
        assert any(weights)
        assert any(weight != 1 for weight in weights)


# Edge cases


def test_top_entropy_keeps_the_earlier_of_equal_tokens() -> None:
    c = case(2)
    tokens = len(c.batch.index_T)
    level = dataclasses.replace(c.old, entropy=torch.ones(tokens, dtype=torch.float64))
    weights_T = method("top_entropy").signal(level, c.batch, [c.batch]).weights_T
    count = math.ceil(0.2 * tokens)
    assert weights_T.tolist() == [1] * count + [0] * (tokens - count)


def test_clip_cov_draw() -> None:
    c = case(2, groups=6, size=4)
    m = method("clip_cov(fraction=0.05, lowest=0, highest=9)")
    other = dataclasses.replace(c.batch, seed=1)
    first, again, moved = (m.signal(c.old, b, [b]).weights_T for b in (c.batch, c.batch, other))
    assert torch.equal(first, again)
    assert not torch.equal(first, moved)
    assert (first == 0).sum() == (moved == 0).sum() == int(0.05 * len(first))


def test_without_a_candidate_clip_cov_drops_nothing() -> None:
    c = case(2)
    assert method("clip_cov(lowest=900, highest=901)").signal(c.old, c.batch, [c.batch]).weights_T.all()


@pytest.mark.parametrize("spec", ["ucpo(tau=1)", "unlikeliness(beta=1)"])
@pytest.mark.parametrize("right", [[0.0] * 12, [1.0] * 12, [0.0, 0.0, 1.0] * 4])
def test_groups_all_right_all_wrong_and_with_one_right(spec: str, right: list[float]) -> None:
    c = case(4)
    batch = dataclasses.replace(c.batch, rewards_B=torch.tensor(right).double(), right_B=torch.tensor(right) > 0)
    c = dataclasses.replace(c, batch=batch)
    actual = method(spec).signal(c.old, batch, [batch]).advantages_T.tolist()
    expected = brute.ucpo(c, grpo(c), 1) if "ucpo" in spec else grpo(c, brute.unlikely_rewards(c, 1))
    assert actual == pytest.approx(expected, rel=1e-9, abs=1e-12)
    if "ucpo" in spec:
        assert actual == pytest.approx(grpo(c), abs=1e-9)  # the factors of one right response, or of no advantage
    if right == [1.0] * 12 and "unlikeliness" in spec:
        assert any(actual)  # rarer right answers are better ones


def test_unlikeliness_ranks_equal_responses_in_order() -> None:
    c = case(2)
    level = dataclasses.replace(c.old, logp=torch.full_like(c.old.logp, -0.5))
    batch = dataclasses.replace(c.batch, right_B=torch.ones(12, dtype=torch.bool))
    control = method("unlikeliness(beta=0.6)").controls["unlikeliness"]
    rewards_B = control.reward(torch.ones(12, dtype=torch.float64), level, batch)
    assert rewards_B.tolist() == pytest.approx([1, 0.8, 0.6] * 4)


@pytest.mark.parametrize("spec", ["opefo", "steer", "steer(mode=exponential)", "stare", "clip_predict", "clip_servo"])
def test_controls_without_advantages_have_no_gradient(spec: str) -> None:
    c = case(2)
    batch = dataclasses.replace(c.batch, rewards_B=torch.zeros(12, dtype=torch.float64))
    m = method(spec)
    signal = m.signal(c.old, batch, [batch])
    loss = m.loss(c.current(), signal, batch)
    loss.backward()
    assert loss.item() == 0
    assert c.logits_TV.grad is not None
    assert not c.logits_TV.grad.any()
    assert torch.isfinite(signal.weights_T).all()


@pytest.mark.parametrize("spec", ["erc", "sequence_mask"])
def test_gates_before_the_first_update(spec: str) -> None:
    c = case(2, drift=0)
    m = method(spec)
    assert not m.touched(c.current(), m.signal(c.old, c.batch, [c.batch]), c.batch)[f"closed_{spec}"].any()


def test_sequence_mask_with_any_objective() -> None:
    c = case(2, groups=6, size=4)
    m = method("ppo+sequence_mask(delta=0)")
    closed_T = m.touched(c.current(), m.signal(c.old, c.batch, [c.batch]), c.batch)["closed_sequence_mask"]
    closed = [closed_T[span.start : span.stop].tolist() for span in loops.responses(c)]
    assert all(len(set(of_response)) == 1 for of_response in closed)
    assert {of_response[0] for of_response in closed} == {True, False}


def test_random_reward() -> None:
    c = case(2, groups=6, size=4)
    signal = method("random_reward").signal(c.old, c.batch, [c.batch])
    wrong = dataclasses.replace(c.batch, rewards_B=1 - c.batch.rewards_B, right_B=~c.batch.right_B)
    assert torch.equal(signal.advantages_T, method("random_reward").signal(c.old, wrong, [wrong]).advantages_T)
    assert set(method("random_reward").rewarded(c.old, c.batch).rewards_B.tolist()) == {0, 1}
    assert not method("random_reward(chance=0)").rewarded(c.old, c.batch).rewards_B.any()
    assert method("random_reward(chance=1)").rewarded(c.old, c.batch).rewards_B.all()


def test_entrocraft_band() -> None:
    c = case(2)
    h = statistics.fmean(brute.before(c).entropy)
    m = method(f"entrocraft(lower=[{h + 0.2}, {h - 0.4}], upper=[{h + 0.4}, {h - 0.2}])")
    dropped_signs = []
    for progress in (0.0, 0.3, 0.35, 0.65, 0.7, 1.0):
        batch = dataclasses.replace(c.batch, progress=progress)
        signal = m.signal(c.old, batch, [batch])
        dropped = signal.advantages_T[signal.weights_T == 0]
        dropped_signs.append("" if not len(dropped) else "positive" if (dropped > 0).all() else "negative")
        assert not len(dropped) or (dropped > 0).all() or (dropped < 0).all()
    assert dropped_signs == ["positive", "positive", "", "", "negative", "negative"]


# Memories


def round_trip(spec: str, steps: Sequence[Mapping[str, float]], further: Mapping[str, float]) -> dict[str, float]:
    """Return a control's state after these steps, once another one has taken it over and goes on the same way."""
    first, second = method(spec), method(spec)
    name = next(iter(first.controls))
    for metrics in steps:
        first.observe(metrics)
    state = first.state()
    second.load_state(state)
    assert second.state() == state
    assert method(spec).state() != state
    for m in (first, second):
        m.observe(further)
    assert first.state() == second.state()
    return state[name]


def entropies(*values: float) -> list[dict[str, float]]:
    return [{"entropy/mean": value} for value in values]


def test_stare_weights() -> None:
    spec = "stare(variant=c2, target=0.5, step=0.25, positive=1.1, negative=0.9, most=1.5, least=0.5)"
    m, weights = method(spec), []
    for metrics in entropies(0.4, 0.3, 0.5, 0.6, 0.9, 0.9):
        m.observe(metrics)
        weights.append(tuple(round(x, 9) for x in m.state()["stare"].values()))
    assert weights == [(1.35, 0.65), (1.5, 0.5), (1.5, 0.5), (1.25, 0.75), (1.0, 1.0), (1.0, 1.0)]
    c = case(2, groups=6, size=4)
    m = method(spec.replace("target=0.5", "target=9"))
    check_micro_batches(m, c, lambda rows: kept(c, lambda a: brute.stare(c, a, 9, 0.1, 1.35, 0.65)))
    assert m.state() == {"stare": {"positive": 1.1, "negative": 0.9}}, "a look at the batch moves no memory"
    m.observe({"entropy/mean": 0.4})
    check_micro_batches(m, c, lambda rows: kept(c, lambda a: brute.stare(c, a, 9, 0.1, 1.5, 0.5)))
    state = round_trip(spec, entropies(0.4, 0.3), {"entropy/mean": 0.7})
    assert state == pytest.approx({"positive": 1.5, "negative": 0.5})


def test_adaptive_entropy_memory() -> None:
    state = round_trip("adaptive_entropy", entropies(0.3, 0.1, 0.15), {"entropy/mean": 0.1})
    assert state == {"coefficient": 2e-4, "active": 1.0}


@pytest.mark.parametrize(("spec", "state"), [("stare", {"positive": 1.1, "negative": 0.9}), ("clip_predict", {})])
def test_state_without_a_target_or_step(spec: str, state: dict[str, float]) -> None:
    m = method(spec)
    m.observe({"entropy/mean": 0.01})
    assert m.state() == {spec: state}


def test_entropic_adds_up_its_errors() -> None:
    spec = "entropic(target=0.5, k_p=0.4, k_i=0.2)"
    state = round_trip(spec, entropies(0.9, 0.4, 0.6), {"entropy/mean": 0.1})
    assert state == {"integral": pytest.approx(0.4)}
    c, m = case(2, groups=6, size=4), method(spec)
    for metrics in entropies(0.9, 0.4, 0.6):
        m.observe(metrics)
    check_micro_batches(m, c, lambda rows: kept(c, lambda a: brute.entropic(c, a, 0.5, 0.4, 0.2, 0.4)))


def test_repo_doubles_and_halves_towards_its_target() -> None:
    spec = "repo_r(target=0.5, zeta=0.02, lowest=0.01, highest=0.1)"
    m, zetas = method(spec), []
    for metrics in entropies(0.4, 0.4, 0.4, 0.5, 0.6, 0.6, 0.6, 0.6):
        m.observe(metrics)
        zetas.append(m.state()["repo_r"]["zeta"])
    assert zetas == pytest.approx([0.04, 0.08, 0.1, 0.1, 0.05, 0.025, 0.0125, 0.01])
    assert round_trip(spec, entropies(0.4, 0.4), {"entropy/mean": 0.7}) == {"zeta": 0.08}
    c, m = case(2), method("repo_r")
    m.observe({"entropy/mean": 0.1})
    assert m.state() == {"repo_r": {"zeta": 0.01}}
    m.load_state({"repo_r": {"zeta": 0.5}})
    advantages_T = m.signal(c.old, c.batch, [c.batch]).advantages_T
    assert advantages_T.tolist() == pytest.approx(brute.repo_r(c, grpo(c), 0.5))


@pytest.mark.parametrize("normalise", ["token", "sequence", "constant"])
def test_siren_pulls_the_top_entropy_to_that_before_the_first_update(normalise: str) -> None:
    c = case(2, groups=6, size=4)
    m = method(f"grpo(normalise={normalise})+siren(coefficient=0.7, quantile=0.6)")
    signal = m.signal(c.old, c.batch, list(c.batch.split(2)))
    h = brute.before(c).entropy
    tops = brute.top_positions(c, h, range(24), 0.6)
    assert {0, 1, 2} < {len(top) for top in tops}
    first = brute.top_entropy(c, h, range(24), 0.6)
    logged = m.metrics(signal, c.batch)
    assert logged == {"siren/entropy_top": pytest.approx(first)}

    def pulled_to(anchor: float) -> Callable[[Sequence[int]], Oracle]:
        whole = lambda rows: brute.siren_loss(c, rows, 0.7, 0.6, anchor)  # noqa: E731  as a field of the oracle
        return lambda _: brute.WithWhole(grpo(c), normalise=normalise, whole=whole)

    check_micro_batches(m, c, pulled_to(first))  # in the updates of the first step
    assert m.state() == {"siren": {}}
    m.observe({"entropy/mean": 0.5, "siren/entropy_top": 0.25})
    m.observe({"entropy/mean": 0.4, "siren/entropy_top": 0.1})
    assert m.state() == {"siren": {"anchor": 0.25}}
    check_micro_batches(m, c, pulled_to(0.25))


@pytest.mark.parametrize(("length", "above"), [(1, 0), (2, 1), (5, 1), (6, 1), (7, 2), (11, 2), (16, 3)])
def test_siren_chooses_positions_strictly_above_the_quantile(length: int, above: int) -> None:
    rollout = Rollout([0], [1] * length, [0.0] * length, True)
    batch = batch_of([[rollout, rollout]], [0.0, 1.0])
    rising_T = torch.arange(length, dtype=torch.float64).repeat(2)
    part_T, top = Siren().top(rising_T, batch)
    assert part_T.tolist() == ([0.0] * (length - above) + [0.5 / max(above, 1)] * above) * 2
    assert top.item() == pytest.approx(sum(range(length - above, length)) / max(above, 1))


# The objective of a release


def released(low: float, high: float, dual: float | None, c: Case, **more: Any) -> brute.WithTerm | Oracle:
    kind = brute.WithTerm if "term" in more else Oracle
    return kind(grpo(c), loops.clipped(low, high, dual), **more)


def siren_release(c: Case, _: Sequence[int]) -> Oracle:
    anchor = brute.top_entropy(c, brute.before(c).entropy, range(len(c.batch)), 0.8)
    advantages = loops.group_advantages(c, divide_by_std=False)
    whole = lambda rows: brute.siren_loss(c, rows, 0.005, 0.8, anchor)  # noqa: E731  as a field of the oracle
    return brute.WithWhole(advantages, loops.clipped(0.28, 0.28), whole=whole)


RELEASES: dict[str, tuple[Callable[[Case, Sequence[int]], Oracle], str]] = {
    "clip_cov_release": (
        lambda c, _: released(1, 1, None, c, keep=brute.keep_clip_cov(c, grpo(c), 2e-4, 1, 5)),
        "token",
    ),
    "kl_cov_release": (
        lambda c, _: released(1, 1e9, None, c, term=brute.kl_cov_term(c, brute.held_by_kl_cov(c, grpo(c), 0.002), 1)),
        "token",
    ),
    "lp_reg_release": (lambda c, _: released(1, 9, None, c, term=brute.lp_reg_term(c, grpo(c), 0.01, 1)), "token"),
    "stare_release": (
        lambda c, _: released(0.2, 0.28, 10, c, keep=brute.stare(c, grpo(c), 0.3, 0.1, 1.1, None)),
        "token",
    ),
    "siren_release": (siren_release, "constant"),
}


@pytest.mark.parametrize("spec", RELEASES)
def test_releases_have_their_authors_objective(spec: str) -> None:
    c, (oracle, normalise) = case(2, groups=6, size=4), RELEASES[spec]
    check_micro_batches(method(spec), c, lambda rows: normalised(oracle(c, rows), normalise))
    assert spec.removesuffix("_release") in baselines.METHODS


def test_siren_anchor_in_a_checkpoint() -> None:
    steps = [{"entropy/mean": 0.5, "siren/entropy_top": 0.25}]
    assert round_trip("siren", steps, {"entropy/mean": 0.5, "siren/entropy_top": 0.2}) == {"anchor": 0.25}
    assert method("siren").state() == {"siren": {}}


def servo(entropy: float, dropped: float = 1.0, asked: float = 1.0) -> dict[str, float]:
    return {"entropy/mean": entropy, "clip_servo/dropped": dropped, "clip_servo/asked": asked}


def test_servo_integrates_its_share() -> None:
    spec = "clip_servo(target=0.5, gain=2, start=0.05, lowest=0.02, highest=0.1)"
    m, shares = method(spec), []
    for entropy in (0.4, 0.3, 0.3, 0.1, 0.6, 1.5):
        m.observe(servo(entropy))
        shares.append(m.state()["clip_servo"]["share"])
    up = [0.05 * math.exp(0.2), 0.05 * math.exp(0.6), 0.1, 0.1]
    assert shares == pytest.approx([*up, 0.1 * math.exp(-0.2), 0.02])
    state = round_trip(spec, [servo(0.4)], servo(0.3))
    assert state == {"share": pytest.approx(0.05 * math.exp(0.2))}


def test_servo_without_wind_up() -> None:
    m = method("clip_servo(target=0.5, start=0.05, gain=1)")
    m.observe(servo(0.1, dropped=0.02, asked=0.05))
    assert m.state() == {"clip_servo": {"share": 0.05}}
    m.observe(servo(0.1, dropped=0.025, asked=0.05))
    assert m.state()["clip_servo"]["share"] == pytest.approx(0.05 * math.exp(0.4))
    m.observe(servo(0.9, dropped=0.0, asked=0.05))
    assert m.state()["clip_servo"]["share"] == pytest.approx(0.05)


@pytest.mark.parametrize(("target", "share"), [(1e6, 0.2), (0, 1e-3)])
def test_servo_within_its_bounds(target: float, share: float) -> None:
    c, m = case(2, groups=6, size=4), method(f"clip_servo(target={target}, damping=1e5, gain=1e5)")
    signal = m.signal(c.old, c.batch, [c.batch])
    assert signal.weights_T.tolist() == [float(kept) for kept in clip_b(c, share)]
    m.observe(servo(1.0))
    assert m.state() == {"clip_servo": {"share": pytest.approx(share)}}


def test_servo_metrics() -> None:
    c = case(2, groups=6, size=4)
    tokens = len(c.batch.index_T)
    for share in (0.1, 0.9):
        m = method(f"clip_servo(start={share}, highest=1, damping=0)")
        signal = m.signal(c.old, c.batch, [c.batch])
        dropped = clip_b(c, share).count(False)
        assert m.metrics(signal, c.batch) == {
            "clip_servo/asked": pytest.approx(round(share * tokens) / tokens),
            "clip_servo/dropped": pytest.approx(dropped / tokens),
        }
        assert (dropped < round(share * tokens)) == (share == 0.9)


def prediction(entropy: float, predicted: float = 0.0) -> dict[str, float]:
    return {"entropy/mean": entropy, "clip_predict/predicted": predicted}


def test_prediction_drops_few_tokens() -> None:
    c = case(2, groups=6, size=4)
    for spec in ("clip_predict(most=1)", "clip_predict(target=1.1, most=1)", "clip_predict(target=1.3, most=1)"):
        m = method(spec)
        signal = m.signal(c.old, c.batch, [c.batch])
        logged = {key.removeprefix("clip_predict/"): x for key, x in m.metrics(signal, c.batch).items()}
        changes = brute.entropy_changes(c, grpo(c))
        assert logged["predicted_all"] == pytest.approx(statistics.fmean(changes))
        left = [x * w for x, w in zip(changes, signal.weights_T.tolist(), strict=True)]
        assert logged["predicted"] == pytest.approx(statistics.fmean(left))
        direction = 1 if logged["predicted_all"] < logged["wanted"] else -1
        assert direction * (logged["predicted"] - logged["wanted"]) >= 0
        dropped = sorted(direction * x for x, w in zip(changes, signal.weights_T.tolist(), strict=True) if not w)
        assert dropped
        assert dropped[-1] < 0
        assert direction * (logged["predicted"] + direction * dropped[-1] / len(changes) - logged["wanted"]) < 0
        assert dropped == sorted(direction * x for x in changes)[: len(dropped)]


def test_prediction_slope() -> None:
    spec = "clip_predict(target=0.5, gain=0.5, start=2, lowest=1.2, highest=3.9, memory=0.75)"
    m, slopes = method(spec), []
    steps = [(1.0, 0.1), (1.3, -0.2), (0.5, 0.05), (0.8, 0.0), (0.8, 0.1), (0.7, 0.1), (0.5, 0.1)]
    for entropy, predicted in steps:
        m.observe(prediction(entropy, predicted))
        slopes.append(m.state()["clip_predict"]["slope"])
    xy, xx, expected = 0.0, 0.0, [2.0]
    for (h, x), (after, _) in pairwise(steps):
        xy, xx = 0.75 * xy + 0.25 * x * (after - h), 0.75 * xx + 0.25 * x * x
        expected.append(min(max(xy / xx, 1.2), 3.9))
    assert slopes == pytest.approx(expected)
    assert {1.2, 3.9} < set(slopes)
    assert any(1.2 < slope < 3.9 and slope != 2 for slope in slopes)
    state = round_trip(spec, [prediction(*step) for step in steps[:3]], prediction(0.8, 0.1))
    assert state.keys() == {"slope", "entropy", "predicted", "xy", "xx"}

    c = case(2, groups=6, size=4)
    wanted = 0.5 * (0.5 - statistics.fmean(brute.before(c).entropy)) / slopes[-1]
    check_micro_batches(m, c, lambda rows: kept(c, lambda a: brute.keep_predicted(c, a, wanted, 0.2)))


# Ranks

SHARED = (
    "clip_cov(fraction=0.05, lowest=0, highest=9)",
    "top_entropy",
    "stare(target=9)",
    "clip_predict(target=2)",
    "clip_servo(damping=0)",
)


def chosen(rows: Sequence[int]) -> dict[str, torch.Tensor]:
    """Return each control's weights on some of the responses; the entropies have ties."""
    c = case(2, groups=6, size=4)
    part = c.batch.take(rows)
    old = dataclasses.replace(c.old, entropy=c.old.discriminator.new_tensor(brute.before(c).entropy).round(decimals=1))
    advantages_T = torch.tensor(grpo(c), dtype=torch.float64)[part.index_T]
    controls = [next(iter(method(spec).controls.values())) for spec in SHARED]
    every_T = torch.ones_like(advantages_T)
    return {
        spec: control.weights(old.at(part.index_T), advantages_T, part) * every_T
        for spec, control in zip(SHARED, controls, strict=True)
    }


UNEQUAL = ([*range(4, 8), *range(16, 20)], [*range(4), *range(8, 16), *range(20, 24)])


def chosen_on_rank(rank: int, folder: Path) -> dict[str, torch.Tensor]:
    return chosen(UNEQUAL[rank])


@pytest.mark.processes
def test_controls_on_two_ranks(tmp_path: Path) -> None:
    by_rank = on_ranks(chosen_on_rank, tmp_path)
    alone = chosen(range(24))
    batch = case(2, groups=6, size=4).batch
    for together, rows in zip(by_rank, UNEQUAL, strict=True):
        for spec, weights_T in alone.items():
            assert weights_T.min() < weights_T.max(), spec
            assert torch.equal(together[spec], weights_T[batch.take(rows).index_T]), spec
