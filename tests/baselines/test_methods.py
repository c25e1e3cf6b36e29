"""Every method's loss and gradient against loops written from the formulas (loops.py), in float64."""

from __future__ import annotations

import importlib
import math
import re

import loops
import pytest
import torch
from known import known
from loops import Oracle
from portions import in_turn
from ragged import Case, case
from registered import check_loss, method

import baselines
from baselines.ppo import Ppo
from harness.base.errors import UserError
from harness.methods.composition import Method
from harness.methods.verbs import Composition


def ppo_advantages(c: Case) -> list[float]:
    return loops.whitened(loops.gae(c, 1, 1))


def clip_b(c: Case, advantages: list[float], mode: str = "reference", mu: float = 2.5) -> list[bool]:
    return loops.keep_clip_b(loops.taken(c)[0], advantages, mode, mu)


def clip_v(c: Case, advantages: list[float], mode: str, mu: float, max_frac: float = 1e-4) -> list[bool]:
    return loops.keep_clip_v(*loops.taken(c), advantages, mode, mu, max_frac=max_frac)


def both(first: list[bool], second: list[bool]) -> list[bool]:
    return [x and y for x, y in zip(first, second, strict=True)]


# spec -> the same as loops; {} takes further options of the objective
ORACLES = {
    "grpo({})": lambda c: Oracle(loops.group_advantages(c)),
    "grpo(clip_low=0.1, clip_high=0.28,{})": lambda c: Oracle(loops.group_advantages(c), loops.clipped(0.1, 0.28)),
    "grpo(dual_clip=null,{})": lambda c: Oracle(loops.group_advantages(c), loops.clipped(dual=None)),
    "grpo(dual_clip=1.5,{})": lambda c: Oracle(loops.group_advantages(c), loops.clipped(dual=1.5)),
    "grpo(divide_by_std=false,{})": lambda c: Oracle(loops.group_advantages(c, False)),
    "grpo(kl_coef=0.3,{})": lambda c: Oracle(loops.group_advantages(c), kl=loops.kl(0.3)),
    "grpo(kl_coef=0.3, kl_estimator=k3,{})": lambda c: Oracle(loops.group_advantages(c), kl=loops.kl(0.3, "k3")),
    "ppo({})": lambda c: Oracle(ppo_advantages(c)),
    "ppo(gamma=0.9, lam=0.8, clip_high=0.3,{})": lambda c: Oracle(
        loops.whitened(loops.gae(c, 0.9, 0.8)), loops.clipped(high=0.3)
    ),
    "ce_gppo({})": lambda c: Oracle(loops.group_advantages(c), loops.kept_gradient()),
    "ce_gppo(beta1=0.4, beta2=1.3, dual_clip=1.5, clip_high=0.3,{})": lambda c: Oracle(
        loops.group_advantages(c), loops.kept_gradient(0.4, 1.3, high=0.3, dual=1.5)
    ),
    "ce_gppo(clip_low=0, clip_high=0,{})": lambda c: Oracle(
        loops.group_advantages(c), loops.kept_gradient(low=0, high=0)
    ),
    "grpo({})+entropy_bonus(coefficient=0.03)": lambda c: Oracle(loops.group_advantages(c), bonus=0.03),
    "grpo({})+clip_b(mu=0.7)": lambda c: Oracle(a := loops.group_advantages(c), keep=clip_b(c, a, "reference", 0.7)),
    "ppo({})+clip_b(mu=0.7)": lambda c: Oracle(a := ppo_advantages(c), keep=clip_b(c, a, "reference", 0.7)),
    "ppo({})+clip_b(mu=1, mode=paper, reference_denominator=true)": lambda c: Oracle(
        a := ppo_advantages(c), keep=(k := clip_b(c, a, "paper", 1)), counted=k
    ),
    "ce_gppo({})+clip_v(mu=0.5, max_frac=0.1)": lambda c: Oracle(
        a := loops.group_advantages(c), loops.kept_gradient(), keep=clip_v(c, a, "reference", 0.5, 0.1)
    ),
    "ppo({})+entropy_bonus(coefficient=0.02)+clip_v(mu=0.5, reference_denominator=true)": lambda c: Oracle(
        a := ppo_advantages(c), keep=(k := clip_v(c, a, "reference", 0.5)), counted=k, bonus=0.02
    ),
    "grpo(kl_coef=0.1,{})+clip_b(mu=1)+clip_v(mode=paper, mu=1, reference_denominator=true)": lambda c: Oracle(
        a := loops.group_advantages(c),
        keep=both(clip_b(c, a, "reference", 1), k := clip_v(c, a, "paper", 1)),
        counted=k,
        kl=loops.kl(0.1),
    ),
    "grpo({})+clip_b(mu=0.7, reference_denominator=true)+clip_v(mode=paper, mu=1, reference_denominator=true)": (
        lambda c: Oracle(
            a := loops.group_advantages(c),
            keep=(k := both(clip_b(c, a, "reference", 0.7), clip_v(c, a, "paper", 1))),
            counted=k,
        )
    ),
}


DENOMINATORS = ["grpo({})", "ppo({})", *(template for template in ORACLES if "reference_denominator" in template)]


@pytest.mark.parametrize(("template", "normalise"), in_turn(ORACLES, loops.NORMS, each=DENOMINATORS))
def test_loss_of_micro_batches_by_loops(template: str, normalise: str) -> None:
    c = case(2, groups=6, size=4)
    oracle = ORACLES[template](c)
    oracle.normalise = normalise
    loops.check_micro_batches(method(template.format(f"normalise={normalise}")), c, oracle.loss)


def test_random_batch_has_every_kind_of_token() -> None:
    """Make sure that the comparison above leaves no branch out."""
    c = case(2, groups=6, size=4)
    ratios = (c.current().logp - c.old.logp).exp().tolist()
    kinds = {
        (math.copysign(1, a) if a else 0, "low" if r < 0.8 else "high" if r > 3 else "clipped" if r > 1.2 else "inside")
        for r, a in zip(ratios, loops.group_advantages(c), strict=True)
    }
    assert kinds >= {(sign, place) for sign in (-1, 0, 1) for place in ("low", "inside", "clipped")}
    assert kinds >= {(-1, "high"), (1, "high")}
    keep = [clip_b(c, loops.group_advantages(c), "reference", 0.7), clip_b(c, ppo_advantages(c), "paper", 1)]
    assert all(0 < k.count(False) < len(k) / 2 for k in keep)


# Advantages


@pytest.mark.parametrize(("gamma", "lam"), [(1, 1), (0.97, 0.9), (1, 0), (0, 1)])
@pytest.mark.parametrize("longest", [1, 5, 33])
def test_gae_is_its_double_sum(gamma: float, lam: float, longest: int) -> None:
    c = case(4, longest=longest)
    m = method(f"ppo(gamma={gamma}, lam={lam})")
    expected = loops.gae(c, gamma, lam)
    assert isinstance(m.objective, Ppo)
    raw = m.objective.estimated(c.old, c.batch)
    assert raw.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    signal = m.signal(c.old, c.batch, [c.batch])
    assert signal.advantages_T.tolist() == pytest.approx(loops.whitened(expected), rel=1e-10, abs=1e-10)
    values = known(c.old.values).tolist()
    assert known(signal.returns_T).tolist() == pytest.approx(
        [a + v for a, v in zip(expected, values, strict=True)], rel=1e-12
    )


@pytest.mark.parametrize("value_clip", [0.5, 0.1, None])
@pytest.mark.parametrize("normalise", ["token", "sequence", "constant"])
def test_value_loss_and_its_gradient(value_clip: float | None, normalise: str) -> None:
    c = case(5)
    m = method(f"ppo(value_clip={'null' if value_clip is None else value_clip}, normalise={normalise})")
    signal = m.signal(c.old, c.batch, [c.batch])
    generator = torch.Generator().manual_seed(0)
    assert c.old.values is not None
    moved_T = 0.6 * torch.randn(len(c.old.values), generator=generator, dtype=torch.float64)
    values_T = (c.old.values + moved_T).requires_grad_()
    parts = list(c.batch.micro_batches(30))
    losses = [m.value_loss(values_T[part.index_T], signal.at(part.index_T)) for part in parts]
    torch.stack(losses).sum().backward()
    oracle = Oracle(loops.group_advantages(c), normalise=normalise)
    spans, total, gradient, held = loops.responses(c), 0.0, [], 0
    returns = [a + float(v) for a, v in zip(loops.gae(c, 1, 1), c.old.values, strict=True)]
    for span in spans:
        for t in span:
            v, old = values_T[t].item(), float(c.old.values[t])
            factor = 0.5 / oracle.denominator(c, spans, span, [True] * len(returns))
            near = v if value_clip is None else min(max(v, old - value_clip), old + value_clip)
            far = (near - returns[t]) ** 2 > (v - returns[t]) ** 2
            held += far
            total += factor * max((v - returns[t]) ** 2, (near - returns[t]) ** 2)
            gradient.append(0.0 if far else factor * 2 * (v - returns[t]))
    assert (held > 0) == (value_clip is not None)
    assert torch.stack(losses).sum().item() == pytest.approx(total, rel=1e-9)
    assert known(values_T.grad).tolist() == pytest.approx(gradient, rel=1e-9, abs=1e-12)


# Adaptive entropy


def test_adaptive_entropy_coefficient() -> None:
    m = method("adaptive_entropy(target=0.5, delta=0.1, highest=0.25)")
    trajectory = []
    for entropy in (0.9, 0.4, 0.5, 0.3, 0.2, 0.1, 0.6, 0.5, 0.7, 0.8, 0.9):
        m.observe({"entropy/mean": entropy, "reward/mean": 0.0})
        state = m.state()["adaptive_entropy"]
        trajectory.append((round(state["coefficient"], 9), state["active"]))
    up = [(0, 0), (0.1, 1), (0.1, 1), (0.2, 1), (0.25, 1), (0.25, 1)]
    down = [(0.15, 0), (0.15, 1), (0.05, 0), (0, 0), (0, 0)]
    assert trajectory == up + down


@pytest.mark.parametrize(
    ("entropies", "coefficient"), [([], 0.0), ([0.4], 0.1), ([0.4, 0.3], 0.2), ([0.4, 0.3, 0.6], 0.0)]
)
def test_adaptive_entropy_below_the_target(entropies: list[float], coefficient: float) -> None:
    c = case(7)
    m = method("grpo+adaptive_entropy(target=0.5, delta=0.1, highest=1)")
    for entropy in entropies:
        m.observe({"entropy/mean": entropy})
    check_loss(m, c, Oracle(loops.group_advantages(c), bonus=coefficient))


def test_load_state_without_memory() -> None:
    m = method("grpo+clip_b")
    assert m.state() == {"clip_b": {}}
    m.load_state(m.state())


# Composition


def test_needs_of_a_composition() -> None:
    assert method("grpo").needs == set()
    assert method("clip_b").needs == set()
    assert method("ppo+clip_v").needs == {"values", "sum_p2"}
    assert method("ce_gppo(kl_coef=0.1)+entropy_bonus").needs == {"ref_logp", "entropy_grad"}
    assert method("adaptive_entropy").needs == {"entropy_grad"}
    assert (method("grpo").min_group, method("ce_gppo").min_group, method("ppo+clip_b").min_group) == (2, 2, 1)


def test_of_a_control_alone() -> None:
    shared = {"grpo": {"clip_high": 0.28}, "clip_b": {"share": 0.01}}
    table = baselines.table()
    alone, written = Method.of("clip_b", table, shared), Method.of(" grpo + clip_b ", table, shared)
    assert alone.identity() == written.identity()
    assert written.name == "grpo+clip_b"
    assert alone.identity()[0]["clip_high"] == 0.28
    assert alone.identity()[1]["share"] == 0.01
    assert Method.of("clip_b(share=0.02)", table, shared).identity()[1]["share"] == 0.02
    assert alone.identity() != method("clip_b").identity()


UNUSED = ["passk+overlong", "overlong+w_reinforce", "nsr+overlong", "real+overlong"]  # rewards, by the objective


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("grpo(cliphigh=0.3)", "unknown key grpo.cliphigh; allowed: .*did you mean 'clip_high'"),
        ("grpo(normalise=tokens)", "normalise is 'tokens'; allowed: constant, sequence, token; did you mean 'token'"),
        ("grpo(kl_estimator=k1)", "kl_estimator is 'k1'; allowed: k2, k3"),
        ("clip_b(share=0.1, mu=2)", r"both share \(0.1\) and mu \(2.0\) are given"),
        ("clip_v(mu_high=2)", "mu_high is 2.0; allowed: only with mode=paper"),
        ("adaptive_entropy(start=1)", r"start is 1.0; allowed: from lowest \(0.0\) to highest \(0.005\)"),
        # Controls
        ("clip_cov(lowest=5)", r"lowest is 5.0; allowed: less than highest \(5.0\)"),
        ("steer(mode=exponential, highest=2)", "highest is 2.0; allowed: only with mode=linear"),
        ("stare(negative=0.8)", "negative is 0.8; allowed: only with variant=c2"),
        ("stare(positive=1.6)", r"positive is 1.6; allowed: 1 to most \(1.5\)"),
        ("stare(variant=c2, negative=0.4)", r"negative is 0.4; allowed: least \(0.5\) to 1"),
        ("entrocraft(lower=[0.8, 0.4])", r"lower is \[0.8, 0.4\]; allowed: at most upper"),
        ("repo_r(highest=2)", "lowest and highest are 0.0001 and 2.0; allowed: only with a target"),
        ("repo_r(target=1, zeta=2)", "zeta is 2.0; allowed: from lowest"),
        ("quadrant(keep=[positive_abov])", "a name in keep is 'positive_abov'; allowed: .*mean 'positive_above'"),
        ("quadrant(keep=positive_above)", "keep is 'positive_above'; it must be a list"),
        ("clip_servo(start=0.5)", r"start is 0.5; allowed: from lowest \(0.001\) to highest \(0.2\)"),
        ("clip_predict(gain=0.5)", "gain is 0.5; allowed: only with a target"),
        ("clip_predict(target=1, start=0.05)", r"start is 0.05; allowed: from lowest \(0.1\) to highest \(10.0\)"),
        # Objectives
        ("gspo(normalise=token)", r"gspo.normalise is 'token'; allowed: sequence"),
        ("gmpo(normalise=constant)", r"gmpo.normalise is 'constant'; allowed: sequence"),
        ("real(normalise=token)", "real.normalise is 'token'; allowed: sequence"),
        ("gmpo+clip_b", "control clip_b weighs single tokens, and objective gmpo takes a response as one product"),
        ("cispo(bound=3, clip_high=0.2)", r"both clip_high \(0.2\) and bound \(3.0\) are given"),
        ("bapo(least_clip_low=0.5)", r"least_clip_low is 0.5; allowed: up to clip_low \(0.4\)"),
        ("bapo(most_clip_high=0.1)", r"most_clip_high is 0.1; allowed: clip_high \(0.2\) and more"),
        ("dapo(clip_high=0.3)", r"method dapo is short for grpo\(clip_high=0.28, dual_clip=10\)\+overlong"),
        ("rloo(divide_by_std=true)", "unknown key rloo.divide_by_std"),
        ("sapo(clip_high=0.3)", "unknown key sapo.clip_high"),
        *((spec, r"control overlong shapes rewards, but objective \w+ uses only which responses") for spec in UNUSED),
    ],
)
def test_method_of_refuses_wrong_specs(spec: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        method(spec)


@pytest.mark.parametrize(("flag", "world"), [("false", 1), ("true", 1), ("true", 2)])
def test_signal_by_micro_batch(flag: str, world: int) -> None:
    """Compare with a loop: the mean over each part's tokens that count, times its share of the update's responses."""
    c = case(2, groups=6, size=4)
    m = method(f"grpo+clip_b(mu=0.7, reference_denominator={flag})")
    minibatches = list(c.batch.split(2))
    signal = m.signal(c.old, c.batch, minibatches)
    kept = clip_b(c, advantages := loops.group_advantages(c), mu=0.7)
    counted = kept if flag == "true" else [True] * len(kept)
    for minibatch in minibatches:
        parts = list(minibatch.micro_batches(30))
        assert len(parts) > 2
        signal = signal.by_micro_batch([*parts, minibatch.idle()], len(minibatch) * world)
        for part in parts:
            tokens = part.index_T.tolist()
            number = max(sum(counted[t] for t in tokens), 1)
            share = len(part) / (len(minibatch) * world)
            expected, slopes = 0.0, []
            for t in tokens:
                y = int(c.targets_T[t])
                ratio = loops.softmax(c.logits_TV[t].tolist())[y] / loops.softmax(c.old_logits_TV[t].tolist())[y]
                value, slope = loops.clipped_token(ratio, advantages[t], 0.2, 0.2, 3.0)
                expected -= share * kept[t] * value / number
                slopes.append(-share * kept[t] * slope / number)
            current = c.current(part)
            loss = m.loss(current, signal.at(part.index_T), part)
            assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
            [by_logp_T] = torch.autograd.grad(loss, current.logp)
            assert by_logp_T.tolist() == pytest.approx(slopes, rel=1e-9, abs=1e-12)


def test_signal_by_micro_batch_of_a_whole_update_is_the_usual_one() -> None:
    c = case(2, groups=6, size=4)
    minibatches = list(c.batch.split(2))
    usual = method("ppo+clip_v(share=0.1, reference_denominator=true)").signal(c.old, c.batch, minibatches)
    signal = usual
    for minibatch in minibatches:
        signal = signal.by_micro_batch([minibatch], len(minibatch))
    for name in ("scale_T", "term_scale_T"):
        torch.testing.assert_close(getattr(signal, name), getattr(usual, name), rtol=1e-12, atol=0)


def test_loss_of_dropped_tokens() -> None:
    c = case(8)
    m = method("clip_b(mode=paper, mu=0, reference_denominator=true)")
    signal = m.signal(c.old, c.batch, [c.batch])
    assert signal.weights_T.sum() == 0
    assert m.loss(c.current(), signal, c.batch).item() == 0


# The table


@pytest.mark.parametrize("name", baselines.METHODS)
def test_methods_have_a_line_and_a_source(name: str) -> None:
    entry = baselines.METHODS[name]
    about = entry.about if isinstance(entry, Composition) else entry.__doc__
    assert about
    first = about.splitlines()[0]
    assert first.endswith(".")
    assert "(" not in first, "the text that a dataclass without docstring gets"
    assert "arXiv:" in entry.source


# Their comparisons are tests of their own, or part of a composition's.
ELSEWHERE = {"a2po", "dph_rl", "bapo", "adaptive_entropy", "overlong", "siren", "real"}


def test_methods_have_loops() -> None:
    names_of_tests = ("test_controls", "test_group_counts", "test_objectives", "test_sequence_objectives")
    controls, counts, objectives, sequences = map(importlib.import_module, names_of_tests)
    objective_specs = [*(spec for spec, *_ in objectives.CASES), *sequences.LOOPS]
    compared = [*ORACLES, *controls.ORACLES, *controls.RELEASES, *counts.ORACLES, *objective_specs]
    names = set(re.findall(r"\w+", " ".join(compared)))
    assert set(baselines.METHODS) - names == ELSEWHERE
