"""Every control's loss and gradient against loops written from the formulas (control_loops.py), in float64.

Controls with a memory are followed step by step.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import control_loops as brute
import loops
import pytest
import torch
from loops import Oracle, check_micro_batches
from ragged import Case, case
from registered import method

import baselines


def grpo(c: Case, rewards: Sequence[float] | None = None) -> list[float]:
    return loops.by_group(c, loops.standard, rewards)


def kept(c: Case, weights: Sequence[float], *, counted: bool = False) -> Oracle:
    return Oracle(grpo(c), keep=weights, counted=[w != 0 for w in weights] if counted else None)


def clip_b(c: Case, share: float) -> list[bool]:
    return loops.keep_share(loops.centred(loops.before(c).s_star), grpo(c), "reference", share)


def clip_v(c: Case, share: float) -> list[bool]:
    d = [s - n for s, n in zip(*loops.taken(c), strict=True)]
    return loops.keep_share(d, grpo(c), "paper", share)


def mean_entropy(c: Case) -> float:
    return statistics.fmean(loops.before(c).entropy)


# spec -> the same as loops; {} takes further options of the objective
ORACLES: dict[str, Callable[[Case], Oracle]] = {
    "grpo({})+clip_cov(fraction=0.05, lowest=0.2, highest=2)": lambda c: kept(c, brute.keep_clip_cov(c, 0.05, 0.2, 2)),
    "grpo({})+clip_cov(lowest=0.2, highest=2)": lambda c: kept(c, brute.keep_clip_cov(c, 2e-4, 0.2, 2)),
    "grpo(clip_low=1, clip_high=1e9, dual_clip=null,{})+kl_cov(fraction=0.2)": lambda c: Oracle(
        grpo(c), loops.clipped(1, 1e9, None), term=brute.kl_cov_term(c, 0.2, 1)
    ),
    "grpo({})+kl_cov(coefficient=0.4)": lambda c: Oracle(grpo(c), term=brute.kl_cov_term(c, 0.002, 0.4)),
    "grpo({})+top_entropy": lambda c: kept(c, brute.keep_top_entropy(c, 0.2)),
    "grpo({})+top_entropy(share=0.33, reference_denominator=true)": lambda c: kept(
        c, brute.keep_top_entropy(c, 0.33), counted=True
    ),
    "grpo({})+tre": lambda c: Oracle(grpo(c), term=brute.likeliest_bonus(c, 0.001)),
    "grpo({})+tre(coefficient=0.3)": lambda c: Oracle(grpo(c), term=brute.likeliest_bonus(c, 0.3)),
    "grpo({})+lp_reg(share=0.5)": lambda c: Oracle(grpo(c), term=brute.lp_reg_term(c, 0.5, 1)),
    "grpo({})+lp_reg(share=1, coefficient=0.3)": lambda c: Oracle(grpo(c), term=brute.lp_reg_term(c, 1, 0.3)),
    "grpo({})+low_prob": lambda c: Oracle(brute.low_prob(c, 0.2)),
    "grpo({})+low_prob(alpha=0.7)": lambda c: Oracle(brute.low_prob(c, 0.7)),
    "grpo({})+entropy_advantage": lambda c: Oracle(brute.entropy_advantage(c, 0.4, 2)),
    "grpo({})+entropy_advantage(scale=3, bound=1)": lambda c: Oracle(brute.entropy_advantage(c, 3, 1)),
    "grpo({})+unlikeliness": lambda c: Oracle(grpo(c, brute.unlikely_rewards(c, 0.25))),
    "grpo({})+unlikeliness(beta=0.9)": lambda c: Oracle(grpo(c, brute.unlikely_rewards(c, 0.9))),
    "grpo({})+ucpo": lambda c: Oracle(brute.ucpo(c, 0.2)),
    "grpo({})+ucpo(tau=1)": lambda c: Oracle(brute.ucpo(c, 1)),
    "grpo({})+outcome_exploration": lambda c: Oracle(brute.less_for_repetition(c, 1)),
    "grpo({})+outcome_exploration(coefficient=0.3)": lambda c: Oracle(brute.less_for_repetition(c, 0.3)),
    "grpo({})+erc(beta_low=0.3, beta_high=0.5)": lambda c: kept(c, brute.within_entropy_ratio(c, 0.3, 0.5)),
    "grpo({})+steer": lambda c: kept(c, brute.steer(c, "linear", 0.8, 1.2)),
    "grpo({})+steer(lowest=0.3, highest=2)": lambda c: kept(c, brute.steer(c, "linear", 0.3, 2)),
    "grpo({})+steer(mode=exponential, lowest=0.6)": lambda c: kept(c, brute.steer(c, "exponential", 0.6, 1)),
    "grpo({})+stare(target=9)": lambda c: kept(c, brute.stare(c, 9, 0.1, 1.1, None)),
    "grpo({})+stare(target=9, variant=c2, share=0.4, positive=1.4, negative=0.6)": lambda c: kept(
        c, brute.stare(c, 9, 0.4, 1.4, 0.6)
    ),
    "grpo({})+stare(target=0.01)": lambda c: Oracle(grpo(c)),
    "grpo({})+opefo": lambda c: kept(c, brute.opefo(c)),
    "grpo({})+entropic": lambda c: kept(c, brute.entropic(c, 0.3, 1, 0.01)),
    "grpo({})+entropic(target=1.2, k_p=0.4, k_i=0.2)": lambda c: kept(c, brute.entropic(c, 1.2, 0.4, 0.2)),
    "grpo({})+entropic(target=5)": lambda c: kept(c, brute.entropic(c, 5, 1, 0.01)),
    "grpo({})+entrocraft(lower=[0, 5], upper=[0.1, 9])": lambda c: kept(c, brute.entrocraft(c, 0, 0.1)),
    "grpo({})+entrocraft(lower=[3, 0], upper=[4, 0], reference_denominator=true)": lambda c: kept(
        c, brute.entrocraft(c, 3, 4), counted=True
    ),
    "grpo({})+entrocraft(lower=[0, 0], upper=[4, 4])": lambda c: Oracle(grpo(c)),
    "grpo({})+repo_r": lambda c: Oracle(brute.repo_r(c, 0.01)),
    "grpo({})+repo_r(zeta=0.5)": lambda c: Oracle(brute.repo_r(c, 0.5)),
    "grpo({})+sequence_mask(delta=0.1)": lambda c: kept(c, brute.keep_responses(c, 0.1)),
    "grpo({})+m2po": lambda c: kept(c, brute.near_behaviour(c, 0.04)),
    "grpo({})+m2po(threshold=0.3, reference_denominator=true)": lambda c: kept(
        c, brute.near_behaviour(c, 0.3), counted=True
    ),
    "grpo({})+quadrant": lambda c: kept(c, brute.keep_quadrants(c, {(1, -1), (-1, 1)}, True)),
    "grpo({})+quadrant(keep=[positive_above, negative_below], by=s_star, reference_denominator=true)": lambda c: kept(
        c, brute.keep_quadrants(c, {(1, 1), (-1, -1)}, False), counted=True
    ),
    "grpo({})+random_reward": lambda c: Oracle(grpo(c, brute.random_rewards(c, 0.5))),
    "grpo({})+random_reward(chance=0.2)": lambda c: Oracle(grpo(c, brute.random_rewards(c, 0.2))),
    "grpo({})+clip_servo(start=0.1, damping=0)": lambda c: kept(c, clip_b(c, 0.1)),
    "grpo({})+clip_servo(start=0.1, damping=2, target=1.4)": lambda c: kept(
        c, clip_b(c, 0.1 * math.exp(2 * (1.4 - mean_entropy(c))))
    ),
    "grpo({})+clip_servo(by=clip_v, mode=paper, target=0, lowest=0.02)": lambda c: kept(c, clip_v(c, 0.02)),
    "grpo({})+clip_predict": lambda c: kept(c, brute.keep_predicted(c, 0, 0.2)),
    "grpo({})+clip_predict(most=0.03)": lambda c: kept(c, brute.keep_predicted(c, 0, 0.03)),
    "grpo({})+clip_predict(target=1.2, start=2, most=1, reference_denominator=true)": lambda c: kept(
        c, brute.keep_predicted(c, 0.2 * (1.2 - mean_entropy(c)) / 2, 1), counted=True
    ),
}


@pytest.mark.parametrize("template", ORACLES)
def test_loss_of_micro_batches_by_loops(template: str) -> None:
    c = case(2, groups=6, size=4)
    check_micro_batches(method(template.format("normalise=token")), c, ORACLES[template](c).loss)


# The denominator is the objective's, whatever the control; so one control of each kind of denominator is enough. Clip_B
# (test_clips.py) and SIREN below have all three as well.
KEEPS = "grpo({})+top_entropy(share=0.33, reference_denominator=true)"
ADDS = "grpo({})+kl_cov(coefficient=0.4)"


@pytest.mark.parametrize("normalise", ["sequence", "constant"])
@pytest.mark.parametrize("template", [KEEPS, ADDS])
def test_controls_with_other_denominators(template: str, normalise: str) -> None:
    c = case(2, groups=6, size=4)
    oracle = ORACLES[template](c)
    oracle.normalise = normalise
    check_micro_batches(method(template.format(f"normalise={normalise}")), c, oracle.loss)


ACTS = ("keep", "counted", "advantages", "term")


@pytest.mark.parametrize(
    "template", [template for template in ORACLES if "target=0.01)" not in template and "4, 4]" not in template]
)
def test_controls_act_on_the_random_batch(template: str) -> None:
    """Make sure that no comparison above is one of plain GRPO with itself, nor of nothing with nothing."""
    c = case(2, groups=6, size=4)
    oracle, plain = ORACLES[template](c), Oracle(grpo(c))
    assert any(getattr(oracle, name) != getattr(plain, name) for name in ACTS)
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
    expected = brute.ucpo(c, 1) if "ucpo" in spec else grpo(c, brute.unlikely_rewards(c, 1))
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


def test_sequence_mask_with_any_objective() -> None:
    c = case(2, groups=6, size=4)
    m = method("ppo+sequence_mask(delta=0)")
    closed_T = m.touched(c.current(), m.signal(c.old, c.batch, [c.batch]), c.batch)["closed_sequence_mask"]
    closed = [closed_T[span.start : span.stop].tolist() for span in loops.responses(c)]
    assert all(len(set(of_response)) == 1 for of_response in closed)
    assert {of_response[0] for of_response in closed} == {True, False}


def test_entrocraft_band() -> None:
    c = case(2)
    h = mean_entropy(c)
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
    check_micro_batches(m, c, kept(c, brute.stare(c, 9, 0.1, 1.35, 0.65)).loss)
    assert m.state() == {"stare": {"positive": 1.1, "negative": 0.9}}, "a look at the batch moves no memory"
    m.observe({"entropy/mean": 0.4})
    check_micro_batches(m, c, kept(c, brute.stare(c, 9, 0.1, 1.5, 0.5)).loss)
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
    check_micro_batches(m, c, kept(c, brute.entropic(c, 0.5, 0.4, 0.2, 0.4)).loss)


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
    assert advantages_T.tolist() == pytest.approx(brute.repo_r(c, 0.5))


@pytest.mark.parametrize("normalise", ["token", "sequence", "constant"])
def test_siren_pulls_the_top_entropy_to_that_before_the_first_update(normalise: str) -> None:
    c = case(2, groups=6, size=4)
    m = method(f"grpo(normalise={normalise})+siren(coefficient=0.7, quantile=0.6)")
    signal = m.signal(c.old, c.batch, list(c.batch.split(2)))
    h = loops.before(c).entropy
    tops = brute.top_positions(c, h, range(24), 0.6)
    assert {0, 1, 2} < {len(top) for top in tops}
    first = brute.top_entropy(c, h, range(24), 0.6)
    logged = m.metrics(signal, c.batch)
    assert logged == {"siren/entropy_top": pytest.approx(first)}

    def pulled_to(anchor: float) -> Oracle:
        return Oracle(grpo(c), normalise=normalise, whole=lambda rows: brute.siren_loss(c, rows, 0.7, 0.6, anchor))

    check_micro_batches(m, c, pulled_to(first).loss)  # in the updates of the first step
    assert m.state() == {"siren": {}}
    m.observe({"entropy/mean": 0.5, "siren/entropy_top": 0.25})
    m.observe({"entropy/mean": 0.4, "siren/entropy_top": 0.1})
    assert m.state() == {"siren": {"anchor": 0.25}}
    check_micro_batches(m, c, pulled_to(0.25).loss)


# The objective of a release


def siren_release(c: Case) -> Oracle:
    anchor = brute.top_entropy(c, loops.before(c).entropy, range(len(c.batch)), 0.8)
    return Oracle(
        loops.group_advantages(c, divide_by_std=False),
        loops.clipped(0.28, 0.28),
        "constant",
        whole=lambda rows: brute.siren_loss(c, rows, 0.005, 0.8, anchor),
    )


RELEASES: dict[str, Callable[[Case], Oracle]] = {
    "clip_cov_release": lambda c: Oracle(grpo(c), loops.clipped(1, 1, None), keep=brute.keep_clip_cov(c, 2e-4, 1, 5)),
    "kl_cov_release": lambda c: Oracle(grpo(c), loops.clipped(1, 1e9, None), term=brute.kl_cov_term(c, 0.002, 1)),
    "lp_reg_release": lambda c: Oracle(grpo(c), loops.clipped(1, 9, None), term=brute.lp_reg_term(c, 0.01, 1)),
    "stare_release": lambda c: Oracle(
        grpo(c),
        loops.clipped(0.2, 0.28, 10),
        keep=brute.stare(c, 0.3, 0.1, 1.1, None),
    ),
    "siren_release": siren_release,
}


@pytest.mark.parametrize("spec", RELEASES)
def test_releases_have_their_authors_objective(spec: str) -> None:
    c = case(2, groups=6, size=4)
    check_micro_batches(method(spec), c, RELEASES[spec](c).loss)
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


@pytest.mark.parametrize("target", [None, 1.1, 1.3])
def test_prediction_drops_few_tokens(target: float | None) -> None:
    c = case(2, groups=6, size=4)
    wanted = 0.0 if target is None else 0.2 * (target - mean_entropy(c)) / 2
    m = method("clip_predict(most=1)" if target is None else f"clip_predict(target={target}, start=2, most=1)")
    signal = m.signal(c.old, c.batch, [c.batch])
    keep, changes = brute.keep_predicted(c, wanted, 1), brute.entropy_changes(c)
    assert signal.weights_T.tolist() == keep
    assert False in keep
    left = [x * kept for x, kept in zip(changes, keep, strict=True)]
    logged = {"wanted": wanted, "predicted": statistics.fmean(left), "predicted_all": statistics.fmean(changes)}
    assert m.metrics(signal, c.batch) == {f"clip_predict/{key}": pytest.approx(x) for key, x in logged.items()}


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
    wanted = 0.5 * (0.5 - mean_entropy(c)) / slopes[-1]
    check_micro_batches(m, c, kept(c, brute.keep_predicted(c, wanted, 0.2)).loss)
