"""Any method of the registry in a training loop of your own: plain tensors in, advantages, weights and a loss out.

    method = entrobench.Method("grpo+clip_b(share=0.02)")
    print(method.needs)                                         # the statistics that it reads, beyond log p
    signal = method.signal(logp, rewards, groups, mask=mask, entropy=entropy)    # once per rollout batch
    loss = method.loss(signal, new_logp)                        # each update; or of some rows, which add up to the same
    method.observe(method.metrics(signal))                      # the memory of a control, saved with `state()`

Tensors are padded, [B, T] with a mask of the response tokens, or flat, [T] with the lengths of the responses. Nothing
else is read: no configuration, no file, no collective. On several processes gather the rollout batch first, so that the
statistics cover all of it; a process's loss of its own rows is then its part of the sum.

This class names what is missing, and inputs.py reads tensors. The algebra is harness/methods/composition.py, as in
entrobench's own trainer.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

import baselines
from harness import ranks
from harness.base import registry
from harness.base.errors import UserError, shown
from harness.base.schema import LARGEST
from harness.elsewhere.inputs import Layout, Rows, row_numbers, tensor_of
from harness.methods.batch import AbsentColumn, TokenBatch, TokenStats
from harness.methods.composition import Method as ComposedMethod
from harness.methods.composition import Signal, method_classes, overrides
from harness.methods.refusals import foreign_refusal
from harness.methods.verbs import NEEDS
from harness.tokens import metrics

# The arguments of `PortableMethod.signal` that a need asks for.
ARGUMENTS = {
    "values": ("values",),
    "ref_logp": ("ref_logp",),
    "sum_p2": ("sum_p2", "sum_p2_logp"),
    "min_p": ("min_p_logp",),
    "likeliest_entropy": ("likeliest_entropy",),
}
# The argument of `PortableMethod.loss` and `for_step` that a need asks for.
PRESENT = {"entropy_now": "entropy", "entropy_grad": "entropy", "likeliest_entropy": "likeliest_entropy"}
# The columns of a signal with a value per token, and of a batch with a value per response or one value.
OF_TOKENS = ("advantages", "weights", "scale", "term_scale", "returns")
OF_RESPONSES = ("groups", "rewards", "right", "base_right", "answers", "finished", "places")
OF_BATCH = ("budget", "seed", "progress")
# The columns that each signal has.
NEEDED = {"old/logp", *OF_TOKENS, *OF_RESPONSES, *OF_BATCH} - {"returns", "base_right", "answers"}


@dataclass(frozen=True)
class PortableSignal:
    """Everything that a method fixes before the first update on a rollout batch, in the caller's layout and order."""

    fixed: Signal  # in the order of `batch`
    batch: TokenBatch  # whole groups one after the other
    layout: Layout  # of the caller's tensors
    row_B: Tensor  # the number in `batch` of each of the caller's rows
    token_T: Tensor  # the number in `batch` of each of the caller's tokens, row after row
    minibatches: tuple[frozenset[int], ...] = ()  # the places of the responses of each update; empty: not known
    marked: frozenset[int] = frozenset()  # the places of the responses of the mini-batch whose marks `fixed` has

    @property
    def advantages(self) -> Tensor:
        """The advantages that the surrogate takes."""
        return self.arranged(self.fixed.advantages_T)

    @property
    def weights(self) -> Tensor:
        """The factors of the tokens' gradients; a token of weight 0 is dropped."""
        return self.arranged(self.fixed.weights_T)

    @property
    def returns(self) -> Tensor | None:
        """The targets of the critic, for a method that needs one."""
        return None if self.fixed.returns_T is None else self.arranged(self.fixed.returns_T)

    def arranged(self, x_T: Tensor) -> Tensor:
        """Return values in the order of `batch` in the caller's shape."""
        return self.layout.arranged(x_T[self.token_T])

    def part(self, rows: Rows | None) -> tuple[Signal, TokenBatch, Layout]:
        """Return the signal, the responses and the layout of some of the caller's rows, in this order."""
        responses = len(self.batch)
        rows_B = torch.arange(responses) if rows is None else row_numbers(rows, responses)
        rows_B = rows_B.to(self.row_B.device)
        batch = self.batch.take(self.row_B[rows_B])
        return self.fixed.at(batch.index_T), batch, self.layout.rows(rows_B)

    def columns(self) -> dict[str, Tensor]:
        """Return the signal as tensors by name, which a data loader can split by rows; see `PortableMethod.of_columns`.

        They are in the caller's shape, or have one value per response, or one value.
        """
        of_tokens = {name: vars(self.fixed)[f"{name}_T"] for name in OF_TOKENS}
        fixed = {name: x_T for name, x_T in of_tokens.items() if x_T is not None}
        fixed |= {f"old/{name}": x_T for name, x_T in self.fixed.old.columns.items()}
        fixed |= {f"weights_by/{name}": x_T for name, x_T in self.fixed.weights_by.items()}
        for name, marks in self.fixed.marks.items():
            fixed |= {f"marks/{name}/{key}": x for key, x in marks.items()}
        # A mark of one number holds for all tokens.
        columns = {name: self.arranged(x) if x.ndim else x for name, x in fixed.items()}
        for name in OF_RESPONSES:
            x_B = vars(self.batch)[f"{name}_B"]
            if not isinstance(x_B, AbsentColumn):
                columns[name] = x_B[self.row_B]
        return columns | {name: torch.tensor(vars(self.batch)[name]) for name in OF_BATCH}


class PortableMethod:
    """A method of the registry as a function of plain tensors; `entrobench.Method` is its name for users.

    `spec` is an objective and any number of controls, as in the methods of a configuration; `plugins` are modules with
    methods of your own, and `options` the values of their options wherever `spec` leaves them out, as
    `method_options` in a configuration.
    """

    def __init__(
        self, spec: str, plugins: Iterable[str] = (), options: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        if not isinstance(spec, str):
            raise UserError(f"a method is a text such as 'grpo+clip_b', and not {shown(spec)}")
        table = baselines.table(plugins)
        for name in options or {}:
            registry.known("objective or control", method_classes(table), name)
        self.composed = ComposedMethod.of(spec, table, options)
        refusal = foreign_refusal(self.composed)
        if refusal is not None:
            raise UserError(f"method {spec} {refusal}")

    def __repr__(self) -> str:
        return f"Method({self.spec!r})"

    @property
    def spec(self) -> str:
        return self.composed.name

    @property
    def min_group(self) -> int:
        """The least number of responses to a prompt."""
        return self.composed.min_group

    @property
    def marks_steps(self) -> bool:
        """Whether it looks at each whole mini-batch before its update (`for_step`)."""
        return self.composed.marks_steps

    @cached_property
    def needs(self) -> dict[str, str]:
        """The statistics that it reads beyond log p, with their meanings."""
        needs = {}
        if self._reads_entropy():
            needs["entropy"] = "the entropy before the update: entropy= of signal"
        for name in sorted(self.composed.needs):
            where = [f"{argument}= of signal" for argument in ARGUMENTS.get(name, ())]
            if name in PRESENT:
                where.append(f"{PRESENT[name]}= of loss and for_step")
            needs[name] = f"{meaning_of(name)}: {', '.join(where)}"
        if self.composed.reads_answers:
            needs["answers"] = "the normalized answers of responses: answers= of signal"
        if self.composed.reads_base:
            needs["base_right"] = "the share of right responses by the model before training: base_right= of signal"
        if self.composed.reads_sampler:
            needs["behaviour_logp"] = "log p of the policy that sampled: behaviour_logp= of signal"
        if self.marks_steps:
            needs["minibatch"] = "the present policy on each whole mini-batch before its update: for_step"
        return needs

    # Once per rollout batch

    @ranks.as_only_rank()
    def signal(
        self,
        logp: Any,
        rewards: Any,
        groups: Any,
        *,
        mask: Any = None,
        lengths: Any = None,
        entropy: Any = None,
        sum_p2: Any = None,
        sum_p2_logp: Any = None,
        ref_logp: Any = None,
        values: Any = None,
        min_p_logp: Any = None,
        likeliest_entropy: Any = None,
        behaviour_logp: Any = None,
        answers: Any = None,
        right: Any = None,
        base_right: Any = None,
        finished: Any = None,
        budget: int | None = None,
        minibatches: Sequence[Rows] | None = None,
        seed: int = 0,
        progress: float = 0.0,
    ) -> PortableSignal:
        """Return advantages, weights and all else that is fixed before the first update on a whole rollout batch.

        Statistics are of the policy before the update, at the sampling temperature. A batch has a row for each
        response; `groups` names each row's prompt by a number, a text or a tuple, and all groups are of one size.
        `minibatches` lists the rows of each update (one update of all rows), whose losses have their own denominators.
        `budget` is the most tokens that a response may have; `right` and `finished` tell which responses are right
        (reward above 0) and ended by themselves (shorter than the budget); `answers` are the normalized answers, None
        for a response without one, `base_right` is the share, above 0, of right responses to each row's prompt by the
        model before training, and `behaviour_logp` is of the policy that sampled, for the few methods that read them;
        `seed` and `progress`, from 0 to 1, are for methods that draw at random or follow a schedule.
        """
        logp = tensor_of("logp", logp).detach()
        layout = Layout.of(mask, lengths, logp.device)
        columns = {"logp": logp, "entropy": entropy, "sum_p2": sum_p2, "sum_p2_logp": sum_p2_logp}
        columns |= {"ref_logp": ref_logp, "values": values, "min_p_logp": min_p_logp}
        columns["likeliest_entropy"] = likeliest_entropy
        if self.composed.reads_answers and answers is None:
            raise UserError(f"method {self.spec} compares the answers of a group; give answers")
        if self.composed.reads_base and base_right is None:
            raise UserError(f"method {self.spec} reads how often the model before training was right; give base_right")
        if self.composed.reads_sampler and behaviour_logp is None:
            raise UserError(f"method {self.spec} reads the policy that sampled; give behaviour_logp")
        for need, arguments in ARGUMENTS.items():
            missing = [name for name in arguments if columns[name] is None]
            if need in self.composed.needs and missing:
                raise UserError(f"method {self.spec} needs {meaning_of(need)}; give {' and '.join(missing)}")
        statistics = {name: layout.flat(name, x).detach() for name, x in columns.items() if x is not None}

        if not len(layout.lengths_B):
            raise UserError("the rollout batch has no responses; allowed: one and more")
        longest = int(layout.lengths_B.max())
        if budget is None:
            budget = longest if layout.mask_BT is None else layout.mask_BT.shape[1]
        if budget < longest:
            raise UserError(f"budget is {budget}, and a response has {longest} tokens; allowed: {longest} and more")
        if not 0 <= progress <= 1:
            raise UserError(f"progress is {progress}; allowed: 0 to 1, the share of the run's steps that are done")
        if abs(seed) > LARGEST:
            raise UserError(f"seed is {seed}; allowed: {-LARGEST} to {LARGEST}")
        rewards_B = layout.rewards(rewards)
        right_B = rewards_B > 0 if right is None else layout.of_responses("right", right) != 0
        is_shorter_B = layout.lengths_B < budget
        finished_B = is_shorter_B if finished is None else layout.of_responses("finished", finished) != 0
        groups_B = self._groups(groups, layout)
        answers_B = None
        if answers is not None:
            answers_B = layout.numbers("answers", answers)
            answers_B[[answer is None for answer in answers]] = -1
        base_right_B = None if base_right is None else layout.of_responses("base_right", base_right)
        if base_right_B is not None and not ((base_right_B > 0) & (base_right_B <= 1)).all():
            raise UserError("base_right holds numbers that are no shares; allowed: above 0 to 1")
        behaviour_logp_T = None if behaviour_logp is None else layout.flat("behaviour_logp", behaviour_logp).detach()
        in_rows = TokenBatch.of_lengths(
            layout.lengths_B,
            groups_B,
            rewards_B,
            right_B,
            finished_B,
            budget,
            base_right_B=base_right_B,
            answers_B=answers_B,
            behaviour_logp_T=behaviour_logp_T,
            seed=seed,
            progress=progress,
        )
        # Groups one after the other, in the order of their first rows.
        order_B = groups_B.argsort(stable=True)
        sorted_batch = in_rows.take(order_B)
        token_of_sorted_T = sorted_batch.index_T
        # `take` keeps the numbers that tokens and places had in the caller's order. This is a whole batch of its own,
        # which counts both from 0.
        batch = dataclasses.replace(sorted_batch, index_T=in_rows.index_T, places_B=in_rows.places_B)
        row_B = order_B.argsort()
        old = TokenStats(**statistics).at(token_of_sorted_T)

        parts = [batch] if minibatches is None else self._minibatches(minibatches, batch, row_B)
        fixed = self.composed.signal(old, batch, parts)
        for name, x_T in (("weights", fixed.weights_T), ("advantages", fixed.advantages_T)):
            if not torch.isfinite(x_T).all():
                raise UserError(f"method {self.spec} gives {name} that are not finite on this batch")
        return PortableSignal(fixed, batch, layout, row_B, token_of_sorted_T.argsort(), tuple(map(places, parts)))

    def of_columns(self, columns: Mapping[str, Tensor], *, mask: Any = None, lengths: Any = None) -> PortableSignal:
        """Return the signal of some rows of a batch, from these rows of the tensors of `PortableSignal.columns`."""
        if missing := sorted(NEEDED - columns.keys()):
            raise UserError(f"the columns of the signal lack {', '.join(missing)}; give all that its `columns` returns")
        layout = Layout.of(mask, lengths, columns["old/logp"].device)
        nested: dict[str, Any] = {"weights_by": {}, "marks": {name: {} for name in self.composed.named}}
        for name, x in columns.items():
            if name in OF_RESPONSES or name in OF_BATCH:
                continue
            *path, last = name.split("/")
            place = nested
            for part in path:
                place = place.setdefault(part, {})
            place[last] = layout.flat(name, x) if x.ndim else x
        of_tokens: dict[str, Any] = {f"{name}_T": nested.get(name) for name in OF_TOKENS}
        fixed = Signal(
            old=TokenStats(**nested["old"]),
            weights_by=nested["weights_by"],
            marks=nested["marks"],
            **of_tokens,
        )
        in_batch: dict[str, Any] = {f"{name}_B": columns[name] for name in OF_RESPONSES if name in columns}
        in_batch |= {name: columns[name].item() for name in OF_BATCH}
        batch = TokenBatch.of_lengths(layout.lengths_B, **in_batch)
        row_B = torch.arange(len(batch), device=layout.lengths_B.device)
        return PortableSignal(fixed, batch, layout, row_B, batch.index_T)

    @ranks.as_only_rank()
    def metrics(self, signal: PortableSignal) -> dict[str, float]:
        """Return the metrics of a whole rollout batch before the update, which `observe` takes.

        A batch without any token has none.
        """
        if not len(signal.batch.index_T):
            return {}
        if signal.fixed.old.entropy is None:
            raise UserError("metrics are about the entropy too; give entropy to signal")
        return metrics.of_signal(signal.fixed, signal.batch) | self.composed.metrics(signal.fixed, signal.batch)

    # Each update

    @ranks.as_only_rank()
    def for_step(
        self, signal: PortableSignal, logp: Any, rows: Rows | None = None, *, mask: Any = None, **statistics: Any
    ) -> PortableSignal:
        """Return the signal for the update on a mini-batch, from the present policy on all of its rows.

        Only a method with `marks_steps` needs it; `statistics`: as of `loss`.
        """
        current, _, part = self.present(signal, logp, rows, mask=mask, **statistics)
        if signal.minibatches and places(part) not in signal.minibatches:
            raise UserError(f"for_step got {len(part)} row(s); allowed: all rows of one of the minibatches of signal")
        fixed = self.composed.for_step(current.detach(), signal.fixed, part)
        return dataclasses.replace(signal, fixed=fixed, marked=places(part))

    @ranks.as_only_rank()
    def loss(
        self, signal: PortableSignal, logp: Any, rows: Rows | None = None, *, mask: Any = None, **statistics: Any
    ) -> Tensor:
        """Return the loss of some rows; the losses of all rows of a mini-batch add up to the loss of the mini-batch.

        `logp` and `statistics` (`entropy`, `likeliest_entropy`) are the present policy's, with gradient, in the layout
        of the signal, a row for each of `rows` (all). A `mask` allows another padding than that of `signal`.
        """
        current, fixed, part = self.present(signal, logp, rows, mask=mask, **statistics)
        self._check_marked(signal, part)
        return self.composed.loss(current, fixed, part)

    def value_loss(self, signal: PortableSignal, values: Any, rows: Rows | None = None, *, mask: Any = None) -> Tensor:
        """Return the loss of the critic on some rows, for a method that needs values."""
        if "values" not in self.composed.needs:
            raise UserError(f"method {self.spec} has no critic")
        fixed, _, layout = signal.part(rows)
        return self.composed.value_loss(layout.padded_by(mask).flat("values", values), fixed)

    @ranks.as_only_rank()
    def touched(
        self, signal: PortableSignal, logp: Any, rows: Rows | None = None, *, mask: Any = None, **statistics: Any
    ) -> dict[str, Tensor]:
        """Return flat masks of the tokens of some rows that the objective clips and that each gate closes."""
        current, fixed, part = self.present(signal, logp, rows, mask=mask, **statistics)
        self._check_marked(signal, part)
        return self.composed.touched(current.detach(), fixed, part)

    # After the updates on a rollout batch

    def observe(self, record: Mapping[str, float]) -> None:
        """Update the memory of the controls from the metrics of a rollout batch, as `metrics` returns them."""
        if record:
            self.composed.observe(record)

    def state(self) -> dict[str, dict[str, float]]:
        """Return the memory of the controls, for a checkpoint."""
        return self.composed.state()

    def load_state(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Take over a memory that `state` has returned."""
        if state.keys() != self.composed.controls.keys():
            raise UserError(
                f"a state of the controls {sorted(state)} does not fit method {self.spec}; its controls are "
                f"{sorted(self.composed.controls)}"
            )
        self.composed.load_state(state)

    # Parts

    def present(
        self,
        signal: PortableSignal,
        logp: Any,
        rows: Rows | None = None,
        *,
        mask: Any = None,
        entropy: Any = None,
        likeliest_entropy: Any = None,
    ) -> tuple[TokenStats, Signal, TokenBatch]:
        """Return the present policy's statistics of some rows, flat, with their part of the signal and of the batch."""
        fixed, part, layout = signal.part(rows)
        given = {"entropy": entropy, "likeliest_entropy": likeliest_entropy}
        for need in sorted(PRESENT.keys() & self.composed.needs):
            if given[PRESENT[need]] is None:
                raise UserError(f"method {self.spec} needs {meaning_of(need)}; give {PRESENT[need]}")
        layout = layout.padded_by(mask)
        columns = {name: layout.flat(name, x) for name, x in given.items() if x is not None}
        # With log p of the model before training, which does not change.
        return TokenStats(layout.flat("logp", logp), **columns, ref_logp=fixed.old.ref_logp), fixed, part

    def _check_marked(self, signal: PortableSignal, part: TokenBatch) -> None:
        if self.marks_steps and not places(part) <= signal.marked:
            raise UserError(
                f"method {self.spec} looks at each whole mini-batch before its update; call for_step first, on all "
                "rows of the mini-batch of these"
            )

    def _groups(self, groups: Any, layout: Layout) -> Tensor:
        """Return the number of each response's group, in the order of first rows."""
        groups_B = layout.numbers("groups", groups)
        sizes = groups_B.bincount()
        if sizes.min() != sizes.max():
            raise UserError(f"groups have {sizes.min()} to {sizes.max()} responses; all must be of one size")
        if sizes[0] < self.min_group:
            needed = f"method {self.spec} learns from groups of {self.min_group} and more"
            raise UserError(f"groups have {sizes[0]} response(s); {needed}")
        return groups_B

    def _minibatches(self, minibatches: Sequence[Rows], batch: TokenBatch, row_B: Tensor) -> list[TokenBatch]:
        """Return the parts of the batch with these rows, which must hold each row once."""
        parts = [row_numbers(rows, len(batch)).to(row_B.device) for rows in minibatches]
        counts = Counter(row for rows_B in parts for row in rows_B.tolist())
        for row in range(len(batch)):
            if counts[row] != 1:
                raise UserError(
                    f"row {row} is in {counts[row]} of the minibatches; each of {len(batch)} rows must be in one"
                )
        return [batch.take(row_B[rows_B]) for rows_B in parts]

    def _reads_entropy(self) -> bool:
        """Return whether a verb reads the entropy before the update, which none declares: by trying without it."""
        if any(overrides(control, "observe") for control in self.composed.controls.values()):
            return True  # a memory follows the entropy of the rollout batch
        # Two groups with one right response each, so that advantages differ from 0, and three tokens a response.
        size = max(self.min_group, 2)
        some_BT = torch.linspace(-2, -0.1, 2 * size * 3).view(-1, 3)
        rewards = [float(row % size == 0) for row in range(len(some_BT))]
        numbers: dict[str, Any] = dict.fromkeys(("sum_p2", "ref_logp", "values"), some_BT.abs())
        numbers |= dict.fromkeys(("sum_p2_logp", "min_p_logp", "behaviour_logp", "likeliest_entropy"), some_BT)
        numbers |= {"answers": [None] * len(some_BT), "base_right": [0.5] * len(some_BT)}
        groups = [row // size for row in range(len(some_BT))]
        mask = torch.ones_like(some_BT)
        present = dict.fromkeys(("entropy", "likeliest_entropy"), some_BT.abs())

        def learn(entropy: Tensor | None) -> None:
            signal = self.signal(some_BT, rewards, groups, mask=mask, entropy=entropy, **numbers)
            if self.marks_steps:
                signal = self.for_step(signal, some_BT, **present)
            self.loss(signal, some_BT, **present)

        try:
            learn(None)
        except UserError:
            learn(some_BT.abs())  # raises again if anything else is wrong
            return True
        return False


Method = PortableMethod


def meaning_of(need: str) -> str:
    return NEEDS[need].partition(":")[0]


def places(part: TokenBatch) -> frozenset[int]:
    """Return the numbers of the responses of a part in the whole batch."""
    return frozenset(part.places_B.tolist())
