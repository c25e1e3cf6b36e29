"""Checks of what a method computes: gradients, and all that must make no difference to them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from harness.composition import Method, Signal, overrides
from harness.conformance.probe import Outcome, Probe, Split, outcome, stepped, tied, whole
from harness.conformance.subject import (
    CLOSE,
    ENTROPIES,
    Failed,
    Subject,
    compare,
    kind_of,
    record,
    require_finite,
    same,
    singly,
    unevenly,
)
from harness.tokens.metrics import of_updates


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
    require_finite("the gradient", gradient_TV)
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
        logged, in_parts = (
            of_updates([logged_columns(subject.make(), given, expected.signal, split)]) for split in (whole, unevenly)
        )
        for name, number in logged.items():
            if not math.isclose(number, in_parts[name], rel_tol=CLOSE, abs_tol=1e-12):
                raise Failed(f"the metric {name} is another one in other micro-batches")
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
    ignores = method.objective.ignores_rewards
    if torch.equal(one, other) != ignores:
        follow = "follow" if ignores else "do not follow"
        raise Failed(f"ignores_rewards is {ignores}, and the advantages {follow} shaped rewards")
    return "only what is right counts" if ignores else "shaped ones reach the advantages"


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
    if not same(one, other):
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
    logged = {**method.metrics(found.signal, given.batch), **of_updates([logged_columns(method, given, found.signal)])}
    fixed = stepped(method, given, found.signal, given.batch)
    with torch.no_grad():
        now = given.during(method.needs, given.logits_TV, given.batch.index_T)
        for name, mask_T in method.touched(now, fixed, given.batch).items():
            if mask_T.dtype != torch.bool or mask_T.shape != given.batch.index_T.shape:
                raise Failed(f"{name} is no mask of the tokens")
    return logged


def logged_columns(method: Method, given: Probe, signal: Signal, split: Split = whole) -> dict[str, Tensor]:
    """Return the columns that a method logs of an update that is computed in parts."""
    fixed = stepped(method, given, signal, given.batch)
    by_part = []
    with torch.no_grad():
        for part in split(given.batch):
            now = given.during(method.needs, given.logits_TV, part.index_T)
            by_part.append(method.update_metrics(now, fixed.at(part.index_T), part))
    return {name: torch.cat([columns[name] for columns in by_part]) for name in by_part[0]}


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
    """Compare, step by step, a method with another one that took over its checkpoint."""
    first = subject.make()
    start = json.dumps(first.state())
    for number, entropy in enumerate(ENTROPIES):
        first.observe(record(first, subject.step(number), entropy))
        state = first.state()
        second = subject.make()
        if json.dumps(second.state()) != start:
            raise Failed("a new method knows what another one has heard: the memory is shared")
        second.load_state(json.loads(json.dumps(state)))
        if second.state() != state:
            raise Failed("a loaded memory is not the one that was saved")
        # On batches that neither has heard of: a memory of a batch's own numbers, forgotten, is the same on that batch.
        for given in (subject.step(number + 1), subject.step(number + 2)):
            if not same(outcome(first, given), outcome(second, given)):
                raise Failed("after a checkpoint the method does something else: state leaves something out")
            probed = record(first, given, 0.7 * entropy)
            first.observe(probed)
            second.observe(probed)
            if first.state() != second.state():
                raise Failed("after a checkpoint the memory goes on differently: state leaves something out")
    kept = sorted(key for state in first.state().values() for key in state)
    return f"{', '.join(kept)}: the same after a checkpoint" if kept else "there is none"
