"""Makes a method of one objective and any number of entropy controls, joined by `+`.

The trainer calls a `Method` and knows no method by name. A component sees the statistics that it declares and no
others, so that what runs in one configuration runs in all. Objectives and controls are frozen dataclasses of their
hyper-parameters (the only place of their defaults) with pure functions on flat tokens (see harness/batch.py). They
use tensor methods alone, so that planning and listing need no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from harness.base import identities, registry
from harness.base.errors import UserError, one_of
from harness.base.schema import check, choice, number

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats


# What the trainer computes for those that need it: a critic's values, log p of the model before training, the sums over
# squared probabilities, and H in the loss, with gradient.
NEEDS = ("values", "ref_logp", "sum_p2", "entropy_grad")
# The columns of TokenStats that a component may use, with the need that gives it each; None: it may always.
BEFORE = {
    "logp": None,
    "entropy": None,
    "sum_p2": "sum_p2",
    "sum_p2_logp": "sum_p2",
    "values": "values",
    "ref_logp": "ref_logp",
}
DURING = {"logp": None, "entropy": "entropy_grad", "ref_logp": "ref_logp"}


@dataclass(frozen=True)
class Component:
    source: ClassVar[str] = ""  # the paper
    needs: ClassVar[frozenset[str]] = frozenset()  # some of NEEDS
    min_group: ClassVar[int] = 1  # responses to a prompt without which it has nothing to learn from
    # Whether a token of zero advantage or zero weight adds nothing to the loss, so that responses of such tokens alone
    # need not be computed. A class that overrides `surrogate` or `term` has to declare it anew.
    silent_without_signal: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Takes back what was declared of a verb that the class overrides."""
        super().__init_subclass__()
        if {"surrogate", "term"} & vars(cls).keys() and "silent_without_signal" not in vars(cls):
            cls.silent_without_signal = False

    def __post_init__(self) -> None:
        check(type(self), vars(self), f"{type(self).__name__}.")


@dataclass(frozen=True)
class Objective(Component):
    """Gives a method its advantages and its surrogate. Its options are shared by every objective."""

    clip_low: float = number(0.2, least=0)
    clip_high: float = number(0.2, least=0)
    # Bounds the loss of a negative token, as a multiple of |A|; null: nothing does.
    dual_clip: float | None = number(3.0, least=1)
    normalise: str = choice("token", ("token", "sequence", "constant"))  # what a response's loss is divided by
    kl_coef: float = number(0.0, least=0)  # weight of the KL divergence to the model before training
    kl_estimator: str = choice("k2", ("k2", "k3"))  # k2 has the gradient of the reverse KL, k3 its value without bias

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        """Returns the advantage of each token."""
        raise NotImplementedError

    def whiten(self, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        """Returns the advantages as the surrogate takes them; a critic learns from them as they were before."""
        return advantages_T

    def surrogate(self, current: TokenStats, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        """Returns what is maximised, token by token: by default PPO's clipped ratio times the advantage."""
        ratio_T = (current.logp - old.logp).exp()
        bound_T = ratio_T.detach().clamp(1 - self.clip_low, 1 + self.clip_high)
        clipped_T = (ratio_T > bound_T) & (advantages_T > 0) | (ratio_T < bound_T) & (advantages_T < 0)
        factor_T = self.clipped(ratio_T, bound_T).where(clipped_T, ratio_T)
        if self.dual_clip is not None:
            factor_T = factor_T.clamp(max=self.dual_clip).where(advantages_T < 0, factor_T)
        return factor_T * advantages_T

    def clipped(self, ratio_T: Tensor, bound_T: Tensor) -> Tensor:
        """Returns what stands for the ratio of a token beyond the clip: by default the bound, which has no gradient."""
        return bound_T

    def value_loss(self, values_T: Tensor, old_values_T: Tensor, returns_T: Tensor) -> Tensor:
        """Returns the critic's loss, token by token; only objectives that need values have one."""
        raise NotImplementedError

    def scale(self, batch: TokenBatch, counted_T: Tensor) -> Tensor:
        """Returns each token's factor in the loss of one optimiser step; denominators count those of `counted_T`."""
        if self.normalise == "token":
            return counted_T / max(batch.global_count(counted_T), 1.0)
        if self.normalise == "sequence":
            lengths_B = batch.per_sequence(counted_T).clamp(min=1)
            return counted_T / (batch.global_responses() * lengths_B)[batch.sequence_T]
        return counted_T / (batch.global_responses() * batch.budget)

    def divergence(self, current: TokenStats) -> Tensor:
        """Estimates the KL divergence to the model before training at each token."""
        assert current.ref_logp is not None
        difference_T = current.ref_logp - current.logp
        if self.kl_estimator == "k2":
            return 0.5 * difference_T**2
        return difference_T.exp() - difference_T - 1


@dataclass(frozen=True)
class Control(Component):
    """Controls the entropy. A verb that it does not override leaves things as they are."""

    silent_without_signal: ClassVar[bool] = True  # but not of one that overrides `term` and does not say so

    # Forget dropped tokens in the denominator of the loss too, as in the authors' code of some methods.
    reference_denominator: bool = dataclasses.field(default=False, kw_only=True)

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        """Returns other advantages, before the update."""
        return advantages_T

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor | float:
        """Says whose gradient counts, and how much (0 drops a token); before the update, on the whole rollout batch."""
        return 1.0

    def gate(self, current: TokenStats, old: TokenStats, advantages_T: Tensor) -> Tensor | float:
        """Returns a factor of each token's surrogate that may depend on the present policy."""
        return 1.0

    def term(self, current: TokenStats, old: TokenStats, advantages_T: Tensor) -> Tensor | float:
        """Returns a loss of its own, which is added to each token's."""
        return 0.0

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Hears the metrics of a step that is over; a control with a memory updates it here."""

    def state(self) -> dict[str, float]:
        """Returns the memory, for the checkpoint and the log."""
        return {}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Takes over a memory that `state` has returned."""
        assert not state, f"{type(self).__name__} has no memory"


@dataclass(frozen=True)
class Signal:
    """Holds what is fixed before the first update on a rollout batch, token by token."""

    old: TokenStats
    advantages_T: Tensor
    weights_T: Tensor
    scale_T: Tensor  # of the surrogate
    term_scale_T: Tensor  # of what is added to it: dropped tokens count here
    returns_T: Tensor | None  # for a critic

    def at(self, index_T: Tensor) -> Signal:
        """Returns the signal of some tokens."""
        taken: dict[str, Any] = {k: None if x is None else x[index_T] for k, x in vars(self).items() if k != "old"}
        return Signal(self.old.at(index_T), **taken)


class Method:
    """Joins an objective with its controls."""

    def __init__(self, name: str, objective: Objective, controls: list[Control]) -> None:
        self.name, self.objective, self.controls = name, objective, controls

    @classmethod
    def of(
        cls, spec: str, table: Mapping[str, type[Component]], shared: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Method:
        """Puts `ppo+clip_b(share=0.02)` together; a control named alone stands on grpo."""
        parts = registry.split(spec, "+")
        named = [(registry.parse(part)[0], registry.build("method", table, part, shared)) for part in parts]
        if not any(isinstance(component, Objective) for _, component in named):
            named.append(("grpo", registry.build("method", table, "grpo", shared)))
        objectives = [(name, component) for name, component in named if isinstance(component, Objective)]
        controls = [(name, component) for name, component in named if isinstance(component, Control)]
        if len(objectives) > 1:
            raise UserError(
                f"method {spec!r} has {len(objectives)} objectives; allowed: one, and any number of controls"
            )
        types = [type(control) for _, control in controls]
        if len(set(types)) < len(types):
            raise UserError(f"method {spec!r} names a control twice")
        check_needs(*objectives[0], controls)
        return cls(spec.replace(" ", ""), objectives[0][1], [control for _, control in controls])

    @property
    def components(self) -> list[Component]:
        return [self.objective, *self.controls]

    @property
    def needs(self) -> frozenset[str]:
        """Returns what the trainer must compute beyond log p, and the entropy before the update."""
        return frozenset[str]().union(*map(self.needs_of, self.components))

    def needs_of(self, component: Component) -> frozenset[str]:
        kl = component is self.objective and self.objective.kl_coef
        return component.needs | {"ref_logp"} if kl else component.needs

    @property
    def min_group(self) -> int:
        return max(component.min_group for component in self.components)

    def identity(self) -> list[dict[str, Any]]:
        """Returns all that defines the method, for the hash of a cell."""
        return [identities.of(component) for component in self.components]

    def signal(self, old: TokenStats, batch: TokenBatch, minibatches: list[TokenBatch]) -> Signal:
        """Fixes, before the update, advantages over whole groups, weights over the whole batch, and the scale of each
        step. Each component sees of `old` what it needs."""
        advantages_T = self.objective.advantages(self.before(self.objective, old), batch)
        returns_T = None if old.values is None else advantages_T + old.values
        advantages_T = self.objective.whiten(advantages_T, batch)
        for control in self.controls:
            advantages_T = control.reshape(advantages_T, self.before(control, old), batch)
        every_T = old.logp.new_ones(old.logp.shape)
        weights_T, counted_T = every_T, every_T
        for control in self.controls:
            weight_T = control.weights(self.before(control, old), advantages_T, batch) * every_T
            weights_T = weights_T * weight_T
            if control.reference_denominator:
                counted_T = counted_T * (weight_T != 0)
        scale_T, term_scale_T = every_T.clone(), every_T.clone()
        for part in minibatches:
            scale_T[part.index_T] = self.objective.scale(part, counted_T[part.index_T])
            term_scale_T[part.index_T] = self.objective.scale(part, every_T[part.index_T])
        return Signal(old, advantages_T, weights_T, scale_T, term_scale_T, returns_T)

    def contributing(self, batch: TokenBatch, signal: Signal) -> TokenBatch:
        """Returns the responses of a mini-batch that may have a gradient: all, unless every component declares that
        those without signal have none. At least one is left, so that the optimiser steps whatever the rewards were."""
        if self.objective.kl_coef or not all(component.silent_without_signal for component in self.components):
            return batch
        live_T = (signal.advantages_T * signal.weights_T)[batch.index_T].abs()
        return batch.take(batch.per_sequence(live_T).nonzero().flatten().tolist() or [0])

    def loss(self, current: TokenStats, signal: Signal, batch: TokenBatch) -> Tensor:
        """Returns the loss of a part of a mini-batch; the losses of its parts add up to that of the mini-batch. Each
        component sees of `current` and of `signal.old` what it needs."""
        advantages_T = signal.advantages_T
        now, before = self.during(self.objective, current), self.before(self.objective, signal.old)
        surrogate_T = self.objective.surrogate(now, before, advantages_T, batch) * signal.weights_T
        term_T = surrogate_T.new_zeros(surrogate_T.shape)
        for control in self.controls:
            now, before = self.during(control, current), self.before(control, signal.old)
            surrogate_T = surrogate_T * control.gate(now, before, advantages_T)
            term_T = term_T + control.term(now, before, advantages_T)
        if self.objective.kl_coef:
            now = self.during(self.objective, current)
            term_T = term_T + self.objective.kl_coef * self.objective.divergence(now)
        return (signal.term_scale_T * term_T - signal.scale_T * surrogate_T).sum()

    def before(self, component: Component, old: TokenStats) -> TokenStats:
        """Returns what a component may use of the policy before the update."""
        return granted(component, self.needs_of(component), old, BEFORE)

    def during(self, component: Component, current: TokenStats) -> TokenStats:
        """Returns what a component may use of the present policy."""
        return granted(component, self.needs_of(component), current, DURING)

    def value_loss(self, values_T: Tensor, signal: Signal) -> Tensor:
        """Returns the critic's loss of a part of a mini-batch."""
        assert signal.old.values is not None
        assert signal.returns_T is not None
        loss_T = self.objective.value_loss(values_T, signal.old.values, signal.returns_T)
        return (signal.term_scale_T * loss_T).sum()

    def observe(self, metrics: Mapping[str, float]) -> None:
        for control in self.controls:
            control.observe(metrics)

    def state(self) -> dict[str, dict[str, float]]:
        return {type(control).__name__: control.state() for control in self.controls}

    def load_state(self, state: Mapping[str, Mapping[str, float]]) -> None:
        for control in self.controls:
            control.load_state(state[type(control).__name__])


def check_needs(base: str, objective: Objective, controls: list[tuple[str, Control]]) -> None:
    for name, component in [(base, objective), *controls]:
        if not isinstance(component.needs, frozenset):
            raise UserError(
                f"needs of method {name} is {component.needs!r}; needs must be a frozenset of names, for example "
                "frozenset({'sum_p2'})"
            )
        for need in component.needs:
            one_of(f"a name in needs of method {name}", need, NEEDS)
    if "values" not in objective.needs:
        for name, control in controls:
            if "values" in control.needs:
                raise UserError(
                    f"control {name} needs values, and objective {base} has no critic that gives them; allowed: an "
                    "objective that needs values itself, for example ppo"
                )
    elif "critic_lr" not in vars(objective) or type(objective).value_loss is Objective.value_loss:
        raise UserError(f"objective {base} needs values; so it must have an option critic_lr and the verb value_loss")


def granted(
    component: Component, needs: frozenset[str], stats: TokenStats, columns: Mapping[str, str | None]
) -> TokenStats:
    """Returns the statistics that a component may use; the use of another one says what to declare."""

    def refusal(column: str) -> str:
        user = type(component).__name__
        if column not in columns:
            return f"{user} uses current.{column}, which nobody computes; allowed: old.{column}, from before the update"
        declared = ", ".join(sorted(repr(need) for need in {*component.needs, columns[column]}))
        return f"{user} uses {column}, which it does not need; declare needs = frozenset({{{declared}}})"

    return stats.only([name for name, need in columns.items() if need is None or need in needs], refusal)
