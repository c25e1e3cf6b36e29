"""Makes a method of one objective and any number of entropy controls, joined by `+`.

The trainer calls a `Method` and knows no method by name. A component sees the statistics that it declares and no
others, so that what runs in one configuration runs in all.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.base import identities, registry
from harness.base.errors import UserError, one_of, shown
from harness.method import NEEDS, Component, Composition, Control, Objective, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats

Table = Mapping[str, "type[Component] | Composition"]
STANDS_ON = "grpo"  # the objective of a control that is named alone

# The columns of TokenStats that a component may use, with the needs of which any gives it each; none: it may always.
BEFORE: dict[str, tuple[str, ...]] = {
    "logp": (),
    "entropy": (),
    "sum_p2": ("sum_p2",),
    "sum_p2_logp": ("sum_p2",),
    "values": ("values",),
    "ref_logp": ("ref_logp",),
}
DURING: dict[str, tuple[str, ...]] = {
    "logp": (),
    "entropy": ("entropy_grad", "entropy_now"),
    "ref_logp": ("ref_logp",),
}


@dataclass(frozen=True)
class Signal:
    """Holds what is fixed before the first update on a rollout batch, token by token."""

    old: TokenStats
    advantages_T: Tensor
    weights_T: Tensor
    weights_by: dict[str, Tensor]  # each control's part of them
    marks: dict[str, dict[str, Tensor]]  # of each component, by its name
    scale_T: Tensor  # of the surrogate
    term_scale_T: Tensor  # of what is added to it: dropped tokens count here
    returns_T: Tensor | None  # for a critic

    def at(self, index_T: Tensor) -> Signal:
        """Returns the signal of some tokens."""

        def taken(x: Any) -> Any:
            if isinstance(x, dict):
                return {key: taken(value) for key, value in x.items()}
            return x if x is None or not x.ndim else x[index_T]

        return Signal(self.old.at(index_T), **{k: taken(x) for k, x in vars(self).items() if k != "old"})


class Method:
    """Joins an objective with its controls."""

    def __init__(self, name: str, base: tuple[str, Objective], controls: Mapping[str, Control]) -> None:
        self.name, self.controls = name, dict(controls)
        self.base, self.objective = base

    @classmethod
    def of(cls, spec: str, table: Table, shared: Mapping[str, Mapping[str, Any]] | None = None) -> Method:
        """Puts `ppo+clip_b(share=0.02)` together; a control named alone stands on grpo."""
        named = [
            (registry.parse(part)[0], registry.build("method", components(table), part, shared))
            for part in expanded(spec, table)
        ]
        if not any(isinstance(component, Objective) for _, component in named):
            named.append((STANDS_ON, registry.build("method", components(table), STANDS_ON, shared)))
        objectives = [(name, component) for name, component in named if isinstance(component, Objective)]
        controls = [(name, component) for name, component in named if isinstance(component, Control)]
        made_of = composed(spec, table)
        told = f"method {shown(spec)}" + (f", which is {made_of}," if made_of else "")
        if len(objectives) > 1:
            raise UserError(f"{told} has {len(objectives)} objectives; allowed: one, and any number of controls")
        types = [type(control) for _, control in controls]
        for number, (name, _) in enumerate(controls):
            if types[number] in types[:number]:
                raise UserError(f"{told} names control {name} twice")
        check_needs(*objectives[0], controls)
        check_weights(*objectives[0], controls)
        check_rewards(*objectives[0], controls)
        return cls(spec.replace(" ", ""), objectives[0], dict(controls))

    @property
    def named(self) -> dict[str, Component]:
        """Returns the components by their names, the objective first."""
        return {self.base: self.objective, **self.controls}

    @property
    def components(self) -> list[Component]:
        return list(self.named.values())

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

    @property
    def marks_steps(self) -> bool:
        """Says whether a component looks at each whole mini-batch before its update."""
        return any(overrides(component, "step_marks") for component in self.components)

    def identity(self) -> list[dict[str, Any]]:
        """Returns all that defines the method, for the hash of a cell."""
        return [identities.component_identity(component) for component in self.components]

    def rewarded(self, old: TokenStats, batch: TokenBatch) -> TokenBatch:
        """Returns the rollout batch with the rewards that advantages are taken of."""
        rewards_B = batch.rewards_B
        for control in self.controls.values():
            rewards_B = control.reward(rewards_B, self.before(control, old), batch)
        return dataclasses.replace(batch, rewards_B=rewards_B)

    def signal(self, old: TokenStats, batch: TokenBatch, minibatches: list[TokenBatch]) -> Signal:
        """Fixes, before the update, advantages over whole groups, weights and marks over the whole batch, and the scale
        of each step. Each component sees of `old` what it needs."""
        batch = self.rewarded(old, batch)
        advantages_T = self.objective.advantages(self.before(self.objective, old), batch)
        returns_T = None if old.values is None else advantages_T + old.values
        advantages_T = self.objective.whiten(advantages_T, batch)
        for control in self.controls.values():
            advantages_T = control.reshape(advantages_T, self.before(control, old), batch)
        every_T = old.logp.new_ones(old.logp.shape)
        weights_T, counted_T = every_T, every_T
        weights_by = {}
        for name, control in self.controls.items():
            if not overrides(control, "weights"):
                continue
            weights_by[name] = control.weights(self.before(control, old), advantages_T, batch) * every_T
            weights_T = weights_T * weights_by[name]
            if control.reference_denominator:
                counted_T = counted_T * (weights_by[name] != 0)
        marks = {
            name: dict(component.marks(self.before(component, old), advantages_T, batch))
            for name, component in self.named.items()
        }
        scale_T, term_scale_T = every_T.clone(), every_T.clone()
        for part in minibatches:
            scale_T[part.index_T] = self.objective.scale(part, counted_T[part.index_T])
            term_scale_T[part.index_T] = self.objective.scale(part, every_T[part.index_T])
        return Signal(old, advantages_T, weights_T, weights_by, marks, scale_T, term_scale_T, returns_T)

    def for_step(self, current: TokenStats, signal: Signal, minibatch: TokenBatch) -> Signal:
        """Returns the signal with the marks of one optimiser step; `current` is the policy on the whole mini-batch."""
        marks = dict(signal.marks)
        for name, component in self.named.items():
            if overrides(component, "step_marks"):
                found = component.step_marks(self.view(name, current, signal.at(minibatch.index_T), minibatch))
                marks[name] = {**marks[name], **{key: placed(x, signal, minibatch) for key, x in found.items()}}
        return dataclasses.replace(signal, marks=marks)

    def contributing(self, batch: TokenBatch, signal: Signal) -> TokenBatch:
        """Returns the responses of a mini-batch that may have a gradient: all, unless every component declares that
        those without signal have none. At least one is left, so that the optimiser steps whatever the rewards were."""
        if self.objective.kl_coef or not all(component.silent_without_signal for component in self.components):
            return batch
        live_T = (signal.advantages_T * signal.weights_T)[batch.index_T].abs()
        return batch.take(batch.per_sequence(live_T).nonzero().flatten().tolist() or [0])

    def loss(self, current: TokenStats, signal: Signal, batch: TokenBatch) -> Tensor:
        """Returns the loss of a part of a mini-batch; the losses of its parts add up to that of the mini-batch."""
        view = self.view(self.base, current, signal, batch)
        surrogate_T = self.objective.surrogate(view) * signal.weights_T
        term_T = surrogate_T.new_zeros(surrogate_T.shape) + self.objective.term(view)
        for name, control in self.controls.items():
            view = self.view(name, current, signal, batch)
            surrogate_T = surrogate_T * control.gate(view)
            term_T = term_T + control.term(view)
        return (signal.term_scale_T * term_T - signal.scale_T * surrogate_T).sum()

    def touched(self, current: TokenStats, signal: Signal, batch: TokenBatch) -> dict[str, Tensor]:
        """Says which tokens the objective clips (`clipped_low`, `clipped_high`) and which ones each gate closes."""
        view = self.view(self.base, current, signal, batch)
        low_T, high_T = self.objective.clips(view)
        found = {"clipped_low": low_T, "clipped_high": high_T}
        for name, control in self.controls.items():
            if overrides(control, "gate"):
                factor_T = signal.weights_T.new_ones(signal.weights_T.shape) * control.gate(
                    self.view(name, current, signal, batch)
                )
                found[f"closed_{name}"] = factor_T == 0
        return found

    def metrics(self, signal: Signal, batch: TokenBatch) -> dict[str, float]:
        """Returns what the components log of a rollout batch, before the update."""
        now = dataclasses.replace(signal.old, values=None)
        return {
            f"{name}/{key}": float(value)
            for name, component in self.named.items()
            for key, value in component.metrics(self.view(name, now, signal, batch)).items()
        }

    def update_metrics(self, current: TokenStats, signal: Signal, batch: TokenBatch) -> dict[str, Tensor]:
        """Return the columns that the components log of a part of a mini-batch, during the update."""
        zero_T = signal.weights_T.new_zeros(signal.weights_T.shape)
        columns: dict[str, Tensor] = {}
        for name, component in self.named.items():
            if overrides(component, "update_metrics"):
                logged = component.update_metrics(self.view(name, current, signal, batch))
                columns |= {f"{name}/{key}": zero_T + x for key, x in logged.items()}
        return columns

    def view(self, name: str, current: TokenStats, signal: Signal, batch: TokenBatch) -> View:
        """Returns what a component sees of some tokens."""
        component = self.named[name]
        return View(
            self.during(component, current),
            self.before(component, signal.old),
            signal.advantages_T,
            signal.marks[name],
            batch,
            signal.term_scale_T,
        )

    def before(self, component: Component, old: TokenStats) -> TokenStats:
        """Returns what a component may use of the policy before the update."""
        return granted(component, self.needs_of(component), old, BEFORE)

    def during(self, component: Component, current: TokenStats) -> TokenStats:
        """Returns what a component may use of the present policy."""
        needs = self.needs_of(component)
        if "entropy_now" in needs and "entropy_grad" not in needs:  # others may have asked for the gradient
            assert current.entropy is not None
            current = dataclasses.replace(current, entropy=current.entropy.detach())
        return granted(component, needs, current, DURING)

    def value_loss(self, values_T: Tensor, signal: Signal) -> Tensor:
        """Returns the critic's loss of a part of a mini-batch."""
        assert signal.old.values is not None
        assert signal.returns_T is not None
        loss_T = self.objective.value_loss(values_T, signal.old.values, signal.returns_T)
        return (signal.term_scale_T * loss_T).sum()

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Let each control hear the metrics of a step, its own also by the keys of its verbs: `key`, `updates/key`."""
        for name, control in self.controls.items():
            by_own_key = dict(metrics)
            for key, value in metrics.items():
                for logged, heard in ((f"{name}/", ""), (f"updates/{name}/", "updates/")):
                    if key.startswith(logged):
                        by_own_key[heard + key.removeprefix(logged)] = value
            control.observe(by_own_key)

    def state(self) -> dict[str, dict[str, float]]:
        return {name: control.state() for name, control in self.controls.items()}

    def load_state(self, state: Mapping[str, Mapping[str, float]]) -> None:
        for name, control in self.controls.items():
            control.load_state(state[name])


def components(table: Table) -> dict[str, type[Component]]:
    """Returns the objectives and controls of a table, without what is made of them."""
    return {name: entry for name, entry in table.items() if not isinstance(entry, Composition)}


def expanded(spec: str, table: Table, above: tuple[str, ...] = ()) -> list[str]:
    """Returns the parts of a spec, with those of a composition in the place of its name."""
    parts = []
    for part in registry.split(spec, "+"):
        name, options = registry.parse(part)
        entry = table.get(name)
        if not isinstance(entry, Composition):
            if entry is None:
                registry.known("method", table, name)
            parts.append(part)
        elif options:
            raise UserError(f"method {name} stands for {entry.spec} and has no options; write that out with yours")
        elif name in above:
            raise UserError(f"method {name} stands for {entry.spec}, and so for itself; compose it of others")
        else:
            parts += expanded(entry.spec, table, (*above, name))
    return parts


def composed(spec: str, table: Table) -> str | None:
    """Returns the spec with compositions written out, or None where it names none."""
    parts = [part.strip() for part in registry.split(spec, "+")]
    made_of = [part.strip() for part in expanded(spec, table)]
    return None if made_of == parts else "+".join(made_of)


def overrides(component: Component, verb: str) -> bool:
    kind = next(cls for cls in (Objective, Control) if isinstance(component, cls))
    return getattr(type(component), verb) is not getattr(kind, verb)


def placed(x: Tensor, signal: Signal, minibatch: TokenBatch) -> Tensor:
    """Returns the mark of a mini-batch's tokens as one of the whole batch's, of which the others are not asked for."""
    if not x.ndim:
        return x
    whole_T = x.new_zeros(signal.advantages_T.shape)
    whole_T[minibatch.index_T] = x
    return whole_T


def check_needs(base: str, objective: Objective, controls: list[tuple[str, Control]]) -> None:
    for name, component in [(base, objective), *controls]:
        if not isinstance(component.needs, frozenset):
            raise UserError(
                f"needs of method {name} is {component.needs!r}; needs must be a frozenset of names, for example "
                "frozenset({'sum_p2'})"
            )
        for need in component.needs:
            one_of(f"a name in needs of method {name}", need, tuple(NEEDS))
    if "values" not in objective.needs:
        for name, control in controls:
            if "values" in control.needs:
                raise UserError(
                    f"control {name} needs values, and objective {base} has no critic that gives them; allowed: an "
                    "objective that needs values itself, for example ppo"
                )
    elif "critic_lr" not in vars(objective) or type(objective).value_loss is Objective.value_loss:
        raise UserError(f"objective {base} needs values; so it must have an option critic_lr and the verb value_loss")


def check_weights(base: str, objective: Objective, controls: list[tuple[str, Control]]) -> None:
    for name, control in controls:
        weighing = [verb for verb in ("reshape", "weights", "gate") if overrides(control, verb)]
        if weighing and not control.by_response:
            check_token_weights(f"control {name}", base, objective, "controls that weigh whole responses, or none")


def check_token_weights(whose: str, base: str, objective: Objective, allowed: str) -> None:
    """Refuses to weigh single tokens where a response is one product of all its tokens."""
    if not objective.weighs_tokens:
        raise UserError(
            f"{whose} weighs single tokens, and objective {base} takes a response as one product of them all; "
            f"allowed with {base}: {allowed}"
        )


def check_rewards(base: str, objective: Objective, controls: list[tuple[str, Control]]) -> None:
    """Refuses to shape rewards that nobody looks at."""
    for name, control in controls:
        if overrides(control, "reward") and not objective.takes_rewards:
            raise UserError(
                f"control {name} shapes rewards, and objective {base} asks which responses are right, whatever their "
                f"reward; allowed with {base}: controls that leave rewards as they are, or none"
            )
    shaping = [(name, control) for name, control in controls if overrides(control, "reward")]
    for (before, _), (name, control) in itertools.pairwise(shaping):
        if control.replaces_rewards:
            raise UserError(
                f"control {name} replaces all rewards, and so takes away what control {before} made of them; allowed: "
                f"{name} before {before}, or without it"
            )


def granted(
    component: Component, needs: frozenset[str], stats: TokenStats, columns: Mapping[str, tuple[str, ...]]
) -> TokenStats:
    """Returns the statistics that a component may use; the use of another one says what to declare."""

    def refusal(column: str) -> str:
        user = type(component).__name__
        if column not in columns:
            return f"{user} uses current.{column}, which nobody computes; allowed: old.{column}, from before the update"
        declared = ", ".join(sorted(repr(need) for need in {*component.needs, columns[column][0]}))
        return f"{user} uses {column}, which it does not need; declare needs = frozenset({{{declared}}})"

    return stats.only([name for name, any_of in columns.items() if not any_of or needs & set(any_of)], refusal)
