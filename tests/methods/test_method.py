"""The interface between a method and its components: what they declare, receive and leave out, and gates."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import loops
import pytest
import torch
from known import known
from loops import Oracle
from ragged import Case, case
from registered import check_loss
from torch import Tensor

import baselines
from baselines.grpo import Grpo
from harness.base.errors import UserError
from harness.methods.batch import TokenBatch, TokenStats
from harness.methods.composition import Method
from harness.methods.verbs import Component, Composition, Control, Objective, View
from harness.tokens import metrics


def table(**more: type[Component] | Composition) -> Mapping[str, type[Component] | Composition]:
    return {**baselines.METHODS, **more}


def control(declared: object = frozenset(), **verbs: object) -> type[Control]:
    """Make a control of these verbs; `declared` are its needs."""
    return dataclass(frozen=True)(type("Mine", (Control,), {"needs": declared, **verbs}))


def loss(method: Method, c: Case) -> Tensor:
    return method.loss(c.current(), method.signal(c.old, c.batch, [c.batch]), c.batch)


# What is declared


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        (
            frozenset({"sum_p"}),
            "a name in needs of method mine is 'sum_p'; allowed: entropy_grad, entropy_now, likeliest_entropy, min_p, "
            "ref_logp, sum_p2, values; did you mean 'sum_p2'?",
        ),
        (
            "sum_p2",
            "needs of method mine is 'sum_p2'; needs must be a frozenset of names, for example frozenset({'sum_p2'})",
        ),
        (
            ["values"],
            "needs of method mine is ['values']; needs must be a frozenset of names, for example frozenset({'sum_p2'})",
        ),
        (
            frozenset({"values"}),
            "control mine needs values, and objective grpo has no critic that gives them; allowed: an objective that "
            "needs values itself, for example ppo",
        ),
    ],
)
def test_needs_that_cannot_be_met_get_one_sentence(declared: object, sentence: str) -> None:
    for spec in ("mine", "grpo+mine", "clip_b + mine"):
        with pytest.raises(UserError) as error:
            Method.of(spec, table(mine=control(declared)))
        assert str(error.value) == sentence


def test_method_with_a_control_that_needs_values() -> None:
    assert Method.of("ppo+mine", table(mine=control(frozenset({"values"})))).needs == {"values"}
    with pytest.raises(UserError, match="control mine needs values, and objective ce_gppo has no critic"):
        Method.of("mine+ce_gppo(beta1=1)", table(mine=control(frozenset({"values"}))))


def test_method_refuses_a_critic_without_value_loss() -> None:
    @dataclass(frozen=True)
    class Mine(Grpo):
        needs = frozenset({"values"})

    with pytest.raises(UserError, match="objective mine needs values; so it must have an option critic_lr and"):
        Method.of("mine", table(mine=Mine))


@dataclass(frozen=True)
class Termless(Control):
    base_share: float = 0.5


@dataclass(frozen=True)
class Shareless(Control):
    def base_term(self, logp_T: Tensor, base_logp_T: Tensor) -> Tensor:
        return logp_T


@dataclass(frozen=True)
class Joining(Shareless):
    base_share: float = 0.5


def test_method_refuses_a_base_term_without_a_share_and_a_share_without_it() -> None:
    for share, mine in (("0.5", Termless), ("0", Shareless)):
        with pytest.raises(UserError, match=rf"^control mine has base_share = {share}; allowed: a share above 0 with"):
            Method.of("mine", table(mine=mine))
    with pytest.raises(UserError, match=r"^controls dph_rl and mine both have a base_share; allowed: one control"):
        Method.of("dph_rl+mine", table(mine=Joining))


# What is seen

VERBS = {
    "reshape": lambda read: lambda self, advantages_T, old, batch: advantages_T + 0 * read(old),
    "weights": lambda read: lambda self, old, advantages_T, batch: 1 + 0 * read(old),
    "gate": lambda read: lambda self, view: 1 + 0 * read(view.old),
    "term": lambda read: lambda self, view: 0 * read(view.old),
}
COLUMNS = {
    "sum_p2": (lambda stats: stats.sum_p2, "sum_p2"),
    "sum_p2_logp": (lambda stats: stats.sum_p2_logp, "sum_p2"),
    "sum_p2 ": (lambda stats: stats.expected_discriminator, "sum_p2"),
    "values": (lambda stats: stats.values, "values"),
    "ref_logp": (lambda stats: stats.at(torch.arange(len(stats.logp))).ref_logp, "ref_logp"),
}


# Other components may have asked for a column, or the instrument: it is computed, and yet not for this control.
OTHERS = ("ppo", "ppo(kl_coef=0.1)+clip_v+entropy_bonus")


def test_signal_shows_declared_statistics() -> None:
    for verb, column, others in itertools.product(VERBS, COLUMNS, OTHERS):
        where = f"{verb} reads {column} beside {others}"
        read, need = COLUMNS[column]
        careless = control(frozenset[str](), **{verb: VERBS[verb](read)})
        careful = control(frozenset({need}), **{verb: VERBS[verb](read)})
        with pytest.raises(UserError) as error:
            loss(Method.of(f"{others}+mine", table(mine=careless)), case(0))
        expected = f"Mine uses {column.strip()}, which it does not need; declare needs = frozenset({{'{need}'}})"
        assert str(error.value) == expected, where
        declared = loss(Method.of(f"{others}+mine", table(mine=careful)), case(0))
        assert torch.equal(declared, loss(Method.of(others, table()), case(0))), where


@pytest.mark.parametrize("verb", ["gate", "term"])
@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (
            lambda current: current.entropy,
            "Mine uses entropy, which it does not need; declare needs = frozenset({'entropy_grad', 'sum_p2'})",
        ),
        (
            lambda current: current.discriminator,
            "Mine uses entropy, which it does not need; declare needs = frozenset({'entropy_grad', 'sum_p2'})",
        ),
        (
            lambda current: current.ref_logp,
            "Mine uses ref_logp, which it does not need; declare needs = frozenset({'ref_logp', 'sum_p2'})",
        ),
        (
            lambda current: current.sum_p2,
            "Mine uses current.sum_p2, which is never computed; allowed: old.sum_p2, before the update",
        ),
    ],
)
def test_loss_shows_declared_statistics(verb: str, read: object, sentence: str) -> None:
    verbs = {verb: lambda self, view: 0 * read(view.current)}  # type: ignore[operator]
    method = Method.of("mine+entropy_bonus", table(mine=control(frozenset({"sum_p2"}), **verbs)))
    with pytest.raises(UserError) as error:
        loss(method, case(0))
    assert str(error.value) == sentence


def test_loss_of_an_objective_with_needs() -> None:
    @dataclass(frozen=True)
    class Mine(Grpo):
        def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
            return super().advantages(old, batch) - known(old.values)

    with pytest.raises(UserError, match=r"Mine uses values, which it does not need; declare needs = frozenset"):
        loss(Method.of("mine", table(mine=Mine)), case(0))


def test_before_repr() -> None:
    c = case(0)
    seen = Method.of("grpo", table()).before(Grpo(), c.old)
    assert repr(seen) == f"TokenStats(logp={c.old.logp}, entropy={c.old.entropy})"


# What is skipped


@dataclass(frozen=True)
class Anchored(Grpo):
    """Pulls every token's log p to -1, for any advantage."""

    def surrogate(self, view: View) -> Tensor:
        return super().surrogate(view) - (view.current.logp + 1) ** 2


@dataclass(frozen=True)
class Scaled(Grpo):
    """Redeclares a property that its surrogate keeps."""

    silent_without_signal = True

    def surrogate(self, view: View) -> Tensor:
        return 2 * super().surrogate(view)


@dataclass(frozen=True)
class Quiet(Control):
    """Has a term where there is an advantage, and says so."""

    silent_without_signal = True

    def term(self, view: View) -> Tensor:
        return view.advantages_T * view.current.logp


@dataclass(frozen=True)
class Unlikely(Objective):
    """Declares nothing."""

    def surrogate(self, view: View) -> Tensor:
        return view.ratio_T * view.advantages_T

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        return Grpo().advantages(old, batch)


OWN = {"anchored": Anchored, "scaled": Scaled, "quiet": Quiet, "unlikely": Unlikely}
SKIPPING = {
    "grpo": True,
    "ppo": True,
    "ce_gppo": True,
    "clip_b(share=0.3)": True,
    "grpo(normalise=sequence)+clip_v(share=0.3, reference_denominator=true)": True,
    "scaled": True,
    "scaled+quiet": True,
    "grpo(kl_coef=0.1)": False,
    "entropy_bonus": False,
    "quiet+adaptive_entropy(start=0.002)": False,
    "anchored": False,
    "anchored+quiet": False,
    "unlikely": False,
}


@pytest.mark.parametrize("spec", SKIPPING)
def test_skipping_responses_leaves_no_gradient_out(spec: str) -> None:
    c, method = case(1), Method.of(spec, table(**OWN))
    c.batch = dataclasses.replace(c.batch, rewards_B=c.batch.rewards_B * (c.batch.groups_B < 2))  # half have no signal
    signal = method.signal(c.old, c.batch, [c.batch])
    actual = method.contributing(c.batch, signal)
    gradients: list[torch.Tensor | None] = []
    for part in (c.batch, actual):
        c.logits_TV.grad = None
        method.loss(c.current(part), signal.at(part.index_T), part).backward()
        gradients.append(c.logits_TV.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
    live_T = signal.advantages_T * signal.weights_T != 0
    live = [row for row, span in enumerate(loops.responses(c)) if any(live_T[t] for t in span)]
    assert 0 < len(live) < len(c.batch) or spec == "ppo", "there is nothing to skip"
    expected = c.batch.take(live) if SKIPPING[spec] else c.batch
    assert torch.equal(actual.index_T, expected.index_T)


# A gate


@dataclass(frozen=True)
class Gated(Control):
    """Multiplies the surrogate by the ratio to the power of `power` times p, which has a gradient of its own."""

    source: ClassVar[str] = "none"
    power: float = 0.5

    def gate(self, view: View) -> Tensor:
        return (self.power * (view.current.logp - view.old.logp) + view.current.logp).exp()


@pytest.mark.parametrize("normalise", ["token", "sequence", "constant"])
@pytest.mark.parametrize("spec", ["gated+{}", "{}+gated"])
def test_loss_with_a_gate(spec: str, normalise: str) -> None:
    c = case(3, groups=6, size=4)
    terms = spec.format("entropy_bonus(coefficient=0.05)+clip_b(mu=0.7)")
    method = Method.of(f"grpo(normalise={normalise}, kl_coef=0.2)+{terms}", table(gated=Gated))

    def gated(logp: float, before: float, advantage: float) -> tuple[float, float]:
        value, slope = loops.clipped_token(math.exp(logp - before), advantage, 0.2, 0.2, 3.0)
        factor = math.exp(0.5 * (logp - before) + logp)
        return factor * value, factor * (slope + 1.5 * value)

    advantages = loops.group_advantages(c)
    oracle = Oracle(
        advantages,
        loops.of_tokens(gated),
        normalise,
        keep=loops.keep_clip_b(loops.taken(c)[0], advantages, "reference", 0.7),
        kl=loops.kl(0.2),
        bonus=0.05,
    )
    check_loss(method, c, oracle)


# What is marked before the update


@dataclass(frozen=True)
class Marking(Control):
    """Keeps, in each optimiser step, the tokens that were among the most probable ones of the rollout batch."""

    needs = frozenset({"entropy_now"})

    def marks(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        return {"picked_T": batch.global_order(old.logp) < 5, "threshold": batch.global_mean(old.logp)}

    def gate(self, view: View) -> Tensor:
        return view.marks["picked_T"]

    def term(self, view: View) -> Tensor:
        assert view.current.entropy is not None
        assert not view.current.entropy.requires_grad
        return view.marks["threshold"] * view.current.entropy

    def metrics(self, view: View) -> Mapping[str, float]:
        return {"picked": float(view.batch.global_count(view.marks["picked_T"])), "ratio": view.ratio_T.max().item()}


@dataclass(frozen=True)
class Stepping(Control):
    """Scales the surrogate by the mean ratio of the mini-batch."""

    def step_marks(self, view: View) -> Mapping[str, Tensor]:
        return {"mean": view.batch.global_mean(view.ratio_T), "copy_T": view.ratio_T}

    def gate(self, view: View) -> Tensor:
        assert torch.equal(view.marks["copy_T"], view.ratio_T.detach())
        return view.marks["mean"]


@dataclass(frozen=True)
class Penalty(Control):
    """Takes half of the reward of a response that was cut off or is longer than four tokens."""

    def reward(self, rewards_B: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        return rewards_B - 0.5 * (batch.lengths_B > 4)


def test_marks_reach_each_part_of_a_minibatch_and_no_other_component() -> None:
    c = case(4)
    method = Method.of("marking+entropy_bonus(coefficient=0.5)", table(marking=Marking))
    signal = method.signal(c.old, c.batch, [c.batch])
    order = sorted(range(len(c.targets_T)), key=lambda t: (-c.old.logp[t].item(), t))
    assert signal.marks["marking"]["picked_T"].nonzero().flatten().tolist() == sorted(order[:5])
    assert signal.marks["grpo"] == signal.marks["entropy_bonus"] == {}
    parts = list(c.batch.micro_batches(30))
    losses = [method.loss(c.current(part), signal.at(part.index_T), part) for part in parts]
    plain = Method.of("entropy_bonus(coefficient=0.5)", table())
    alone = plain.signal(c.old, c.batch, [c.batch])
    alone = dataclasses.replace(alone, weights_T=alone.weights_T * signal.marks["marking"]["picked_T"])
    entropy = c.current().entropy
    expected = plain.loss(c.current(), alone, c.batch) + c.old.logp.mean() * known(entropy).detach().mean()
    assert sum(losses).item() == pytest.approx(expected.item(), rel=1e-12)  # type: ignore[union-attr]
    actual = torch.autograd.grad(sum(losses), c.logits_TV)[0]  # type: ignore[arg-type]
    torch.testing.assert_close(actual, torch.autograd.grad(expected, c.logits_TV)[0], rtol=1e-9, atol=1e-12)
    assert method.metrics(signal, c.batch) == {"marking/picked": 5, "marking/ratio": 1}


def test_marks_of_a_step_are_those_of_its_whole_minibatch() -> None:
    c = case(4)
    method = Method.of("stepping", table(stepping=Stepping))
    assert method.marks_steps
    assert not Method.of("marking", table(marking=Marking)).marks_steps
    minibatches = list(c.batch.split(2))
    signal = method.signal(c.old, c.batch, minibatches)
    plain = Method.of("grpo", table())
    for minibatch in minibatches:
        now = c.current(minibatch).detach()
        fixed = method.for_step(now, signal, minibatch)
        mean = (now.logp - c.old.logp[minibatch.index_T]).exp().mean()
        for part in minibatch.micro_batches(20):
            one, other = (m.loss(c.current(part), fixed.at(part.index_T), part) for m in (method, plain))
            assert one.item() == pytest.approx(mean.item() * other.item(), rel=1e-12)


def test_rewards_are_shaped_before_advantages_and_verdicts_stay() -> None:
    c = case(4)
    method = Method.of("penalty", table(penalty=Penalty))
    expected = c.batch.rewards_B - 0.5 * (c.batch.lengths_B > 4)
    assert (expected != c.batch.rewards_B).any()
    shaped = method.rewarded(c.old, c.batch)
    assert torch.equal(shaped.rewards_B, expected)
    assert torch.equal(shaped.right_B, c.batch.right_B)
    actual = method.signal(c.old, c.batch, [c.batch]).advantages_T
    assert torch.equal(actual, Grpo().advantages(c.old, shaped))
    assert not torch.equal(actual, Grpo().advantages(c.old, c.batch))


@pytest.mark.parametrize(
    ("one", "other"), [("clip_b(share=0.1)", "entropic"), ("low_prob", "overlong(share=1)"), ("erc", "kl_cov")]
)
def test_loss_in_any_order_of_controls(one: str, other: str) -> None:
    c = case(4)
    losses = [loss(Method.of(f"grpo+{spec}", table()), c).item() for spec in (f"{one}+{other}", f"{other}+{one}")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert losses[0] != pytest.approx(loss(Method.of(f"grpo+{one}", table()), c).item(), rel=1e-6)
    assert losses[0] != pytest.approx(loss(Method.of(f"grpo+{other}", table()), c).item(), rel=1e-6)


def test_metrics_of_components() -> None:
    c = case(4)
    method = Method.of("clip_b(share=0.1)+marking+clip_v(share=0.2)", table(marking=Marking))
    signal = method.signal(c.old, c.batch, [c.batch])
    result = metrics.of_signal(signal, c.batch)
    for name in ("clip_b", "clip_v"):
        alone = Method.of(f"{name}(share={0.1 if name == 'clip_b' else 0.2})", table())
        dropped = (alone.signal(c.old, c.batch, [c.batch]).weights_T == 0).double().mean().item()
        assert result[f"weights/{name}/dropped"] == pytest.approx(dropped)
    assert "weights/marking/dropped" not in result
    current = c.current().detach()
    touched = method.touched(current, signal, c.batch)
    seen = metrics.of_ratios([current.logp - c.old.logp], [touched])
    ratios = (current.logp - c.old.logp).exp().tolist()
    pairs = list(zip(ratios, signal.advantages_T.tolist(), strict=True))
    assert seen["ratio/clipped_low"] == pytest.approx(sum(r < 0.8 and a < 0 for r, a in pairs) / len(pairs))
    high = sum(r > (1.2 if a > 0 else 3) for r, a in pairs if a)  # a negative one at the dual clip
    assert seen["ratio/clipped_high"] == pytest.approx(high / len(pairs))
    assert seen["gates/closed_marking"] == pytest.approx(1 - 5 / len(pairs))


@pytest.mark.parametrize("spec", ["siren", "clip_servo(gain=1)", "clip_predict(target=0.5)"])
def test_observe_under_any_name(spec: str) -> None:
    name, c = spec.partition("(")[0], case(4)
    heard = []
    for called in (name, "mine"):
        m = Method.of(spec.replace(name, called), table(mine=baselines.METHODS[name]))
        for entropy in (0.4, 0.3, 0.6):
            m.observe({"entropy/mean": entropy, **m.metrics(m.signal(c.old, c.batch, [c.batch]), c.batch)})
        heard.append(m.state()[called])
    assert heard[0] == heard[1] != Method.of(spec, table()).state()[name]


# Names for what is made of others


def test_composition_equals_its_spec() -> None:
    entries = table(
        wide=Composition("grpo(clip_high=0.28)+clip_b(share=0.1)", "arXiv:2503.14476", "Opens the clip."),
        wider=Composition("wide+entropy_bonus", "arXiv:2503.14476", "Adds a bonus."),
    )
    named = Method.of("wider+clip_v", entries, {"clip_v": {"share": 0.2}})
    written = Method.of("grpo(clip_high=0.28)+clip_b(share=0.1)+entropy_bonus+clip_v(share=0.2)", table())
    assert named.identity() == written.identity()
    assert named.name == "wider+clip_v"
    with pytest.raises(UserError, match=r"^method wide is short for grpo.* and has no options"):
        Method.of("wide(clip_high=0.3)", entries)
    with pytest.raises(UserError, match=r"method 'ppo\+wide', which is ppo\+grpo.*\+clip_b\(.*\), has 2 objectives"):
        Method.of("ppo+wide", entries)
    with pytest.raises(UserError, match=r"method 'wide\+clip_b', which is grpo.*\+clip_b, names control clip_b twice"):
        Method.of("wide+clip_b", entries)
    with pytest.raises(UserError, match="did you mean 'wider'"):
        Method.of("widerr", entries)


@dataclass(frozen=True)
class Product(Grpo):
    """Takes a response as one product of its tokens."""

    by_response: ClassVar[bool] = True


@dataclass(frozen=True)
class Responses(Control):
    """Drops the first response."""

    by_response: ClassVar[bool] = True

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        return batch.sequence_T > 0


def test_single_tokens_of_a_product_are_not_weighed() -> None:
    entries = table(product=Product, responses=Responses, gated=Gated)
    for name in ("clip_b", "gated"):
        with pytest.raises(UserError) as error:
            Method.of(f"product+{name}", entries)
        assert str(error.value) == (
            f"control {name} weighs single tokens, and objective product takes a response as one product of them all; "
            "allowed with product: controls that weigh whole responses, or none"
        )
    assert Method.of("product+responses+entropy_bonus", entries).components
