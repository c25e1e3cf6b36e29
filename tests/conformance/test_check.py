"""The conformance checks: every method passes them, and each check catches the mistake that it is for."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from patience import patient
from portions import one_in
from torch import Tensor

import baselines
from baselines.grpo import GroupObjective, Grpo
from baselines.ppo import Ppo
from harness import cli
from harness.base.errors import UserError
from harness.base.terminal import SafeConsole
from harness.commands import check as command
from harness.conformance import check, miniature, two_ranks
from harness.conformance.probe import Failed, Finding, Subject, finding_of
from harness.methods.batch import TokenBatch, TokenStats
from harness.methods.verbs import Component, Control, View

FIRING = ["clip_b(share=0.2)", "m2po(threshold=0.001)", "lp_reg(share=0.5)", "grpo(kl_coef=0.1,normalise=sequence)"]
FIRING += ["clip_v(share=0.2,reference_denominator=true)"]


@pytest.mark.slow
@pytest.mark.parametrize("spec", one_in(16, [*baselines.METHODS, *FIRING], first=1))
def test_run_checks_passes_registered_methods(spec: str) -> None:
    assert not [finding for finding in check.run_checks(spec, baselines.METHODS) if not finding.passed]


# Methods that are each wrong in one way

READS = "declare reads_answers = True, reads_base = True or reads_sampler = True"


def mutant(base: type[Component] = Control, **members: object) -> type[Component]:
    """Make a subclass with other verbs and declarations."""
    return dataclass(frozen=True)(type("Mutant", (base,), members))


@dataclass(frozen=True)
class Forgetful(Control):
    """Has a memory that no checkpoint sees."""

    @cached_property
    def memory(self) -> dict[str, float]:
        return {"heard": 0.0}

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        return advantages_T * (1 + self.memory["heard"])

    def observe(self, metrics: Mapping[str, float]) -> None:
        self.memory["heard"] += metrics["entropy/mean"]


@dataclass(frozen=True)
class HalfForgetful(Forgetful):
    """Says what it remembers, and does not take it back."""

    def state(self) -> dict[str, float]:
        return dict(self.memory)

    def load_state(self, state: Mapping[str, float]) -> None:
        """Forgets."""


SHARED = {"heard": 0.0}


@dataclass(frozen=True)
class Gossip(HalfForgetful):
    """Shares one memory among all of its kind."""

    @property
    def memory(self) -> dict[str, float]:
        return SHARED


@dataclass(frozen=True)
class Share(Control):
    """Scales by the last step's share of right responses."""

    @cached_property
    def memory(self) -> dict[str, Any]:
        return {}

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        now = batch.right_B.double().mean()
        return advantages_T * (1 + now - self.memory.get("right", now))

    def observe(self, metrics: Mapping[str, float]) -> None:
        self.memory["right"] = metrics["reward/mean"]


@dataclass(frozen=True)
class RemembersEarly(Control):
    """Counts the batches when it logs them."""

    @cached_property
    def remembered(self) -> dict[str, float]:
        return {"steps": 0.0}

    def metrics(self, view: View) -> Mapping[str, float]:
        self.remembered["steps"] += 1
        return {}


class PartMean(Control):
    """Centres p among the tokens that happen to be together."""

    silent_without_signal = True

    def gate(self, view: View) -> Tensor:
        p_T = view.current.logp.exp()
        return 1 + 0.1 * (p_T - p_T.mean()).detach() ** 2


class Explodes(Control):
    """Overflows where the ratio is large."""

    def gate(self, view: View) -> Tensor:
        steep_T = (8 * (view.current.logp - view.old.logp)).detach().exp()
        return steep_T / (1 + steep_T)


class Renormalised(Control):
    """Divides the loss by the tokens that it keeps."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        kept_T = (old.logp < -0.1).double()
        return kept_T / batch.global_mean(kept_T)


class Product(GroupObjective):
    """Takes a response as one product, and lets single tokens be weighed all the same."""

    silent_without_signal = True

    def surrogate(self, view: View) -> Tensor:
        mean_B = view.batch.per_sequence(view.current.logp - view.old.logp) / view.batch.lengths_B.clamp(min=1)
        return mean_B.clamp(max=1).exp()[view.batch.sequence_T] * view.advantages_T


class Proud(Control):
    """Believes in the advantages of groups."""

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        one_B1 = torch.stack([x_T.unique() for x_T in advantages_T.split(batch.lengths_B.tolist())])
        return one_B1[batch.sequence_T, 0]


class TopShare(Control):
    """Breaks ties by the order of the batch."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        order_T = old.logp.argsort(stable=True)
        return torch.zeros_like(old.logp).scatter(0, order_T[: len(order_T) // 3], 1.0)


class BareDeviation(GroupObjective):
    """Divides by a deviation that is 0 where a group has no signal."""

    silent_without_signal = True

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        rewards_GN = batch.grouped(batch.rewards_B)
        mean_G1, std_G1 = rewards_GN.mean(1, keepdim=True), rewards_GN.std(1, correction=0, keepdim=True)
        return ((rewards_GN - mean_G1) / std_G1).flatten()[batch.sequence_T]

    def surrogate(self, view: View) -> Tensor:
        return view.ratio_T * view.advantages_T


class AveragedCritic(Ppo):
    """Gives each token the mean loss of all."""

    def value_loss(self, values_T: Tensor, old_values_T: Tensor, returns_T: Tensor) -> Tensor:
        loss_T = super().value_loss(values_T, old_values_T, returns_T)
        return loss_T.mean().expand_as(loss_T)


class NeedsTokens(Control):
    """Takes the largest value of each response."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        largest_B = torch.stack([x_T.max() for x_T in old.logp.split(batch.lengths_B.tolist())])
        return (old.logp < largest_B[batch.sequence_T]).double()


# By check that must catch it: the name of a wrong method, the method, and words of the message
WRONG: dict[str, dict[str, tuple[type[Component], str]]] = {
    "micro-batches": {
        "part_mean": (PartMean, "in other micro-batches, and"),
        "largest": (  # needs a token
            mutant(gate=lambda self, view: (view.ratio_T.detach().max() < 1e20).double()),
            "max",
        ),
        "counts_part": (
            mutant(update_metrics=lambda self, view: {"tokens": len(view.advantages_T)}),
            "the metric updates/counts_part/tokens differs",
        ),
        "mean_of_base": (
            mutant(base_share=0.1, base_term=lambda self, logp_T, _: logp_T * logp_T.detach().mean()),
            "in other micro-batches, and",
        ),
    },
    "order": {
        "top_share": (TopShare, "in another order of groups, with ties"),
        "first_group": (
            mutant(
                by_response=True,
                weights=lambda self, old, a_T, batch: 1.0 + (batch.groups_B == batch.groups_B[0])[batch.sequence_T],
            ),
            "in another order of groups and responses",
        ),
        "counts_prompts": (
            mutant(
                Grpo,
                scale=lambda self, batch, counted_T: (
                    counted_T / batch.global_sum((batch.prompt_lengths_B + batch.lengths_B).double())
                ),
            ),
            "behind longer prompts",
        ),
    },
    "rewards": {
        "deaf": (
            mutant(Grpo, advantages=lambda self, old, batch: (batch.right_B.double() - 0.5)[batch.sequence_T]),
            "the advantages do not follow shaped rewards",
        )
    },
    "edges": {
        "explodes": (Explodes, r"the loss is not finite where log ratios of \+-100"),
        "lonely": (mutant(Grpo, min_group=1), "not finite where one group of the least size"),
        "bare_deviation": (BareDeviation, "an advantage is not finite where no response is right"),
        "logs_infinity": (
            mutant(update_metrics=lambda self, view: {"surprise": 1 / view.old.logp}),
            "the metric updates/logs_infinity/surprise is not finite where",
        ),
        "needs_tokens": (NeedsTokens, "where some responses are empty"),
    },
    "memory": {
        "half_forgetful": (HalfForgetful, "a loaded memory is not the one"),
        "gossip": (Gossip, "the memory is shared"),
        "share": (Share, "state leaves something out"),
    },
    "silence": {
        "falsely_silent": (
            mutant(silent_without_signal=True, term=lambda self, view: 0.01 * view.current.logp),
            "a response whose tokens have no advantage has a gradient",
        )
    },
    "needs": {
        "unused": (
            mutant(needs=frozenset({"sum_p2"})),
            "unused declares the need 'sum_p2' and reads nothing that it gives",
        ),
        "undeclared": (  # reads it on some batches alone
            mutant(
                weights=lambda self, old, a_T, *_: 1.0 if (a_T != 0).any() else 1.0 + 0 * old.expected_discriminator
            ),
            "Mutant uses sum_p2, which it does not need",
        ),
        "unused_gradient": (
            mutant(needs=frozenset({"entropy_grad"}), gate=lambda self, view: 1 + view.current.entropy.detach()),
            "no gradient goes through the present entropy",
        ),
    },
    "denominators": {"renormalised": (Renormalised, "makes up for it in the weights of the others")},
    "weights": {"negative": (mutant(weights=lambda self, old, *_: old.logp + 1), "a weight below 0")},
    "twice": {
        "chance": (
            mutant(weights=lambda self, old, a_T, *_: (torch.rand(len(a_T)) < 0.5).double()),
            "a different loss or gradient the second time",
        ),
        "in_place": (
            mutant(weights=lambda self, old, *_: old.logp.clamp_(min=-1).exp()),
            "logp of the verb weights was changed",
        ),
        "changes_advantages": (  # which all others read
            mutant(weights=lambda self, old, a_T, *_: 1.0 + 0 * a_T.clamp_(-0.5, 0.5)),
            "of the verb weights was changed",
        ),
        "changes_marks": (
            mutant(
                marks=lambda self, old, *_: {"factor": torch.ones_like(old.logp)},
                gate=lambda self, view: view.marks["factor"].mul_(0.5),
            ),
            "of the verb gate was changed",
        ),
        "remembers_early": (RemembersEarly, "the memory changed before the step was observed"),
    },
    "gradient": {
        "hidden": (  # from autograd
            mutant(gate=lambda self, view: torch.tensor(view.ratio_T.tolist(), dtype=view.ratio_T.dtype)),
            "but its gradient predicts",
        ),
        "nothing": (
            mutant(Grpo, surrogate=lambda self, view: 0 * Grpo.surrogate(self, view)),
            "no token has a gradient",
        ),
        "bare_log": (  # of a distance that is 0 at first
            mutant(term=lambda self, view: 0.01 * (view.current.logp - view.current.logp.detach()).abs().log()),
            "the gradient is not finite on an ordinary batch",
        ),
    },
    "token weights": {"product": (Product, "a token that is dropped still has a gradient")},
    "by response": {
        "falsely_by_response": (
            mutant(by_response=True, weights=lambda self, old, *_: old.logp.exp()),
            "weighs the tokens of a response differently",
        )
    },
    "composition": {"proud": (Proud, r"proud\+ppo: ")},
    "direction": {
        "reversed": (  # the value of GRPO
            mutant(
                Grpo, surrogate=lambda self, view: 2 * Grpo.surrogate(self, view).detach() - Grpo.surrogate(self, view)
            ),
            r"at ratio 1 the gradient goes against the advantage for 100\.0%",
        ),
        "loss_for_surrogate": (
            mutant(Grpo, surrogate=lambda self, view: -Grpo.surrogate(self, view)),
            "at ratio 1 a step along the gradient lowers the log p",
        ),
        "doubled": (  # the value of GRPO
            mutant(
                Grpo, surrogate=lambda self, view: 2 * Grpo.surrogate(self, view) - Grpo.surrogate(self, view).detach()
            ),
            "nor that of the surrogate's value: 2 times advantage",
        ),
        "reversed_beyond": (  # the clip
            mutant(Grpo, beyond=lambda self, ratio_T, bound_T: bound_T * (2 - ratio_T / ratio_T.detach())),
            "where the policy has moved the gradient goes against",
        ),
        "leaky": (
            mutant(needs=frozenset({"entropy_grad"}), gate=lambda self, view: 1 + view.current.entropy),
            "a gradient goes through the gate of leaky, by the present entropy",
        ),
        "leaky_ratio": (
            mutant(gate=lambda self, view: view.ratio_T.clamp(max=1)),
            "a gradient goes through the gate of leaky_ratio, by the present log p",
        ),
        "turns_advantages": (mutant(reshape=lambda self, a_T, *_: -a_T), "turns the advantages around"),
        "turns_rewards": (
            mutant(reward=lambda self, rewards_B, *_: 1 - rewards_B),
            "gives right responses lower rewards than wrong ones",
        ),
        "repelled_critic": (
            mutant(Ppo, value_loss=lambda self, *given: -Ppo.value_loss(self, *given)),
            "draws values away from their returns",
        ),
        "averaged_critic": (AveragedCritic, "depends on the values of others"),
    },
    "elsewhere": {
        "reads_sampler": (
            mutant(weights=lambda self, old, a_T, batch: ((old.logp - batch.behaviour_logp_T).abs() < 0.2).double()),
            READS,
        ),
        "reads_answers": (
            mutant(
                by_response=True,
                weights=lambda self, old, a_T, batch: (batch.answers_B >= 0)[batch.sequence_T].double(),
            ),
            READS,
        ),
        "reads_base": (
            mutant(by_response=True, weights=lambda self, old, a_T, batch: batch.base_right_B[batch.sequence_T]),
            READS,
        ),
        "reads_no_base": (mutant(reads_base=True), "reads_base is declared, and no verb reads it"),
        "reads_no_sampler": (mutant(reads_sampler=True), "reads_sampler is declared, and no verb reads it"),
        "counts_copies": (  # weighs equal responses as one
            mutant(
                by_response=True,
                weights=lambda self, old, a_T, batch: (1 / batch.copy_of_B.bincount()[batch.copy_of_B])[
                    batch.sequence_T
                ],
            ),
            "in another trainer",
        ),
    },
}


@pytest.mark.parametrize(("expected", "name"), [(expected, name) for expected in WRONG for name in WRONG[expected]])
def test_checks_catch_mistakes(expected: str, name: str) -> None:
    kind, words = WRONG[expected][name]
    finding = checked(kind, expected, name)
    assert not finding.passed, "the mistake was not seen"
    assert re.search(words, finding.message)
    assert finding.advice


def checked(kind: type[Component], name: str, registered: str = "mine") -> Finding:
    """Run one check of a method."""
    wanted, subject = check.CHECKS[name], Subject(registered, {**baselines.METHODS, registered: kind})
    return finding_of(name, wanted.advice, partial(wanted.run, subject))


def test_silence_of_a_mean_over_a_micro_batch() -> None:
    """Expect the advice to take marks, since `silent_without_signal = False` would leave the mistake where it is."""
    finding = checked(PartMean, "silence")
    assert not finding.passed
    assert "depends on the micro-batch" in finding.message
    assert finding.advice == check.CHECKS["micro-batches"].advice
    assert checked(WRONG["silence"]["falsely_silent"][0], "silence").advice == "set silent_without_signal = False"


@dataclass(frozen=True)
class Focal(Grpo):
    """Weighs by the present 1 - p, without gradient."""

    follows_advantage = False

    def surrogate(self, view: View) -> Tensor:
        return (1 - view.current.logp.exp()).detach() * view.ratio_T * view.advantages_T


def test_direction_of_a_gradient_of_another_size() -> None:
    twofold = mutant(Grpo, surrogate=lambda self, view: 2 * Grpo.surrogate(self, view))
    finding = checked(twofold, "direction")
    assert (finding.passed, finding.message) == (
        True,
        "at ratio 1 2 times advantage, weight and gate, which is the slope of its value",
    )
    declared = checked(Focal, "direction")
    assert declared.passed
    assert declared.message.startswith("mine declares a different one from that of the advantages: ")
    probe = Subject("grpo", baselines.METHODS).probe(drift=0.0)
    rest_T = 1 - probe.old.logp[Grpo().advantages(probe.old, probe.batch) != 0].exp()
    assert f": {rest_T.min():.3g} to {rest_T.max():.3g} times advantage" in declared.message
    undeclared = type("Undeclared", (Focal,), {"follows_advantage": True})
    assert "is neither that of advantage times log p nor" in checked(undeclared, "direction").message


Halved = mutant(weights=lambda self, *_: 0.5)


@dataclass(frozen=True)
class LateHalved(Control):
    """Halves every gradient after it has heard of an entropy above 1."""

    @cached_property
    def memory(self) -> dict[str, float]:
        return {"factor": 1.0}

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> float:
        return self.memory["factor"]

    def observe(self, metrics: Mapping[str, float]) -> None:
        self.memory["factor"] = 0.5 if metrics["entropy/mean"] > 1 else 1.0


def test_effect_names_idle_controls() -> None:
    table = {**baselines.METHODS, "halved": Halved, "late": LateHalved}
    message, numbers = check.effect("halved+clip_b(mu=1e9)+late", table)
    assert numbers == {
        "effect/halved": pytest.approx(0.5, rel=1e-12),
        "effect/clip_b": 0,
        "effect/late": pytest.approx(0.5, rel=1e-12),
    }
    idle = "clip_b changed nothing on the probe: give options with which it does something"
    assert message == f"halved changes the gradient by 50.0%, late changes the gradient by 50.0%, {idle}"
    reports = []
    for name in ("halved", "clip_b(mu=1e9)", "grpo"):
        seen, effects = check.effect(name, table)
        reports.append(check.Report(name, [Finding("effect", True, seen, numbers=effects)]))
    file = io.StringIO()
    check.print_reports(SafeConsole(file=file, width=200, soft_wrap=True), reports)
    assert "so that the checks saw little of them: clip_b(mu=1e9)." in file.getvalue()


@dataclass(frozen=True)
class Raises(Control):
    """Raises in a verb."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        raise ZeroDivisionError("of no account")


def test_composition_with_broken_neighbors() -> None:
    table: dict[str, type[Component]] = {
        "grpo": Grpo,
        "halved": Halved,
        "raises": Raises,
        "bare_log": WRONG["gradient"]["bare_log"][0],
    }
    seen = check.composition(Subject("halved", table))
    assert seen == "works with 0 others, was not joined with raises, bare_log, which fail alone"
    with pytest.raises(Failed, match=r"raises\+halved: ZeroDivisionError: of no account"):
        check.composition(Subject("raises", table))


NEIGHBOURS = """
from dataclasses import dataclass
from baselines.grpo import GroupObjective
from harness.methods.verbs import Control, number

@dataclass(frozen=True)
class Bare(GroupObjective):
    def advantages(self, old, batch):
        rewards_GN = batch.grouped(batch.rewards_B)
        std_G1 = rewards_GN.std(1, keepdim=True)
        return ((rewards_GN - rewards_GN.mean(1, keepdim=True)) / std_G1).flatten()[batch.sequence_T]

    def surrogate(self, view):
        return view.ratio_T * view.advantages_T

@dataclass(frozen=True)
class BareLog(Control):
    def term(self, view):
        return 0.01 * (view.current.logp - view.current.logp.detach()).abs().log()

@dataclass(frozen=True)
class Beyond(Control):
    share: float = number(2.0, least=0, most=1)

@dataclass(frozen=True)
class Abrupt(Control):
    def __post_init__(self):
        raise RuntimeError("not today")

@dataclass(frozen=True)
class Half(Control):
    def weights(self, old, advantages_T, batch):
        return 0.5

METHODS = {"bare": Bare, "bare_log": BareLog, "beyond": Beyond, "abrupt": Abrupt, "five": 5, "half": Half}
"""


@pytest.mark.processes
@pytest.mark.long
def test_check_command_with_broken_methods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect a row for each check of each method, where some give NaN and others cannot even be made."""
    (tmp_path / "neighbours.py").write_text(NEIGHBOURS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(miniature, "ROUNDS", 2)
    specs = ["bare", "beyond", "bare_log", "abrupt", "five", "half"]
    assert command.call(cli.parse_command(["check", *specs, "--plugin", "neighbours", "--format", "json"])) == 1
    reports = json.loads(capsys.readouterr().out)
    assert [report["method"] for report in reports] == specs
    findings = {report["method"]: {row["check"]: row for row in report["findings"]} for report in reports}
    every = [*check.CHECKS, "ranks", "training", "tokens", "effect"]
    for name in ("bare", "bare_log", "half"):
        assert list(findings[name]) == every
    assert all(row["passed"] for row in findings["half"].values())
    assert "which fail alone" in findings["half"]["composition"]["message"]
    assert findings["bare"]["edges"]["message"] == "an advantage is not finite where no response is right (in float64)"
    assert findings["bare"]["ranks"]["message"] == "one of the advantages is not finite on an ordinary batch"
    assert findings["bare"]["rewards"]["passed"], "a check that sees no NaN keeps its own result"
    assert findings["bare_log"]["ranks"]["message"] == "the loss is not finite on an ordinary batch"
    unmade = {name: findings[name]["construction"]["message"] for name in ("beyond", "abrupt", "five")}
    assert unmade["beyond"] == "Beyond.share is 2.0; allowed: 0 to 1"
    assert unmade["abrupt"] == "RuntimeError: not today"
    assert unmade["five"].startswith("method 'five' of plugin neighbours is 5; it must be a subclass of Objective")


def test_print_reports_joins_equal_failures() -> None:
    rows = [
        Finding("a", False, "it is NaN", "x"),
        Finding("b", False, "it is 5", "y"),
        Finding("c", False, "it is NaN", "z"),
    ]
    file = io.StringIO()
    check.print_reports(SafeConsole(file=file, width=200, soft_wrap=True), [check.Report("mine", rows)])
    lines = file.getvalue().splitlines()
    assert "mine, a, c: it is NaN. These have one cause: fix it first." in lines
    assert "mine, b: it is 5. Y." in lines


def test_checks_have_mistakes() -> None:
    assert WRONG.keys() == check.CHECKS.keys()


@pytest.mark.slow
def test_check_command_exit_code_and_advice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(miniature, "ROUNDS", 2)
    wrong = Finding("ranks", False, "they are others", "sort it")
    monkeypatch.setattr(two_ranks, "check_on_two_ranks", lambda specs, plugins: dict.fromkeys(specs, wrong))
    assert command.call(cli.parse_command(["check", "grpo"])) == 1
    printed = capsys.readouterr().out
    assert "grpo, ranks: they are others. Sort it." in printed
    assert "1 of 1 method failed" in printed
    right = Finding("ranks", True, "they are the same")
    monkeypatch.setattr(two_ranks, "check_on_two_ranks", lambda specs, plugins: dict.fromkeys(specs, right))
    assert command.call(cli.parse_command(["check", "grpo", "ppo", "--format", "json"])) == 0
    reports = json.loads(capsys.readouterr().out)
    assert [(report["method"], report["passed"]) for report in reports] == [("grpo", True), ("ppo", True)]
    numbers = [
        {name: x for finding in report["findings"] for name, x in finding["numbers"].items()} for report in reports
    ]
    assert numbers[1]["cost"] > 1.2, "a critic is another model"


def test_print_reports_fits_the_terminal() -> None:
    wrong = Finding("micro-batches", False, "the gradient is another one with each response alone", "x " * 60)
    report = [check.Report("grpo", [*check.run_checks("grpo", baselines.METHODS), wrong])]
    for reports in (report, report * 3):
        file = io.StringIO()
        console = SafeConsole(file=file, width=80, force_terminal=True, color_system=None, soft_wrap=True)
        check.print_reports(console, reports)
        assert max(map(len, file.getvalue().splitlines())) <= 80
        assert "micro-batches" in file.getvalue()


def test_dropped_shares_by_quadrant() -> None:
    message, shares = check.dropped_shares("grpo+clip_b(share=0.2)", baselines.METHODS)
    _, plain = check.dropped_shares("grpo", baselines.METHODS)
    more = {name for name in plain if shares[name] > plain[name]}
    assert more
    assert more <= {"dropped/negative_above", "dropped/negative_below"}
    assert f"A<0 S*<N {shares['dropped/negative_below']:.1%}" in message


@pytest.mark.parametrize(
    ("arguments", "words"), [(["clip_c"], "unknown method 'clip_c'.* did you mean"), ([], "check needs METHOD")]
)
def test_check_command_mistakes(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        command.call(cli.parse_command(["check", *arguments]))


# Ranks

ON_RANKS = """
import sys
from dataclasses import dataclass
from functools import cached_property
from baselines.grpo import Grpo
from harness.methods.verbs import Control

@dataclass(frozen=True)
class OwnMean(Control):
    def weights(self, old, advantages_T, batch):
        return (old.logp > old.logp.mean()) * 1.0

@dataclass(frozen=True)
class Waits(Control):
    def gate(self, view):
        return 1.0 + 0 * view.batch.global_mean(view.old.logp)

@dataclass(frozen=True)
class OwnMetric(Control):
    @cached_property
    def remembered(self):
        return {"level": 1.0}

    def reshape(self, advantages_T, old, batch):
        return advantages_T * self.remembered["level"]

    def metrics(self, view):
        return {"level": view.old.entropy.mean().item()}

    def observe(self, metrics):
        self.remembered["level"] = metrics["level"]

@dataclass(frozen=True)
class Responses(Grpo):
    def scale(self, batch, counted_T):
        return counted_T / len(batch)

@dataclass(frozen=True)
class OwnBaseline(Grpo):
    def advantages(self, old, batch):
        return (batch.rewards_B - batch.rewards_B.mean())[batch.sequence_T]

@dataclass(frozen=True)
class OwnMarks(Control):
    def marks(self, old, advantages_T, batch):
        return {"most": old.logp.mean()}

    def gate(self, view):
        return (view.current.logp.detach() > view.marks["most"]) * 1.0

@dataclass(frozen=True)
class Loud(Control):
    def weights(self, old, advantages_T, batch):
        print("x" * 200_000, file=sys.stderr)  # more than a pipe holds
        return (advantages_T >= 0) * 1.0

METHODS = {
    "own_mean": OwnMean, "waits": Waits, "own_metric": OwnMetric, "responses": Responses,
    "own_baseline": OwnBaseline, "own_marks": OwnMarks, "loud": Loud,
}
"""


@pytest.mark.long
@pytest.mark.processes
def test_check_on_two_ranks_of_right_and_wrong_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take also methods behind one that hangs the processes which it is checked in."""
    (tmp_path / "on_ranks.py").write_text(ON_RANKS)
    monkeypatch.syspath_prepend(tmp_path)
    patience_s = patient(2.0)
    monkeypatch.setattr(two_ranks, "PATIENCE_S", patience_s)
    wrong = {
        "own_mean": "weights differ between 2 ranks and one",
        "waits": f"waited {patience_s:.0f} s for another",
        "own_metric": "own_metric/level is .* on a rank of 2, and .* on one",
        "responses": "the loss is .* on 2 ranks",
        "own_baseline": "advantages differ",
        "own_marks": "on 2 ranks",
    }
    right = ["ppo+clip_v(share=0.2)", "grpo(normalise=sequence)+adaptive_entropy", "loud"]
    findings = two_ranks.check_on_two_ranks([*wrong, *right], ["on_ranks"])
    for spec, words in wrong.items():
        assert not findings[spec].passed, spec
        assert re.search(words, findings[spec].message), spec
    assert all(findings[spec].passed for spec in right)
