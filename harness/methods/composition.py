"""A method: one objective and any number of entropy controls, joined by `+`.

The trainer calls a `Method` and knows no method by name. A component sees only the statistics that it declares, so
that a method that runs in one configuration runs in all.

    signal = method.signal(old, batch, minibatches)     # once per rollout batch, on all of its tokens, on all ranks
    for minibatch in minibatches:
        signal = method.for_step(now, signal, minibatch)    # only where a component has `step_marks`
        loss = method.loss(current, signal, minibatch)      # or of its parts, which add up to the same
    method.observe(metrics)                             # memory
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.base import identities, registry
from harness.base.errors import UserError, one_of, shown
from harness.methods.schedules import Linear, scheduled
from harness.methods.verbs import NEEDS, Component, Composition, Control, Objective, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats

Table = Mapping[str, "type[Component] | Composition"]
DEFAULT_OBJECTIVE = "grpo"  # the objective of a control that is named alone

# The columns of TokenStats that a component may read, each with the needs that give access to it. Without any, every
# component may read it.
BEFORE: dict[str, tuple[str, ...]] = {
    "logp": (),
    "entropy": (),
    "sum_p2": ("sum_p2",),
    "sum_p2_logp": ("sum_p2",),
    "values": ("values",),
    "ref_logp": ("ref_logp",),
    "min_p_logp": ("min_p",),
    "likeliest_entropy": ("likeliest_entropy",),
}
DURING: dict[str, tuple[str, ...]] = {
    "logp": (),
    "entropy": ("entropy_grad", "entropy_now"),
    "ref_logp": ("ref_logp",),
    "likeliest_entropy": ("likeliest_entropy",),
}


@dataclass(frozen=True)
class Signal:
    """Everything that is fixed before the first update on a rollout batch, token by token."""

    old: TokenStats
    advantages_T: Tensor
    weights_T: Tensor
    weights_by: dict[str, Tensor]  # the factors of weights_T, by the names of their controls
    marks: dict[str, dict[str, Tensor]]  # by the names of components
    scale_T: Tensor  # the factor of the surrogate in the loss
    term_scale_T: Tensor  # the factor of added terms, in whose denominator dropped tokens count
    returns_T: Tensor | None  # the critic's targets

    def at(self, index_T: Tensor) -> Signal:
        """Return the signal of the tokens with these places in the rollout batch."""
        marks: dict[str, dict[str, Tensor]] = {}
        for name, own_marks in self.marks.items():
            # A mark of one number holds for all tokens.
            marks[name] = {key: x[index_T] if x.ndim else x for key, x in own_marks.items()}
        weights_by = {name: weights_T[index_T] for name, weights_T in self.weights_by.items()}
        return Signal(
            old=self.old.at(index_T),
            advantages_T=self.advantages_T[index_T],
            weights_T=self.weights_T[index_T],
            weights_by=weights_by,
            marks=marks,
            scale_T=self.scale_T[index_T],
            term_scale_T=self.term_scale_T[index_T],
            returns_T=None if self.returns_T is None else self.returns_T[index_T],
        )

    def by_micro_batch(self, parts: Sequence[TokenBatch], responses: int) -> Signal:
        """Return the signal for a loss that is a mean over the tokens of each part, weighted by its responses.

        `parts` are the micro-batches of an update, which has this many responses on all ranks.
        """
        scale_T, term_scale_T = self.scale_T.clone(), self.term_scale_T.clone()
        for x_T in (scale_T, term_scale_T):
            for part in parts:
                counted_T = (x_T[part.index_T] > 0).to(x_T.dtype)
                x_T[part.index_T] = counted_T / counted_T.sum().clamp(min=1) * len(part) / responses
        return dataclasses.replace(self, scale_T=scale_T, term_scale_T=term_scale_T)


class Observed(dict[str, float]):
    """The metrics of a step, as a control observes them."""

    def __missing__(self, key: str) -> float:
        raise UserError(
            f"a control observes {key!r}, which is not among the metrics that it gets; allowed outside of entrobench's "
            "own trainer: the ones of `entrobench.Method.metrics`"
        )


class Method:
    """An objective joined with its controls."""

    def __init__(
        self,
        name: str,
        base: tuple[str, Objective],
        controls: Mapping[str, Control],
        schedules: Mapping[str, Mapping[str, Linear]] | None = None,
    ) -> None:
        self.name, self.controls = name, dict(controls)
        self.base, self.objective = base
        # The options that change over the steps, of each component.
        self.schedules = {component: (schedules or {}).get(component, {}) for component in self.named}

    @classmethod
    def of(cls, spec: str, table: Table, shared: Mapping[str, Mapping[str, Any]] | None = None) -> Method:
        """Return the method of a spec such as `ppo+clip_b(share=0.02)`; a control named alone gets grpo."""
        classes = method_classes(table)
        objectives: list[tuple[str, Objective]] = []
        controls: list[tuple[str, Control]] = []
        schedules: dict[str, dict[str, Linear]] = {}
        parts = expanded(spec, table)
        if not any(issubclass(classes[registry.parse(part)[0]], Objective) for part in parts):
            parts.append(DEFAULT_OBJECTIVE)
        for part in parts:
            name, options = registry.parse(part)
            values = {**(shared or {}).get(name, {}), **options}
            component, schedules[name] = scheduled(classes[name], name, values)
            if isinstance(component, Objective):
                objectives.append((name, component))
            elif isinstance(component, Control):
                controls.append((name, component))
        written_out = composed(spec, table)
        described = f"method {shown(spec)}"
        if written_out:
            described += f", which is {written_out},"
        if len(objectives) > 1:
            raise UserError(f"{described} has {len(objectives)} objectives; allowed: one, and any number of controls")
        kinds = set()
        for name, control in controls:
            if type(control) in kinds:
                raise UserError(f"{described} names control {name} twice")
            kinds.add(type(control))
        base, objective = objectives[0]
        check_needs(base, objective, controls)
        check_unit(base, objective, controls)
        check_shaping(base, objective, controls)
        return cls(spec.replace(" ", ""), (base, objective), dict(controls), schedules)

    @property
    def named(self) -> dict[str, Component]:
        """The components by their names, the objective first."""
        return {self.base: self.objective, **self.controls}

    @property
    def components(self) -> list[Component]:
        return list(self.named.values())

    @property
    def needs(self) -> frozenset[str]:
        """The statistics that the trainer must compute beyond log p and the entropy before the update."""
        return frozenset[str]().union(*map(self.needs_of, self.components))

    def needs_of(self, component: Component) -> frozenset[str]:
        if component is self.objective and self.has_kl_term:
            return component.needs | {"ref_logp"}  # by `Objective.divergence`, so that no objective has to declare it
        return component.needs

    @property
    def has_kl_term(self) -> bool:
        """Whether the objective has a KL term at some step."""
        return bool(self.objective.kl_coef) or "kl_coef" in self.schedules[self.base]

    @property
    def reads_answers(self) -> bool:
        """Whether a component reads which answers of a group are equal."""
        return any(component.reads_answers for component in self.components)

    @property
    def reads_base(self) -> bool:
        """Whether a component reads how often the model before training was right."""
        return any(component.reads_base for component in self.components)

    @property
    def base_share(self) -> float:
        """Right responses of the model before training that join each optimizer step, as a share of its responses."""
        return max([0.0, *(control.base_share for control in self.controls.values())])

    @property
    def needs_filter(self) -> bool:
        """Whether it needs what `train.filter` finds out about the model before training."""
        return self.reads_base or self.base_share > 0

    @property
    def reads_sampler(self) -> bool:
        """Whether a component reads the policy that sampled."""
        return any(component.reads_sampler for component in self.components)

    @property
    def min_group(self) -> int:
        return max(component.min_group for component in self.components)

    @property
    def marks_steps(self) -> bool:
        """True if a component marks tokens of each whole mini-batch before its update."""
        return any(overrides(component, "step_marks") for component in self.components)

    def learning_rate(self, default: float) -> float:
        """Return the learning rate of the policy; `default`: the one of the configuration."""
        return default if self.objective.lr is None else self.objective.lr

    def identity(self, default_lr: float | None = None) -> list[dict[str, Any]]:
        """Return everything that defines the method, for the hash of a cell.

        `default_lr`: the learning rate of the configuration. A method that sets the same one is the same method, and
        methods of versions without this option keep their identities; so `lr` is left out wherever it changes nothing.
        """
        of_objective, *of_controls = [self.options(name) for name in self.named]
        if self.objective.lr in (None, default_lr):
            del of_objective["lr"]
        return [of_objective, *of_controls]

    def options(self, name: str) -> dict[str, Any]:
        """Return the class and the options of a component, with schedules in place of changing numbers."""
        changing = {option: str(schedule) for option, schedule in self.schedules[name].items()}
        return identities.component_identity(self.named[name]) | changing

    def start_step(self, step: int, steps: int) -> None:
        """Give options with a schedule their values at a training step, from 1 to `steps`."""
        share = (step - 1) / max(steps - 1, 1)
        for name, schedules in self.schedules.items():
            for option, schedule in schedules.items():
                # In place, since a component keeps its memory; it is frozen for its own verbs.
                object.__setattr__(self.named[name], option, schedule.at(share))

    # Before the update, on the whole rollout batch of all ranks

    def signal(self, old: TokenStats, batch: TokenBatch, minibatches: list[TokenBatch]) -> Signal:
        """Return advantages, weights, marks and scales, fixed before the first update.

        The order matters: rewards before advantages, since a group's mean and deviation are those of the shaped
        rewards; weights after all reshaping, so that the sign of A by which a control drops tokens is the one that they
        are trained with, in any order of the controls in the spec.
        """
        batch = self.rewarded(old, batch)
        seen = self.before(self.objective, old)
        advantages_T = self.objective.advantages(seen, batch)
        returns_T = self.objective.returns(seen, batch) if "values" in self.objective.needs else None
        for control in self.controls.values():
            advantages_T = control.reshape(advantages_T, self.before(control, old), batch)

        weights_by = self.control_weights(old, advantages_T, batch)
        every_T = old.logp.new_ones(old.logp.shape)
        weights_T, counted_T = every_T, every_T
        for name, factor_T in weights_by.items():
            weights_T = weights_T * factor_T
            if self.controls[name].reference_denominator:
                counted_T = counted_T * (factor_T != 0)

        marks = {}
        for name, component in self.named.items():
            marks[name] = dict(component.marks(self.before(component, old), advantages_T, batch))

        # Each mini-batch has its own denominators, counted over all ranks: `scale` is a collective, so that all ranks
        # must have equally many mini-batches.
        scale_T, term_scale_T = every_T.clone(), every_T.clone()
        for part in minibatches:
            scale_T[part.index_T] = self.objective.scale(part, counted_T[part.index_T])
            term_scale_T[part.index_T] = self.objective.scale(part, every_T[part.index_T])
        return Signal(old, advantages_T, weights_T, weights_by, marks, scale_T, term_scale_T, returns_T)

    def rewarded(self, old: TokenStats, batch: TokenBatch) -> TokenBatch:
        """Return the rollout batch with the rewards from which advantages are computed."""
        rewards_B = batch.rewards_B
        for control in self.controls.values():
            rewards_B = control.reward(rewards_B, self.before(control, old), batch)
        return dataclasses.replace(batch, rewards_B=rewards_B)

    def control_weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> dict[str, Tensor]:
        """Return the weights of each control that overrides `weights`; all controls see the same advantages."""
        every_T = old.logp.new_ones(old.logp.shape)  # by which a mask or one number becomes a column
        factors = {}
        for name, control in self.controls.items():
            if overrides(control, "weights"):
                factors[name] = control.weights(self.before(control, old), advantages_T, batch) * every_T
        return factors

    def metrics(self, signal: Signal, batch: TokenBatch) -> dict[str, float]:
        """Return the metrics of all components, from the rollout batch before the update, and options that change."""
        now = dataclasses.replace(signal.old, values=None)
        record = {}
        for name, component in self.named.items():
            for key, value in component.metrics(self.view(name, now, signal, batch)).items():
                record[f"{name}/{key}"] = float(value)
            for option in self.schedules[name]:
                record[f"{name}/{option}"] = vars(component)[option]
        return record

    # Each optimizer step, on a mini-batch or a part of it

    def for_step(self, current: TokenStats, signal: Signal, minibatch: TokenBatch) -> Signal:
        """Return the signal with the marks of one optimizer step; `current` is the policy on the whole mini-batch."""
        fixed = signal.at(minibatch.index_T)
        marks = dict(signal.marks)
        for name, component in self.named.items():
            if overrides(component, "step_marks"):
                marks[name] = dict(marks[name])  # a copy: the signal that was passed keeps its marks
                for key, x in component.step_marks(self.view(name, current, fixed, minibatch)).items():
                    marks[name][key] = scattered(x, signal, minibatch)
        return dataclasses.replace(signal, marks=marks)

    @property
    def silent_without_signal(self) -> bool:
        """Whether a token of zero advantage or zero weight adds nothing to the loss."""
        return not self.has_kl_term and all(component.silent_without_signal for component in self.components)

    def likely_contributing(self, batch: TokenBatch) -> TokenBatch:
        """Return the responses that likely have a gradient, by rewards alone: known before any statistics."""
        if not self.silent_without_signal:
            return batch
        rewards_PG = batch.grouped(batch.rewards_B)
        differ_P1 = (rewards_PG != rewards_PG[:, :1]).any(1, keepdim=True)
        return batch.take(differ_P1.expand_as(rewards_PG).flatten().nonzero().flatten().tolist())

    def contributing(self, batch: TokenBatch, signal: Signal) -> TokenBatch:
        """Return the responses of a mini-batch that may have a gradient.

        That is all of them, unless the method is `silent_without_signal`. At least one response is kept, so that the
        optimizer makes a step for any rewards: its momentum moves the weights without a gradient, too.
        """
        if not self.silent_without_signal:
            return batch
        # Absolute values, since the sum over a response must not cancel.
        live_T = (signal.advantages_T * signal.weights_T)[batch.index_T].abs()
        return batch.take(batch.per_sequence(live_T).nonzero().flatten().tolist() or [0])

    def loss(self, current: TokenStats, signal: Signal, batch: TokenBatch) -> Tensor:
        """Return the loss of a part of a mini-batch; the losses of its parts add up to that of the mini-batch."""
        # A weight or a gate multiplies the surrogate alone: added terms hold for dropped tokens too.
        view = self.view(self.base, current, signal, batch)
        surrogate_T = self.objective.surrogate(view) * signal.weights_T
        term_T = surrogate_T.new_zeros(surrogate_T.shape) + self.objective.term(view)
        for name, control in self.controls.items():
            view = self.view(name, current, signal, batch)
            surrogate_T = surrogate_T * control.gate(view)
            term_T = term_T + control.term(view)
        return (signal.term_scale_T * term_T - signal.scale_T * surrogate_T).sum()

    def base_loss(self, logp_T: Tensor, base_logp_T: Tensor, scale_T: Tensor) -> Tensor:
        """Return the loss of some right responses of the model before training; `scale_T`: of `Objective.scale`."""
        loss_T = scale_T.new_zeros(scale_T.shape)
        for control in self.controls.values():
            loss_T = loss_T + control.base_term(logp_T, base_logp_T)
        return (scale_T * loss_T).sum()

    def value_loss(self, values_T: Tensor, signal: Signal) -> Tensor:
        """Return the critic's loss of a part of a mini-batch."""
        assert signal.old.values is not None
        assert signal.returns_T is not None
        loss_T = self.objective.value_loss(values_T, signal.old.values, signal.returns_T)
        return (signal.term_scale_T * loss_T).sum()

    def touched(self, current: TokenStats, signal: Signal, batch: TokenBatch) -> dict[str, Tensor]:
        """Return masks of the tokens that the objective clips (`clipped_low`, `clipped_high`) and each gate closes."""
        low_T, high_T = self.objective.clips(self.view(self.base, current, signal, batch))
        masks = {"clipped_low": low_T, "clipped_high": high_T}
        every_T = signal.weights_T.new_ones(signal.weights_T.shape)
        for name, control in self.controls.items():
            if overrides(control, "gate"):
                factor_T = every_T * control.gate(self.view(name, current, signal, batch))
                masks[f"closed_{name}"] = factor_T == 0
        return masks

    def update_metrics(self, current: TokenStats, signal: Signal, batch: TokenBatch) -> dict[str, Tensor]:
        """Return the columns that the components log of a part of a mini-batch, during the update."""
        zero_T = signal.weights_T.new_zeros(signal.weights_T.shape)
        columns: dict[str, Tensor] = {}
        for name, component in self.named.items():
            if overrides(component, "update_metrics"):
                for key, x in component.update_metrics(self.view(name, current, signal, batch)).items():
                    columns[f"{name}/{key}"] = zero_T + x
        return columns

    # The part of the statistics that a component sees

    def view(self, name: str, current: TokenStats, signal: Signal, batch: TokenBatch) -> View:
        """Return some tokens as the component of this name sees them."""
        component = self.named[name]
        return View(
            current=self.during(component, current),
            old=self.before(component, signal.old),
            advantages_T=signal.advantages_T,
            marks=signal.marks[name],
            batch=batch,
            term_scale_T=signal.term_scale_T,
        )

    def before(self, component: Component, old: TokenStats) -> TokenStats:
        """Return the statistics of the policy before the update that a component may read."""
        return declared_stats(component, self.needs_of(component), old, BEFORE)

    def during(self, component: Component, current: TokenStats) -> TokenStats:
        """Return the statistics of the present policy that a component may read."""
        needs = self.needs_of(component)
        if "entropy_now" in needs and "entropy_grad" not in needs:  # another component may have asked for the gradient
            assert current.entropy is not None
            current = dataclasses.replace(current, entropy=current.entropy.detach())
        return declared_stats(component, needs, current, DURING)

    # After the step

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Pass a step's metrics to each control, with its own metrics also as `key` and `updates/key`."""
        for name, control in self.controls.items():
            shortened = {f"{name}/": "", f"updates/{name}/": "updates/"}  # the beginnings of its own metrics
            by_own_key = Observed(metrics)
            for key, value in metrics.items():
                for logged, short in shortened.items():
                    if key.startswith(logged):
                        by_own_key[short + key.removeprefix(logged)] = value
            control.observe(by_own_key)

    def state(self) -> dict[str, dict[str, float]]:
        return {name: control.state() for name, control in self.controls.items()}

    def logged_state(self) -> dict[str, float]:
        """Return the memory of the controls by the names under which it is logged."""
        return {f"state/{name}/{key}": value for name, own in self.state().items() for key, value in own.items()}

    def load_state(self, state: Mapping[str, Mapping[str, float]]) -> None:
        for name, control in self.controls.items():
            control.load_state(state[name])


def method_classes(table: Table) -> dict[str, type[Component]]:
    """Return the objectives and controls of a table, without its compositions."""
    return {name: entry for name, entry in table.items() if not isinstance(entry, Composition)}


def expanded(spec: str, table: Table, above: tuple[str, ...] = ()) -> list[str]:
    """Return the parts of a spec, with the names of compositions replaced by their parts."""
    parts = []
    for part in registry.split(spec, "+"):
        name, options = registry.parse(part)
        entry = table.get(name)
        if not isinstance(entry, Composition):
            if entry is None:
                registry.known("method", table, name)  # raises UserError, with the nearest name
            parts.append(part)
        elif options:
            raise UserError(f"method {name} is short for {entry.spec} and has no options; write that out with yours")
        elif name in above:
            raise UserError(f"method {name} is short for {entry.spec}, which contains {name} itself; use other methods")
        else:
            parts += expanded(entry.spec, table, (*above, name))
    return parts


def composed(spec: str, table: Table) -> str | None:
    """Return the spec with compositions written out, or None where it names none."""
    parts = list(map(str.strip, registry.split(spec, "+")))
    written_out = list(map(str.strip, expanded(spec, table)))
    return None if written_out == parts else "+".join(written_out)


def overrides(component: Component, verb: str) -> bool:
    """Return whether a component has a verb of its own."""
    interface = Objective if isinstance(component, Objective) else Control
    return getattr(type(component), verb) is not getattr(interface, verb)


def scattered(x: Tensor, signal: Signal, minibatch: TokenBatch) -> Tensor:
    """Return a mini-batch's mark scattered into zeros of the whole batch's size; one number as it is."""
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
    for name, control in controls:
        if overrides(control, "base_term") != (control.base_share > 0):
            raise UserError(
                f"control {name} has base_share = {control.base_share:g}; allowed: a share above 0 with the verb "
                "base_term, and 0 without it"
            )
    joining = [name for name, control in controls if control.base_share]
    if len(joining) > 1:
        raise UserError(f"controls {joining[0]} and {joining[1]} both have a base_share; allowed: one control with it")
    if "values" not in objective.needs:
        for name, control in controls:
            if "values" in control.needs:
                raise UserError(
                    f"control {name} needs values, and objective {base} has no critic that gives them; allowed: an "
                    "objective that needs values itself, for example ppo"
                )
    elif "critic_lr" not in vars(objective) or type(objective).value_loss is Objective.value_loss:
        raise UserError(f"objective {base} needs values; so it must have an option critic_lr and the verb value_loss")


def check_unit(base: str, objective: Objective, controls: list[tuple[str, Control]]) -> None:
    """Refuse controls that weigh single tokens where the objective's unit is the response."""
    for name, control in controls:
        weighs = overrides(control, "reshape") or overrides(control, "weights") or overrides(control, "gate")
        if weighs and not control.by_response:
            check_token_weights(f"control {name}", base, objective, "controls that weigh whole responses, or none")


def check_token_weights(whose: str, base: str, objective: Objective, allowed: str) -> None:
    """Refuse weights of single tokens where a response is one product of all its tokens."""
    if objective.by_response:
        raise UserError(
            f"{whose} weighs single tokens, and objective {base} takes a response as one product of them all; "
            f"allowed with {base}: {allowed}"
        )


def check_shaping(base: str, objective: Objective, controls: list[tuple[str, Control]]) -> None:
    """Refuse to shape rewards that the next verb ignores."""
    shaping = [(name, control) for name, control in controls if overrides(control, "reward")]
    if shaping and objective.ignores_rewards:
        name, _ = shaping[0]
        raise UserError(
            f"control {name} shapes rewards, but objective {base} uses only which responses are right; "
            f"allowed with {base}: controls that leave rewards as they are, or none"
        )
    for (before, _), (name, control) in itertools.pairwise(shaping):
        if control.ignores_rewards:
            raise UserError(
                f"control {name} replaces all rewards, and so takes away what control {before} made of them; allowed: "
                f"{name} before {before}, or without it"
            )


def declared_stats(
    component: Component, needs: frozenset[str], stats: TokenStats, columns: Mapping[str, tuple[str, ...]]
) -> TokenStats:
    """Return the statistics that a component may read; reading another one says how to declare it."""

    def refusal(column: str) -> str:
        user = type(component).__name__
        if column in columns and not columns[column]:
            return f"{user} reads {column} of the policy before the update, and the batch lacks it; give {column}"
        if column not in columns:
            return f"{user} uses current.{column}, which is never computed; allowed: old.{column}, before the update"
        needed = sorted({*component.needs, columns[column][0]})
        declared = ", ".join(map(repr, needed))
        return f"{user} uses {column}, which it does not need; declare needs = frozenset({{{declared}}})"

    readable = []
    for name, any_of in columns.items():
        declared = not needs.isdisjoint(any_of)
        # The trainer always computes the columns that need no declaration. A batch from elsewhere may lack the entropy.
        if declared or (not any_of and name in stats.columns):
            readable.append(name)
    return stats.only(readable, refusal)
