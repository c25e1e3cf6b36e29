"""Checks that a method keeps the contract of harness/method.py: for methods what a conformance test is for a protocol.

Every check runs the method on random batches over a small vocabulary (probe.py), as the trainer would, and compares
what must be equal. None of them knows a formula: whether a method computes what its paper says is for another test.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from harness.base.errors import UserError
from harness.batch import Granted, Rollout, TokenBatch, TokenStats
from harness.composition import BEFORE, DURING, STANDS_ON, Method, Signal, Table, components, overrides
from harness.method import Component, Objective
from harness.study.probe import Outcome, Probe, far, outcome, probe, stepped, tied
from harness.tokens import metrics

CLOSE = 1e-9  # relative: what differs by more in float64 is no rounding
LONGEST_SENTENCE = 300  # characters of a refusal
ENTROPIES = (0.01, 0.01, 2.5, 0.3, 0.05)  # that a control with a memory hears of, one after the other


class Failed(Exception):
    """A check found what must not be; the message says what."""


@dataclass(frozen=True)
class Finding:
    """Says how a check ended."""

    check: str
    passed: bool
    said: str  # what was seen, or what is wrong
    advice: str = ""  # what to do about it
    numbers: dict[str, float] = field(default_factory=dict)  # what was measured


@dataclass
class Subject:
    """The method that is checked; each check makes it anew, so that no memory is left of another one."""

    spec: str
    table: Table

    def make(self) -> Method:
        return Method.of(self.spec, self.table)

    @cached_property
    def size(self) -> int:
        """Returns the responses to a prompt."""
        return max(4, self.make().min_group)

    def probe(self, seed: int = 0, **given: Any) -> Probe:
        return probe(seed, **{"size": self.size, **given})

    @cached_property
    def edges(self) -> dict[str, Probe]:
        """Returns batches of the kinds that come rarely, and then stop a run."""
        least = self.make().min_group
        even = self.probe(6)
        return {
            "no response is right": self.probe(1, rewards=lambda group, size: [0.0] * size),
            "every response is right": self.probe(2, rewards=lambda group, size: [1.0] * size),
            "responses of one token": self.probe(3, longest=1),
            "one group of the least size": self.probe(
                4, groups=1, size=least, rewards=lambda group, size: [1.0] + [0.0] * (size - 1)
            ),
            "the policy has not moved": self.probe(5, drift=0.0),
            "all tokens are equally likely": replace(
                even, old_logits_TV=0 * even.old_logits_TV, logits_TV=0 * even.logits_TV
            ),
            "the policy is sure of every token": self.probe(7, sharp=400.0),
            "log ratios of +-30": far(self.probe(8)),
            "the first step": self.probe(9, progress=0.0),
            "the last step": self.probe(9, progress=0.999),
        }

    def moments(self) -> Iterator[tuple[str, Method, Probe]]:
        """Yields the edges in both types, each with a method that has heard of some steps."""
        for name, given in self.edges.items():
            for dtype in (torch.float64, torch.float32):
                method = self.make()
                hears = any(overrides(control, "observe") for control in method.controls.values())
                for entropy in ENTROPIES[:2] if hears else ():
                    method.observe(record(method, self.probe(), entropy))
                yield f"{name} (in {str(dtype).removeprefix('torch.')})", method, given.to(dtype)


def near(one: Tensor, other: Tensor) -> bool:
    scale = max(one.abs().max().item(), other.abs().max().item()) if one.numel() else 0.0
    return bool(torch.isclose(one, other, rtol=CLOSE, atol=CLOSE * scale + 1e-15).all())


def compare(expected: Outcome, found: Outcome, to: Tensor | None, where: str) -> None:
    """Refuses another loss or gradient; `to` names the tokens of `expected` that `found` has, in their order."""
    if not math.isclose(expected.loss, found.loss, rel_tol=CLOSE, abs_tol=1e-12):
        raise Failed(f"the loss is {found.loss:.6g} {where}, and {expected.loss:.6g} without that")
    gradient_TV = expected.gradient_TV if to is None else expected.gradient_TV[to]
    if not near(gradient_TV, found.gradient_TV):
        size = (gradient_TV - found.gradient_TV).norm() / max(gradient_TV.norm().item(), 1e-300)
        raise Failed(f"the gradient is another one {where} (by {size:.1%} of its size)")


def singly(batch: TokenBatch) -> list[TokenBatch]:
    """Splits into the responses, the last one first."""
    return [batch.take([row]) for row in reversed(range(len(batch)))]


def unevenly(batch: TokenBatch) -> list[TokenBatch]:
    """Splits into three parts that mix the groups, and one without tokens, as where other ranks have more parts."""
    return [batch.take(list(range(start, len(batch), 3))) for start in range(3)] + [batch.idle()]


def record(method: Method, given: Probe, entropy: float | None = None) -> dict[str, float]:
    """Returns what the trainer would log of a step; with another mean entropy, if one is given."""
    found, batch, needs = outcome(method, given, updates=2), given.batch, method.needs
    log_ratios, touched = [], []
    for minibatch in batch.split(2):
        fixed = stepped(method, given, found.signal, minibatch).at(minibatch.index_T)
        with torch.no_grad():
            now = given.during(needs, given.logits_TV, minibatch.index_T)
            touched.append(method.touched(now, fixed, minibatch))
        log_ratios.append(now.logp - fixed.old.logp)
    groups: list[list[Rollout]] = [[] for _ in range(int(batch.groups_B[-1]) + 1)]
    for row, tokens in enumerate(batch.sequences):
        prompt, end = int(batch.prompt_lengths_B[row]), bool(batch.finished_B[row])
        groups[int(batch.groups_B[row])].append(Rollout([], tokens[prompt:].tolist(), [], end))
    verdicts = ["right" if right else "wrong" for right in batch.right_B.tolist()]
    heard = {
        **metrics.of_rollouts(groups, batch, verdicts),
        **metrics.of_signal(found.signal, batch),
        **metrics.of_ratios(log_ratios, touched),
        **method.metrics(found.signal, batch),
        "loss/policy": found.loss,
        "gradient/norm": found.gradient_TV.norm().item(),
        "tokens/generated": batch.global_tokens(),
    }
    return heard if entropy is None else heard | {"entropy/mean": entropy}


# What is declared


@dataclass(frozen=True)
class Recorded(Granted):
    """Notes which columns are read."""

    reads: set[str] = field(kw_only=True)

    def __getattribute__(self, name: str) -> Any:
        if name in BEFORE:
            super().__getattribute__("reads").add(name)
        return super().__getattribute__(name)


class Watched(Method):
    """A method of whose components is known which statistics they read."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.reads: dict[str, dict[str, set[str]]] = {name: {"before": set(), "during": set()} for name in self.named}

    def noted(self, component: Component, stats: TokenStats, when: str) -> TokenStats:
        name = next(name for name, each in self.named.items() if each is component)
        return Recorded(**vars(stats), reads=self.reads[name][when])

    def before(self, component: Component, old: TokenStats) -> TokenStats:
        return self.noted(component, super().before(component, old), "before")

    def during(self, component: Component, current: TokenStats) -> TokenStats:
        return self.noted(component, super().during(component, current), "during")


def needs(subject: Subject) -> str:
    """Finds statistics that are used and not declared, and those that are declared and not used."""
    watched = Watched.of(subject.spec, subject.table)
    assert isinstance(watched, Watched)
    slopes = False
    for entropy in ENTROPIES:
        for given in (subject.probe(), subject.edges["no response is right"]):
            watched.observe(record(watched, given, entropy))
            slopes = slopes or learns_from_entropy(watched, given)
    for name, component in watched.named.items():
        for need in sorted(watched.needs_of(component)):
            reads = watched.reads[name]
            if not any(
                column in reads[when]
                for when, columns in (("before", BEFORE), ("during", DURING))
                for column, gives in columns.items()
                if need in gives
            ):
                raise Failed(f"{name} declares the need {need!r} and reads nothing that it gives")
    if "entropy_grad" in watched.needs and not slopes:
        raise Failed("'entropy_grad' is declared, and no gradient goes through the present entropy")
    declared = ", ".join(sorted(watched.needs)) or "none"
    return f"declared: {declared}; each is used, and nothing else is"


def learns_from_entropy(method: Method, given: Probe) -> bool:
    if "entropy_grad" not in method.needs:
        return False
    signal = method.signal(given.before(method.needs), given.batch, [given.batch])
    fixed = stepped(method, given, signal, given.batch)
    current = given.during(method.needs, given.logits_TV, given.batch.index_T)
    assert current.entropy is not None
    entropy_T = current.entropy.requires_grad_()
    loss = method.loss(current, fixed, given.batch)
    if not loss.requires_grad:
        return False
    (found,) = torch.autograd.grad(loss, entropy_T, allow_unused=True, materialize_grads=True)
    return bool(found.any())


def silence(subject: Subject) -> str:
    """Compares the gradient with that of the responses which the trainer computes where the others have no signal."""
    method = subject.make()
    if method.objective.kl_coef or not all(each.silent_without_signal for each in method.components):
        return "not declared, so that all responses are computed"
    given = subject.probe()
    batch, index_T = given.batch, given.batch.index_T
    signal = stepped(method, given, method.signal(given.before(method.needs), batch, [batch]), batch)
    half_T = (batch.sequence_T % 2).double()
    for without, changed in (
        ("advantage", replace(signal, advantages_T=signal.advantages_T * half_T)),
        ("weight", replace(signal, weights_T=signal.weights_T * half_T)),
    ):
        gradient_TV = gradient_of(method, given, changed, batch)
        kept_T = torch.zeros(len(index_T), dtype=torch.bool)
        part = method.contributing(batch, changed)
        kept_T[part.index_T] = True
        if gradient_TV[~kept_T].any():
            raise Failed(f"a response whose tokens have no {without} has a gradient")
        if not near(gradient_of(method, given, changed, part), gradient_TV):
            raise Failed(f"others learn something else where responses without {without} are left out")
    return "responses without advantage or weight add nothing"


def gradient_of(method: Method, given: Probe, signal: Signal, part: TokenBatch) -> Tensor:
    """Returns the gradient of a part's loss by the logits of all tokens."""
    logits_TV = given.logits_TV.clone().requires_grad_()
    loss = method.loss(given.during(method.needs, logits_TV, part.index_T), signal.at(part.index_T), part)
    if not loss.requires_grad:
        return torch.zeros_like(logits_TV)
    return torch.autograd.grad(loss, logits_TV, allow_unused=True, materialize_grads=True)[0]


def token_weights(subject: Subject) -> str:
    """Drops single tokens: the objective's loss must then have no gradient by their logits."""
    whole = subject.make()
    if not whole.objective.weighs_tokens:
        return "the objective takes whole responses, and refuses to weigh tokens"
    method, given = Method(whole.base, (whole.base, whole.objective), {}), subject.probe()
    signal = method.signal(given.before(method.needs), given.batch, [given.batch])
    kept_T = given.batch.index_T % 3 != 0
    dropped = replace(signal, weights_T=signal.weights_T * kept_T, term_scale_T=0 * signal.term_scale_T)
    gradient_TV = gradient_of(method, given, stepped(method, given, dropped, given.batch), given.batch)
    if gradient_TV[~kept_T].abs().max() > CLOSE * gradient_TV.abs().max():
        raise Failed(f"a token that is dropped still has a gradient through the surrogate of {whole.base}")
    return "a token of weight 0 has no gradient through the surrogate"


def by_response(subject: Subject) -> str:
    """Compares the weights within each response, where a control says that they are the same."""
    method = subject.make()
    declared = [name for name, control in method.controls.items() if control.by_response]
    if not declared:
        return "not declared, so that single tokens may be weighed"
    for edge, now, given in subject.moments():
        for name, factor_T in factors(now, given).items():
            first_T = factor_T[given.batch.starts_B][given.batch.sequence_T]
            if name in declared and not torch.equal(factor_T, first_T):
                raise Failed(f"{name} weighs the tokens of a response differently where {edge}")
    return f"{', '.join(declared)}: one weight for all tokens of a response"


# What is computed


class Detached(TorchFunctionMode):
    """Notes what `detach` gives; or gives, one after the other, what another one has noted."""

    def __init__(self, noted: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.noted: list[Tensor] = []
        self.given = None if noted is None else iter(noted)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.detach:
            return func(*args, **(kwargs or {}))
        if self.given is not None:
            return next(self.given)
        self.noted.append(func(*args))
        return self.noted[-1]


def gradient(subject: Subject) -> str:
    """Compares autograd with differences of the loss along random directions, while all that is detached stays."""
    some = False
    for drift in (0.5, 2e-3):
        method, given = subject.make(), subject.probe(drift=drift)
        some = slopes_agree(method, given) or some
    if not some:
        raise Failed("no token has a gradient on an ordinary batch")
    return "is that of the loss, with what is detached held fixed"


STEP, DIRECTIONS = 1e-7, 6


def slopes_agree(method: Method, given: Probe) -> bool:
    """Refuses a gradient that is not that of the loss; says whether there is any."""
    batch, generator = given.batch, torch.Generator().manual_seed(0)
    signal = stepped(method, given, method.signal(given.before(method.needs), batch, [batch]), batch)
    logits_TV = given.logits_TV.clone().requires_grad_()

    def loss_at(z_TV: Tensor, seen: Detached) -> Tensor:
        with seen:
            return method.loss(given.during(method.needs, z_TV, batch.index_T), signal, batch)

    noting = Detached()
    loss = loss_at(logits_TV, noting)
    if not loss.requires_grad:
        return False
    (gradient_TV,) = torch.autograd.grad(loss, logits_TV, materialize_grads=True, allow_unused=True)
    if not torch.isfinite(gradient_TV).all():
        raise Failed("the gradient is not finite on an ordinary batch")
    for _ in range(DIRECTIONS):
        along_TV = torch.randn(logits_TV.shape, generator=generator, dtype=torch.float64)
        ahead, behind = (
            loss_at(given.logits_TV + sign * STEP * along_TV, Detached(noting.noted)).item() for sign in (1, -1)
        )
        measured, said = (ahead - behind) / (2 * STEP), (gradient_TV * along_TV).sum().item()
        if abs(measured - said) > 1e-5 * (gradient_TV.norm() * along_TV.norm()).item() + 1e-7:
            raise Failed(f"the loss moves by {measured:.5g} a step, and its gradient says {said:.5g}")
    return bool(gradient_TV.any())


def micro_batches(subject: Subject) -> str:
    for seed in range(2):
        given = subject.probe(seed)
        expected = outcome(subject.make(), given, updates=2)
        compare(expected, outcome(subject.make(), given, 2, unevenly), None, "in other micro-batches")
        compare(expected, outcome(subject.make(), given, 2, singly), None, "with each response alone")
    return "loss and gradient are the same in 1, 4 or 16 parts, one without tokens"


def order(subject: Subject) -> str:
    for seed in range(2):
        given, shuffled = subject.probe(seed), random.Random(seed)
        expected = outcome(subject.make(), given)
        groups = shuffled.sample(range(8), 8)
        within = [shuffled.sample(range(subject.size), subject.size) for _ in groups]
        moved = [g * subject.size + i for g, places in zip(groups, within, strict=True) for i in places]
        elsewhere(subject, given, expected, moved, "in another order of groups and responses")
        # Of equal ones the earlier may come first, in the order of the prompts: so those of a group stay in theirs.
        blocks = [g * subject.size + i for g in groups for i in range(subject.size)]
        equal = tied(given)
        elsewhere(subject, equal, outcome(subject.make(), equal), blocks, "in another order of groups, with ties")
        longer = replace(
            given.batch,
            sequences=[torch.cat([torch.full((5,), 2), tokens]) for tokens in given.batch.sequences],
            prompt_lengths_B=given.batch.prompt_lengths_B + 5,
        )
        compare(expected, outcome(subject.make(), replace(given, batch=longer)), None, "behind longer prompts")
    return "of groups and responses changes nothing, also with ties, nor do prompts"


def elsewhere(subject: Subject, given: Probe, expected: Outcome, rows: list[int], where: str) -> None:
    """Compares with the same responses in another order."""
    compare(expected, outcome(subject.make(), given.take(rows)), given.batch.take(rows).index_T, where)


def rewards(subject: Subject) -> str:
    """Shapes rewards, as a control may, and looks whether the advantages follow."""
    whole, given = subject.make(), subject.probe()
    method = Method(whole.base, (whole.base, whole.objective), {})  # a control may take other rewards
    shaped = replace(given.batch, rewards_B=given.batch.rewards_B - 0.2 * given.batch.finished_B)
    old = given.before(method.needs)
    one, other = (method.signal(old, batch, [batch]).advantages_T for batch in (given.batch, shaped))
    if torch.equal(one, other) == method.objective.takes_rewards:
        follow = "do not follow" if method.objective.takes_rewards else "follow"
        raise Failed(f"takes_rewards is {method.objective.takes_rewards}, and the advantages {follow} shaped rewards")
    return "shaped ones reach the advantages" if method.objective.takes_rewards else "only what is right counts"


def twice(subject: Subject) -> str:
    method, given = subject.make(), subject.probe()
    kept = given.cloned()
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        found.append(outcome(method, given, updates=2))
    one, other = found
    if one.loss != other.loss or not torch.equal(one.gradient_TV, other.gradient_TV):
        raise Failed("the same batch gives another loss or gradient the second time")
    columns = {
        **{f"old.{name}": (x, kept.before(method.needs).columns[name]) for name, x in one.signal.old.columns.items()},
        **{name: (x, vars(kept.batch)[name]) for name, x in vars(given.batch).items() if isinstance(x, Tensor)},
    }
    for name, (now, before) in columns.items():
        if not torch.equal(now, before):
            raise Failed(f"{name} was changed; a method must leave what it is given as it is")
    return "the same batch gives the same bits, and stays as it was"


def edges(subject: Subject) -> str:
    for name, method, given in subject.moments():
        try:
            found = outcome(method, given)
            heard = record_of_whole(method, given, found)
        except Exception as error:
            raise Failed(f"{kind_of(error)} where {name}") from error
        for what, x in (
            ("an advantage", found.signal.advantages_T),
            ("a weight", found.signal.weights_T),
            ("the loss", torch.tensor(found.loss)),
            ("the gradient", found.gradient_TV),
            *((f"the metric {key}", torch.tensor(value)) for key, value in heard.items()),
        ):
            if not torch.isfinite(x).all():
                raise Failed(f"{what} is not finite where {name}")
    return f"finite in {len(subject.edges)} rare kinds of batches, in float64 and float32"


def record_of_whole(method: Method, given: Probe, found: Outcome) -> dict[str, float]:
    """Returns the method's own numbers, and makes it say what it clips."""
    fixed = stepped(method, given, found.signal, given.batch)
    with torch.no_grad():
        now = given.during(method.needs, given.logits_TV, given.batch.index_T)
        for name, mask_T in method.touched(now, fixed, given.batch).items():
            if mask_T.dtype != torch.bool or mask_T.shape != given.batch.index_T.shape:
                raise Failed(f"{name} is no mask of the tokens")
    return method.metrics(found.signal, given.batch)


def factors(method: Method, given: Probe) -> dict[str, Tensor]:
    """Returns the weights and the gates of each control, as factors of single tokens."""
    batch = given.batch
    signal = method.signal(given.before(method.needs), batch, [batch])
    found = dict(signal.weights_by)
    fixed = stepped(method, given, signal, batch)
    with torch.no_grad():
        now = given.during(method.needs, given.logits_TV, batch.index_T)
        for name, control in method.controls.items():
            if overrides(control, "gate"):
                gate_T = torch.ones_like(signal.weights_T) * control.gate(method.view(name, now, fixed, batch))
                found[name] = found[name] * gate_T if name in found else gate_T
    return found


def weights(subject: Subject) -> str:
    seen = 0
    for name, method, given in subject.moments():
        for control, factor_T in factors(method, given).items():
            seen += 1
            if not torch.isfinite(factor_T).all():
                raise Failed(f"{control} gives a weight that is not finite where {name}")
            if (factor_T < 0).any():
                raise Failed(f"{control} gives a weight below 0 where {name}")
    return "0 or more, and finite" if seen else "there are none"


def denominators(subject: Subject) -> str:
    """Looks for a loss that is divided by what is kept."""
    dropped = 0
    for seed in range(3):
        method, given = subject.make(), subject.probe(seed)
        batch = given.batch
        signal = method.signal(given.before(method.needs), batch, [batch])
        if not any(control.reference_denominator for control in method.controls.values()):
            every_T = torch.ones_like(signal.weights_T)
            if not torch.equal(signal.scale_T, method.objective.scale(batch, every_T)):
                raise Failed("the scale of the loss depends on which tokens are dropped")
        for name, factor_T in factors(method, given).items():
            gone_T = factor_T == 0
            dropped += int(gone_T.sum())
            if gone_T.any() and not gone_T.all() and abs(factor_T.mean().item() - 1) < 1e-6:
                raise Failed(f"{name} drops tokens, and makes up for it in the weights of the others (their mean is 1)")
    return "count all tokens" + ("" if dropped else " (none was dropped)")


def memory(subject: Subject) -> str:
    first, given = subject.make(), subject.probe()
    start = json.dumps(first.state())
    for entropy in ENTROPIES:
        first.observe(record(first, given, entropy))
        state = first.state()
        second = subject.make()
        if json.dumps(second.state()) != start:
            raise Failed("a new method knows what another one has heard: the memory is shared")
        second.load_state(json.loads(json.dumps(state)))
        if second.state() != state:
            raise Failed("load_state does not bring back what state gave")
        for _ in range(2):
            one, other = outcome(first, given), outcome(second, given)
            if one.loss != other.loss or not torch.equal(one.gradient_TV, other.gradient_TV):
                raise Failed("after a checkpoint the method does something else: state leaves something out")
            probed = record(first, given, 0.7 * entropy)
            first.observe(probed)
            second.observe(probed)
            if first.state() != second.state():
                raise Failed("after a checkpoint the memory goes on differently: state leaves something out")
    kept = sorted(key for state in first.state().values() for key in state)
    return f"{', '.join(kept)}: the same after a checkpoint" if kept else "there is none"


# With others


def composition(subject: Subject) -> str:
    """Joins the method with every other objective and control."""
    own = subject.make()
    alone = STANDS_ON in own.named and not any(
        part.partition("(")[0].strip() == STANDS_ON for part in subject.spec.split("+")
    )
    works = refused = 0
    for name, kind in components(subject.table).items():
        if name in own.named or (issubclass(kind, Objective) and not alone):
            continue
        spec = f"{subject.spec}+{name}"
        try:
            method = Method.of(spec, subject.table)
        except UserError as error:
            if len(str(error)) > LONGEST_SENTENCE or "\n" in str(error):
                raise Failed(f"{spec} is refused in more than a sentence of {LONGEST_SENTENCE} characters") from error
            refused += 1
            continue
        try:
            found = outcome(method, subject.probe(size=max(subject.size, method.min_group)), updates=2)
        except Exception as error:
            raise Failed(f"{spec}: {kind_of(error)}") from error
        if not (math.isfinite(found.loss) and torch.isfinite(found.gradient_TV).all()):
            raise Failed(f"{spec}: the loss or its gradient is not finite")
        works += 1
    return f"works with {works} others" + (f", is refused with {refused} in a sentence" if refused else "")


@dataclass(frozen=True)
class Check:
    """A check by its function, which returns what it saw or raises Failed, and what to do where it fails."""

    run: Callable[[Subject], str]
    advice: str


CHECKS = {
    "needs": Check(needs, "declare in `needs` what the verbs read, and nothing else (entropy_now: without gradient)"),
    "gradient": Check(
        gradient,
        "leave out float(), item() and data, by which the present policy reaches the loss unseen by autograd; what "
        "shall have no gradient goes through detach()",
    ),
    "micro-batches": Check(
        micro_batches,
        "take no mean, maximum or count over the tokens of a view: what is of the batch belongs into marks (before the "
        "update) or step_marks (each mini-batch), and a part may have no tokens",
    ),
    "order": Check(
        order,
        "let no token depend on its place in the batch: break ties with batch.global_order, draw with batch.uniform_T",
    ),
    "rewards": Check(rewards, "set takes_rewards to whether `advantages` reads batch.rewards_B"),
    "twice": Check(
        twice, "draw with batch.uniform_T or uniform_B, change no tensor in place, and update a memory in observe alone"
    ),
    "edges": Check(edges, "clamp before exp, add a small number before dividing, raise min_group where one is too few"),
    "weights": Check(weights, "a weight says how much a token counts: 0 and more; a sign belongs into reshape"),
    "denominators": Check(
        denominators, "give kept tokens the weight 1; whoever wants the other denominator sets reference_denominator"
    ),
    "token weights": Check(token_weights, "set weighs_tokens = False in the objective"),
    "by response": Check(by_response, "set by_response = False, or give all tokens of a response one weight"),
    "silence": Check(silence, "set silent_without_signal = False"),
    "memory": Check(memory, "put all that observe changes into state, as numbers, and take it back in load_state"),
    "composition": Check(composition, "a verb must take any advantages; what cannot be joined is refused by UserError"),
}


def kind_of(error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    return said if isinstance(error, UserError | Failed) else f"{type(error).__name__}: {said}"


def finding(name: str, advice: str, run: Callable[[], str | tuple[str, dict[str, float]]]) -> Finding:
    """Runs a check; whatever a method does in it, it is a finding."""
    try:
        seen = run()
    except Exception as error:
        return Finding(name, False, kind_of(error), advice)
    said, numbers = seen if isinstance(seen, tuple) else (seen, {})
    return Finding(name, True, said, numbers=numbers)


def alone(spec: str, table: Table) -> list[Finding]:
    """Runs all checks that need one process and no model."""
    subject = Subject(spec, table)
    return [finding(name, each.advice, partial(each.run, subject)) for name, each in CHECKS.items()]
