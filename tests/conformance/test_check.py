"""The conformance checks: every method passes them, and each check catches the mistake that it is for."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import baselines
from baselines.grpo import GroupObjective, Grpo
from baselines.ppo import Ppo
from benchmarks.patience import patient
from harness import cli
from harness.base.errors import UserError
from harness.commands import check as command
from harness.conformance import check, checks, miniature, two_ranks
from harness.conformance.subject import Failed, Finding, Subject, finding_of
from harness.methods.batch import TokenBatch, TokenStats
from harness.methods.verbs import Component, Control, View
from harness.terminal.layout import SafeConsole

FIRING = [
    "clip_b(share=0.2)",
    "m2po(threshold=0.001)",
    "lp_reg(share=0.5)",
    "clip_v(share=0.2,reference_denominator=true)",
    "grpo(kl_coef=0.1,normalise=sequence)",
]


# A second each: every fourth in each run, the others in `make soak`. `entrobench check` checks a method that is new.
SPECS = [
    pytest.param(spec, marks=[pytest.mark.long] if place % 4 else [])
    for place, spec in enumerate([*baselines.METHODS, *FIRING])
]


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_every_method_of_the_registry_passes(spec: str) -> None:
    assert not [finding for finding in checks.run_checks(spec, baselines.METHODS) if not finding.passed]


# Methods that are each wrong in one way


@dataclass(frozen=True)
class PartMean(Control):
    """Centres p among the tokens that happen to be together."""

    silent_without_signal = True

    def gate(self, view: View) -> Tensor:
        p_T = view.current.logp.exp()
        return 1 + 0.1 * (p_T - p_T.mean()).detach() ** 2


@dataclass(frozen=True)
class Largest(Control):
    """Needs a token."""

    def gate(self, view: View) -> Tensor:
        return (view.ratio_T.detach().max() < 1e20).double()


@dataclass(frozen=True)
class EverySecond(Control):
    """Drops by the place in the batch."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        return (torch.arange(len(advantages_T)) % 2).double()


@dataclass(frozen=True)
class Explodes(Control):
    """Overflows where the ratio is large."""

    def gate(self, view: View) -> Tensor:
        steep_T = (8 * (view.current.logp - view.old.logp)).detach().exp()
        return steep_T / (1 + steep_T)


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
class FalselySilent(Control):
    """Has a term for every token, and denies it."""

    silent_without_signal = True

    def term(self, view: View) -> Tensor:
        return 0.01 * view.current.logp


@dataclass(frozen=True)
class Unused(Control):
    """Needs what it never reads."""

    needs = frozenset({"sum_p2"})


@dataclass(frozen=True)
class Undeclared(Control):
    """Reads what it does not declare, on some batches alone."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor | float:
        return 1.0 if (advantages_T != 0).any() else 1.0 + 0 * old.expected_discriminator


@dataclass(frozen=True)
class UnusedGradient(Control):
    """Asks for the gradient of the entropy, and does not use it."""

    needs = frozenset({"entropy_grad"})

    def gate(self, view: View) -> Tensor:
        assert view.current.entropy is not None
        return 1 + view.current.entropy.detach()


@dataclass(frozen=True)
class Renormalised(Control):
    """Divides the loss by the tokens that it keeps."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        kept_T = (old.logp < -0.1).double()
        return kept_T / batch.global_mean(kept_T)


@dataclass(frozen=True)
class DividesByKept(Grpo):
    """Divides by the tokens that are not dropped, in its scale."""

    def scale(self, batch: TokenBatch, counted_T: Tensor) -> Tensor:
        kept_T = counted_T * (batch.rewards_B[batch.sequence_T] > 0)
        return counted_T / max(batch.global_count(kept_T), 1.0)


@dataclass(frozen=True)
class Negative(Control):
    """Weighs some tokens below 0."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        return old.logp + 1


@dataclass(frozen=True)
class Chance(Control):
    """Draws without a seed."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        return (torch.rand(len(advantages_T)) < 0.5).double()


@dataclass(frozen=True)
class InPlace(Control):
    """Changes the statistics that all others read."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        return old.logp.clamp_(min=-1).exp()


@dataclass(frozen=True)
class Hidden(Control):
    """Has a slope that autograd does not see."""

    def gate(self, view: View) -> Tensor:
        return torch.tensor(view.ratio_T.tolist(), dtype=view.ratio_T.dtype)


@dataclass(frozen=True)
class Product(GroupObjective):
    """Takes a response as one product, and lets single tokens be weighed all the same."""

    silent_without_signal = True

    def surrogate(self, view: View) -> Tensor:
        mean_B = view.batch.per_sequence(view.current.logp - view.old.logp) / view.batch.lengths_B.clamp(min=1)
        return mean_B.clamp(max=1).exp()[view.batch.sequence_T] * view.advantages_T


@dataclass(frozen=True)
class FalselyByResponse(Control):
    """Weighs single tokens, and denies it."""

    by_response = True

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        return old.logp.exp()


@dataclass(frozen=True)
class Proud(Control):
    """Believes in the advantages of groups."""

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        one_B1 = torch.stack([x_T.unique() for x_T in advantages_T.split(batch.lengths_B.tolist())])
        return one_B1[batch.sequence_T, 0]


@dataclass(frozen=True)
class Lonely(Grpo):
    """Says that one response is enough."""

    min_group = 1


@dataclass(frozen=True)
class Nothing(Grpo):
    """Learns nothing."""

    def surrogate(self, view: View) -> Tensor:
        return 0 * super().surrogate(view)


@dataclass(frozen=True)
class TopShare(Control):
    """Breaks ties by the order of the batch."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        order_T = old.logp.argsort(stable=True)
        return torch.zeros_like(old.logp).scatter(0, order_T[: len(order_T) // 3], 1.0)


@dataclass(frozen=True)
class Deaf(Grpo):
    """Reads what is right, and says that it takes rewards."""

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        return (batch.right_B.double() - 0.5)[batch.sequence_T]


@dataclass(frozen=True)
class BareDeviation(GroupObjective):
    """Divides by a deviation that is 0 where a group has no signal."""

    silent_without_signal = True

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        rewards_GN = batch.grouped(batch.rewards_B)
        mean_G1, std_G1 = rewards_GN.mean(1, keepdim=True), rewards_GN.std(1, correction=0, keepdim=True)
        return ((rewards_GN - mean_G1) / std_G1).flatten()[batch.sequence_T]

    def surrogate(self, view: View) -> Tensor:
        return view.ratio_T * view.advantages_T


@dataclass(frozen=True)
class BareLog(Control):
    """Takes the log of a distance that is 0 at first."""

    def term(self, view: View) -> Tensor:
        return 0.01 * (view.current.logp - view.current.logp.detach()).abs().log()


@dataclass(frozen=True)
class Tide(Control):
    """Closes its gate above the running mean of a number of its own, which no checkpoint sees."""

    @cached_property
    def memory(self) -> dict[str, float]:
        return {}

    def marks(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        assert old.entropy is not None
        now = batch.global_mean(old.entropy)
        return {"level": now, "flood": now > self.memory.get("level", float("inf"))}

    def gate(self, view: View) -> Tensor:
        return (~view.marks["flood"]).double()

    def metrics(self, view: View) -> Mapping[str, float]:
        return {"level": float(view.marks["level"])}

    def observe(self, metrics: Mapping[str, float]) -> None:
        kept = self.memory.get("level", metrics["level"])
        self.memory["level"] = 0.9 * kept + 0.1 * metrics["level"]


@dataclass(frozen=True)
class Share(Control):
    """Scales by the last step's share of right responses, which no checkpoint sees."""

    @cached_property
    def memory(self) -> dict[str, float]:
        return {}

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        now = batch.right_B.double().mean()
        return advantages_T * (1 + now - self.memory.get("right", now))

    def observe(self, metrics: Mapping[str, float]) -> None:
        self.memory["right"] = metrics["reward/mean"]


@dataclass(frozen=True)
class Reversed(Grpo):
    """Has the value of GRPO and the opposite gradient."""

    def surrogate(self, view: View) -> Tensor:
        surrogate_T = super().surrogate(view)
        return 2 * surrogate_T.detach() - surrogate_T


@dataclass(frozen=True)
class Unsigned(Grpo):
    """Loses the sign of the advantage in a detached weight."""

    def surrogate(self, view: View) -> Tensor:
        return (view.ratio_T * view.advantages_T).abs().detach() * view.current.logp


@dataclass(frozen=True)
class LossForSurrogate(Grpo):
    """Returns a loss where a surrogate is maximised."""

    def surrogate(self, view: View) -> Tensor:
        return -super().surrogate(view)


@dataclass(frozen=True)
class Doubled(Grpo):
    """Has the value of GRPO and twice its gradient."""

    def surrogate(self, view: View) -> Tensor:
        surrogate_T = super().surrogate(view)
        return 2 * surrogate_T - surrogate_T.detach()


@dataclass(frozen=True)
class ReversedBeyond(Grpo):
    """Keeps a gradient beyond the clip, with the wrong sign."""

    def beyond(self, ratio_T: Tensor, bound_T: Tensor) -> Tensor:
        return bound_T * (2 - ratio_T / ratio_T.detach())


@dataclass(frozen=True)
class Leaky(Control):
    """Lets the entropy's gradient through its gate."""

    needs = frozenset({"entropy_grad"})

    def gate(self, view: View) -> Tensor:
        assert view.current.entropy is not None
        return 1 + view.current.entropy


@dataclass(frozen=True)
class LeakyRatio(Control):
    """Lets the gradient of the ratio through its gate."""

    def gate(self, view: View) -> Tensor:
        return view.ratio_T.clamp(max=1)


@dataclass(frozen=True)
class CountsPart(Control):
    """Logs the number of tokens that happen to be together."""

    def update_metrics(self, view: View) -> Mapping[str, float]:
        return {"tokens": len(view.advantages_T)}


@dataclass(frozen=True)
class LogsInfinity(Control):
    """Logs a number that is infinite where the policy is sure of a token."""

    def update_metrics(self, view: View) -> Mapping[str, Tensor]:
        return {"surprise": 1 / view.old.logp}


@dataclass(frozen=True)
class ReadsSampler(Control):
    """Keeps the tokens near the policy that sampled, without a declaration."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        return ((old.logp - batch.behaviour_logp_T).abs() < 0.2).double()


@dataclass(frozen=True)
class ReadsAnswers(Control):
    """Drops responses without an answer, without a declaration."""

    by_response = True

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        return (batch.answers_B >= 0)[batch.sequence_T].double()


@dataclass(frozen=True)
class ReadsNoSampler(Control):
    """Asks for the policy that sampled, and does not read it."""

    reads_sampler = True


@dataclass(frozen=True)
class CountsCopies(Control):
    """Weighs equal responses as one."""

    by_response = True

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        return (1 / batch.copy_of_B.bincount()[batch.copy_of_B])[batch.sequence_T]


@dataclass(frozen=True)
class ReadsTokens(Control):
    """Drops responses that end with a certain token."""

    by_response = True

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        ends = torch.tensor([int(tokens[-1]) if len(tokens) else 0 for tokens in batch.sequences])
        return (ends > 2)[batch.sequence_T].double()


@dataclass(frozen=True)
class ChangesAdvantages(Control):
    """Bounds the advantages that all others read."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> float:
        advantages_T.clamp_(-0.5, 0.5)
        return 1.0


@dataclass(frozen=True)
class ChangesRewards(Control):
    """Shifts the rewards in place."""

    def reward(self, rewards_B: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        rewards_B[0] += 1
        return rewards_B


@dataclass(frozen=True)
class ChangesMarks(Control):
    """Halves its marks whenever they are read."""

    def marks(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        return {"factor": torch.ones_like(old.logp)}

    def gate(self, view: View) -> Tensor:
        return view.marks["factor"].mul_(0.5)


@dataclass(frozen=True)
class RemembersEarly(Control):
    """Counts the batches when it logs them."""

    @cached_property
    def remembered(self) -> dict[str, float]:
        return {"steps": 0.0}

    def metrics(self, view: View) -> Mapping[str, float]:
        self.remembered["steps"] += 1
        return {}


@dataclass(frozen=True)
class CountsCalls(Control):
    """Weighs less at each call."""

    @cached_property
    def calls(self) -> list[int]:
        return []

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> float:
        self.calls.append(1)
        return 1 / len(self.calls)


@dataclass(frozen=True)
class Clock(Control):
    """Weighs by the time of day."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> float:
        return time.perf_counter() % 1


@dataclass(frozen=True)
class FirstBatch(Control):
    """Centres every batch on the mean entropy of the first one."""

    @cached_property
    def seen(self) -> dict[str, Tensor]:
        return {}

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        assert old.entropy is not None
        level = self.seen.setdefault("level", batch.global_mean(old.entropy))
        return (old.entropy > level).double()


@dataclass(frozen=True)
class FirstGroup(Control):
    """Weighs the first group of the batch twice."""

    by_response = True

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        return 1.0 + (batch.groups_B == batch.groups_B[0])[batch.sequence_T]


@dataclass(frozen=True)
class OwnGenerator(Control):
    """Draws with the seed of the batch, in the order of its tokens."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        generator = torch.Generator().manual_seed(batch.seed)
        return torch.rand(len(advantages_T), generator=generator).double()


@dataclass(frozen=True)
class CountsPrompts(Grpo):
    """Divides by the tokens of prompts, too."""

    def scale(self, batch: TokenBatch, counted_T: Tensor) -> Tensor:
        return counted_T / batch.global_sum((batch.prompt_lengths_B + batch.lengths_B).double())


@dataclass(frozen=True)
class DividesByPart(Grpo):
    """Divides by the tokens that happen to be together."""

    def surrogate(self, view: View) -> Tensor:
        return super().surrogate(view) / max(len(view.advantages_T), 1)


@dataclass(frozen=True)
class PaddedMean(Grpo):
    """Averages each response over the longest one that happens to be with it."""

    def surrogate(self, view: View) -> Tensor:
        return super().surrogate(view) / max(int(view.batch.lengths_B.max()), 1)


@dataclass(frozen=True)
class TurnsAdvantages(Control):
    """Loses a sign in the advantages."""

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        return -advantages_T


@dataclass(frozen=True)
class TurnsRewards(Control):
    """Loses a sign in the rewards."""

    def reward(self, rewards_B: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        return 1 - rewards_B


@dataclass(frozen=True)
class RepelledCritic(Ppo):
    """Draws values away from their returns."""

    def value_loss(self, values_T: Tensor, old_values_T: Tensor, returns_T: Tensor) -> Tensor:
        return -super().value_loss(values_T, old_values_T, returns_T)


@dataclass(frozen=True)
class AveragedCritic(Ppo):
    """Gives each token the mean loss of all."""

    def value_loss(self, values_T: Tensor, old_values_T: Tensor, returns_T: Tensor) -> Tensor:
        loss_T = super().value_loss(values_T, old_values_T, returns_T)
        return loss_T.mean().expand_as(loss_T)


@dataclass(frozen=True)
class NeedsTokens(Control):
    """Takes the largest value of each response."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        largest_B = torch.stack([x_T.max() for x_T in old.logp.split(batch.lengths_B.tolist())])
        return (old.logp < largest_B[batch.sequence_T]).double()


WRONG: dict[str, tuple[type[Component], str, str]] = {
    "part_mean": (PartMean, "micro-batches", "in other micro-batches, and"),
    "largest": (Largest, "micro-batches", "max"),
    "every_second": (EverySecond, "order", "in another order"),
    "top_share": (TopShare, "order", "in another order of groups, with ties"),
    "deaf": (Deaf, "rewards", "the advantages do not follow shaped rewards"),
    "explodes": (Explodes, "edges", r"the loss is not finite where log ratios of \+-100"),
    "forgetful": (Forgetful, "memory", "state leaves something out"),
    "half_forgetful": (HalfForgetful, "memory", "a loaded memory is not the one"),
    "gossip": (Gossip, "memory", "the memory is shared"),
    "falsely_silent": (FalselySilent, "silence", "a response whose tokens have no advantage has a gradient"),
    "unused": (Unused, "needs", "unused declares the need 'sum_p2' and reads nothing that it gives"),
    "undeclared": (Undeclared, "needs", "Undeclared uses sum_p2, which it does not need"),
    "unused_gradient": (UnusedGradient, "needs", "no gradient goes through the present entropy"),
    "renormalised": (Renormalised, "denominators", "makes up for it in the weights of the others"),
    "negative": (Negative, "weights", "a weight below 0"),
    "chance": (Chance, "twice", "a different loss or gradient the second time"),
    "in_place": (InPlace, "twice", "logp of the verb weights was changed"),
    "hidden": (Hidden, "gradient", "but its gradient predicts"),
    "product": (Product, "token weights", "a token that is dropped still has a gradient"),
    "falsely_by_response": (FalselyByResponse, "by response", "weighs the tokens of a response differently"),
    "proud": (Proud, "composition", r"proud\+ppo: "),
    "lonely": (Lonely, "edges", "not finite where one group of the least size"),
    "nothing": (Nothing, "gradient", "no token has a gradient"),
    "bare_deviation": (BareDeviation, "edges", "an advantage is not finite where no response is right"),
    "counts_part": (CountsPart, "micro-batches", "the metric updates/counts_part/tokens differs"),
    "logs_infinity": (LogsInfinity, "edges", "the metric updates/logs_infinity/surprise is not finite where"),
    "bare_log": (BareLog, "gradient", "the gradient is not finite on an ordinary batch"),
    "tide": (Tide, "memory", "state leaves something out"),
    "share": (Share, "memory", "state leaves something out"),
    "reversed": (Reversed, "direction", r"at ratio 1 the gradient goes against the advantage for 100\.0%"),
    "unsigned": (Unsigned, "direction", "at ratio 1 the gradient goes against the advantage for"),
    "loss_for_surrogate": (LossForSurrogate, "direction", "at ratio 1 a step along the gradient lowers the log p"),
    "doubled": (Doubled, "direction", "nor that of the surrogate's value: 2 times advantage"),
    "reversed_beyond": (ReversedBeyond, "direction", "where the policy has moved the gradient goes against"),
    "leaky": (Leaky, "direction", "a gradient goes through the gate of leaky, by the present entropy"),
    "reads_sampler": (ReadsSampler, "elsewhere", "declare reads_answers = True or reads_sampler = True"),
    "reads_answers": (ReadsAnswers, "elsewhere", "declare reads_answers = True or reads_sampler = True"),
    "reads_no_sampler": (ReadsNoSampler, "elsewhere", "reads_sampler is declared, and no verb reads it"),
    "counts_copies": (CountsCopies, "elsewhere", "in another trainer"),
    "reads_tokens": (ReadsTokens, "elsewhere", "in another trainer"),
    "changes_advantages": (ChangesAdvantages, "twice", "of the verb weights was changed"),
    "changes_rewards": (ChangesRewards, "twice", "of the verb reward was changed"),
    "changes_marks": (ChangesMarks, "twice", "of the verb gate was changed"),
    "remembers_early": (RemembersEarly, "twice", "the memory changed before the step was observed"),
    "counts_calls": (CountsCalls, "twice", "a different loss or gradient the second time"),
    "clock": (Clock, "twice", "a different loss or gradient the second time"),
    "first_batch": (FirstBatch, "memory", "state leaves something out"),
    "first_group": (FirstGroup, "order", "in another order"),
    "own_generator": (OwnGenerator, "order", "in another order"),
    "counts_prompts": (CountsPrompts, "order", "behind longer prompts"),
    "divides_by_part": (DividesByPart, "micro-batches", "in other micro-batches"),
    "padded_mean": (PaddedMean, "micro-batches", "in other micro-batches"),
    "turns_advantages": (TurnsAdvantages, "direction", "turns the advantages around"),
    "turns_rewards": (TurnsRewards, "direction", "gives right responses lower rewards than wrong ones"),
    "repelled_critic": (RepelledCritic, "direction", "draws values away from their returns"),
    "averaged_critic": (AveragedCritic, "direction", "depends on the values of others"),
    "needs_tokens": (NeedsTokens, "edges", "where some responses are empty"),
    "leaky_ratio": (LeakyRatio, "direction", "a gradient goes through the gate of leaky_ratio, by the present log p"),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_is_caught_by_its_check(name: str) -> None:
    kind, expected, words = WRONG[name]
    mine, right = Subject(name, {**baselines.METHODS, name: kind}), checks.CHECKS[expected]
    found = finding_of(expected, right.advice, partial(right.run, mine))
    assert not found.passed, "the mistake was not seen"
    assert re.search(words, found.message)
    assert found.advice


def checked(kind: type[Component], check: str) -> Finding:
    """Run one check of a method that is registered as `mine`."""
    wanted = checks.CHECKS[check]
    return finding_of(check, wanted.advice, partial(wanted.run, Subject("mine", {**baselines.METHODS, "mine": kind})))


def test_a_mean_over_a_micro_batch_is_not_taken_for_a_false_declaration_of_silence() -> None:
    """Expect the advice to take marks, since `silent_without_signal = False` would leave the mistake where it is."""
    found = checked(PartMean, "silence")
    assert not found.passed
    assert "depends on the micro-batch" in found.message
    assert found.advice == checks.CHECKS["micro-batches"].advice
    assert checked(FalselySilent, "silence").advice == "set silent_without_signal = False"


@dataclass(frozen=True)
class Focal(Grpo):
    """Weighs by the present 1 - p, without gradient."""

    follows_advantage = False

    def surrogate(self, view: View) -> Tensor:
        return (1 - view.current.logp.exp()).detach() * view.ratio_T * view.advantages_T


@dataclass(frozen=True)
class Twofold(Grpo):
    """Has twice the value of GRPO, and so twice its gradient."""

    def surrogate(self, view: View) -> Tensor:
        return 2 * super().surrogate(view)


def test_a_gradient_of_another_size_is_that_of_its_value_or_declared() -> None:
    found = checked(Twofold, "direction")
    assert (found.passed, found.message) == (
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


@dataclass(frozen=True)
class Halved(Control):
    """Halves every gradient."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> float:
        return 0.5


@dataclass(frozen=True)
class LateHalved(Halved):
    """Halves every gradient after it has heard of an entropy above 1."""

    @cached_property
    def memory(self) -> dict[str, float]:
        return {"factor": 1.0}

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> float:
        return self.memory["factor"]

    def observe(self, metrics: Mapping[str, float]) -> None:
        self.memory["factor"] = 0.5 if metrics["entropy/mean"] > 1 else 1.0


def test_a_control_that_changes_nothing_is_named() -> None:
    table = {**baselines.METHODS, "halved": Halved, "late": LateHalved}
    said, numbers = check.changes(Subject("halved+clip_b(mu=1e9)+late", table))
    assert numbers == {
        "effect/halved": pytest.approx(0.5, rel=1e-12),
        "effect/clip_b": 0,
        "effect/late": pytest.approx(0.5, rel=1e-12),
    }
    idle = "clip_b changed nothing on the probe: give options with which it does something"
    assert said == f"halved changes the gradient by 50.0%, late changes the gradient by 50.0%, {idle}"
    found = [check.Report(name, [check.effect(Subject(name, table))]) for name in ("halved", "clip_b(mu=1e9)", "grpo")]
    file = io.StringIO()
    check.print_reports(SafeConsole(file=file, width=200, soft_wrap=True), found)
    assert "so that the checks saw little of them: clip_b(mu=1e9)." in file.getvalue()


@dataclass(frozen=True)
class Raises(Control):
    """Raises in a verb."""

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        raise ZeroDivisionError("of no account")


def test_a_broken_neighbour_is_left_out_of_compositions() -> None:
    table: dict[str, type[Component]] = {"grpo": Grpo, "halved": Halved, "raises": Raises, "bare_log": BareLog}
    seen = checks.composition(Subject("halved", table))
    assert seen == "works with 0 others, was not joined with raises, bare_log, which fail alone"
    with pytest.raises(Failed, match=r"raises\+halved: ZeroDivisionError: of no account"):
        checks.composition(Subject("raises", table))


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
@pytest.mark.slow
def test_no_method_takes_the_findings_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect a row for each check of each method, where some give NaN and others cannot even be made."""
    (tmp_path / "neighbours.py").write_text(NEIGHBOURS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(miniature, "ROUNDS", 2)
    specs = ["bare", "beyond", "bare_log", "abrupt", "five", "half"]
    assert command.call(cli.parse_command(["check", *specs, "--plugin", "neighbours", "--format", "json"])) == 1
    reports = json.loads(capsys.readouterr().out)
    assert [each["method"] for each in reports] == specs
    found = {each["method"]: {row["check"]: row for row in each["findings"]} for each in reports}
    every = [*checks.CHECKS, "ranks", "training", "tokens", "effect"]
    for name in ("bare", "bare_log", "half"):
        assert list(found[name]) == every
    assert all(row["passed"] for row in found["half"].values())
    assert "which fail alone" in found["half"]["composition"]["message"]
    assert found["bare"]["edges"]["message"] == "an advantage is not finite where no response is right (in float64)"
    assert found["bare"]["ranks"]["message"] == "one of the advantages is not finite on an ordinary batch"
    assert found["bare"]["rewards"]["passed"], "a check that sees no NaN keeps its own result"
    assert found["bare_log"]["ranks"]["message"] == "the loss is not finite on an ordinary batch"
    unmade = {name: found[name]["construction"]["message"] for name in ("beyond", "abrupt", "five")}
    assert unmade["beyond"] == "Beyond.share is 2.0; allowed: 0 to 1"
    assert unmade["abrupt"] == "RuntimeError: not today"
    assert unmade["five"].startswith("method 'five' of plugin neighbours is 5; it must be a subclass of Objective")


def test_checks_that_fail_in_the_same_words_share_a_line() -> None:
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


def test_every_check_is_known_to_catch_something() -> None:
    assert {expected for _, expected, _ in WRONG.values()} == checks.CHECKS.keys()


@pytest.mark.slow
def test_a_failure_of_a_check_is_a_failure_of_the_command_and_says_what_to_do(
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
    found = json.loads(capsys.readouterr().out)
    assert [(each["method"], each["passed"]) for each in found] == [("grpo", True), ("ppo", True)]
    numbers = [{name: x for finding in each["findings"] for name, x in finding["numbers"].items()} for each in found]
    assert numbers[1]["cost"] > 1.2, "a critic is another model"


def test_no_line_is_wider_than_the_terminal() -> None:
    wrong = Finding("micro-batches", False, "the gradient is another one with each response alone", "x " * 60)
    found = [check.Report("grpo", [*checks.run_checks("grpo", baselines.METHODS), wrong])]
    for reports in (found, found * 3):
        file = io.StringIO()
        console = SafeConsole(file=file, width=80, force_terminal=True, color_system=None, soft_wrap=True)
        check.print_reports(console, reports)
        assert max(map(len, file.getvalue().splitlines())) <= 80
        assert "micro-batches" in file.getvalue()


def test_what_a_clip_drops_is_told_by_quadrant() -> None:
    said, shares = check.dropped_shares("grpo+clip_b(share=0.2)", baselines.METHODS)
    _, plain = check.dropped_shares("grpo", baselines.METHODS)
    more = {name for name in plain if shares[name] > plain[name]}
    assert more
    assert more <= {"dropped/negative_above", "dropped/negative_below"}
    assert f"A<0 S*<N {shares['dropped/negative_below']:.1%}" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["clip_c"], "unknown method 'clip_c'.* did you mean"),
        (["grpo", "clip_b(share=2)"], r"share is 2(\.0)?; allowed: 0 to 1"),
        ([], "check needs METHOD"),
    ],
)
def test_mistakes_get_one_sentence(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        command.call(cli.parse_command(["check", *arguments]))


# Ranks

ON_RANKS = """
from dataclasses import dataclass
from functools import cached_property
from baselines.grpo import Grpo
from harness import ranks
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
class Longest(Control):
    def reshape(self, advantages_T, old, batch):
        return advantages_T / batch.lengths_B.max()

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
class OwnNumber(Control):
    def weights(self, old, advantages_T, batch):
        return 1.0 + ranks.own_rank()

METHODS = {
    "own_mean": OwnMean, "waits": Waits, "own_metric": OwnMetric, "longest": Longest, "responses": Responses,
    "own_baseline": OwnBaseline, "own_marks": OwnMarks, "own_number": OwnNumber,
}
"""


@pytest.mark.processes
def test_two_ranks_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take also methods behind one that hangs the processes which it is checked in."""
    (tmp_path / "on_ranks.py").write_text(ON_RANKS)
    monkeypatch.syspath_prepend(tmp_path)
    patience_s = patient(8.0)  # which includes the start of the processes
    monkeypatch.setattr(two_ranks, "PATIENCE_S", patience_s)
    wrong = {
        "own_mean": "weights differ between 2 ranks and one",
        "waits": f"waited {patience_s:.0f} s for another",
        "own_metric": "own_metric/level is .* on a rank of 2, and .* on one",
        "longest": "advantages differ",
        "responses": "the loss is .* on 2 ranks",
        "own_baseline": "advantages differ",
        "own_marks": "on 2 ranks",
        "own_number": "weights differ",
    }
    right = ["ppo+clip_v(share=0.2)", "grpo(normalise=sequence)+adaptive_entropy"]
    found = two_ranks.check_on_two_ranks([*wrong, *right], ["on_ranks"])
    for spec, words in wrong.items():
        assert not found[spec].passed, spec
        assert re.search(words, found[spec].message), spec
    assert all(found[spec].passed for spec in right)
