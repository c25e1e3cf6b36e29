"""The theory's lens on any method: its effect on the entropy, token by token, on a few real batches.

The batches are the first ones of a cell, and all methods see the same tokens. Before the first update of a batch the
importance ratio is 1, so that methods which differ only in their clips are equal. So every method is examined twice:
there, and after the updates of plain GRPO.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor
from transformers.utils.logging import set_verbosity_error

import baselines
from harness.base import terminal
from harness.base.errors import at_least
from harness.base.terminal import Column
from harness.config import OWN, Config
from harness.matrix import Cell
from harness.methods.batch import TokenBatch, TokenStats
from harness.methods.composition import Method
from harness.tokens import dynamics
from harness.tokens.dynamics import QuadrantRow
from harness.tokens.metrics import Stopwatch
from harness.train import parts
from harness.train.trainer import Trainer
from harness.verify.pool import VerifierPool

PLAIN = "grpo"
MOMENTS = ("first update", "after the updates")
MODELS = frozenset({"values", "ref_logp"})  # the needs for which a trainer loads a second model
SHARES = (0.005, 0.01, 0.02, 0.04, 0.08)  # of the tokens, that a clip is tried to drop


def build_trainer(config: Config, method: str, folder: str, verifier: VerifierPool) -> Trainer:
    """Return the trainer of a cell of the first task, model and seed, without printing anything."""
    set_verbosity_error()
    train = dataclasses.replace(config.train, backend=OWN)  # whichever trains the matrix
    with_own_trainer = dataclasses.replace(config, train=train)
    planned = Cell.of(with_own_trainer, method, config.tasks[0], config.models[0], config.seeds[0])
    trainer = Trainer(parts.build_parts(planned.spec, verifier, say=lambda _: None), Path(folder))
    trainer.engine.load(trainer.policy.module)
    return trainer


def batch_of(trainer: Trainer, step: int, temperature: float | None = None) -> TokenBatch:
    """Sample a step's batch from the present policy, at the configured temperature unless another is given."""
    collected = trainer.collector.sample(step, Stopwatch(), temperature=temperature)
    budget, base_right = trainer.config.rollout.max_new_tokens, trainer.parts.pool.base_right
    return collected.batch(budget, trainer.policy.device, base_right)


def batches_of_grpo(trainer: Trainer, batches: int, needs: frozenset[str]) -> Iterator[tuple[TokenBatch, TokenStats]]:
    """Yield batches of the untrained model, each with the statistics of its tokens after plain GRPO's updates on it."""
    start = copy.deepcopy(trainer.policy.state())  # copied, since updates change the tensors of the state in place
    for step in range(1, batches + 1):
        batch = batch_of(trainer, step)
        trainer.train_step(step, Stopwatch())  # samples the same batch again, since seeds depend on the step alone
        yield batch, trainer.policy.stats(batch, needs)
        trainer.policy.load_state(start, partial(copy_from, start))
        trainer.synchronise(step)


def copy_from(state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors of the same names from a state, in place."""
    for name, x in tensors.items():
        x.copy_(state[name])


def explain(config: Config, specs: Sequence[str], batches: int) -> list[dict[str, Any]]:
    """Return, for each method, moment and quadrant, the mean row over the batches."""
    at_least(1, **{"--batches": batches})
    table = baselines.table(config.plugins)
    methods = {spec: Method.of(spec, table, config.method_options) for spec in specs}
    explanations = []
    with tempfile.TemporaryDirectory() as folder, VerifierPool.of(config.verify) as verifier:
        needs_after = dynamics.NEEDS.union(*(method.needs & {"likeliest_entropy"} for method in methods.values()))
        sampled = list(batches_of_grpo(build_trainer(config, PLAIN, folder, verifier), batches, needs_after))
        plain = Method.of(PLAIN, table, config.method_options)
        # The statistics before any update differ only by the models that the trainer loads for a method and by those
        # of likely tokens, which few methods need; sum_p2 is computed for all.
        stats_before: dict[frozenset[str], list[TokenStats]] = {}
        for spec, method in methods.items():
            needs = method.needs & {*MODELS, "min_p", "likeliest_entropy"} | dynamics.NEEDS
            if needs not in stats_before:
                trainer = build_trainer(config, spec, folder, verifier)
                stats_before[needs] = [trainer.stats_before(batch, needs) for batch, _ in sampled]
                temperature = trainer.policy.temperature
                del trainer  # with its engine, since a process can have only one vLLM engine
            rows_by_moment: dict[str, list[dict[str, QuadrantRow]]] = {moment: [] for moment in MOMENTS}
            for (batch, stats_after), old in zip(sampled, stats_before[needs], strict=True):
                minibatches = list(batch.split(config.train.updates))
                # The reference model is not trained, and GRPO's trainer may not have loaded it.
                after = dataclasses.replace(stats_after, ref_logp=old.ref_logp)
                for moment, current in zip(MOMENTS, (old, after), strict=True):
                    rows = dynamics.lens(method, plain, old, batch, minibatches, current, temperature)
                    rows_by_moment[moment].append(rows)
            for moment, rows_of_batches in rows_by_moment.items():
                for quadrant in rows_of_batches[0]:
                    mean = average([rows[quadrant] for rows in rows_of_batches])
                    explanations.append({"method": spec, "moment": moment, "quadrant": quadrant, **vars(mean)})
    return explanations


def average(rows: Sequence[QuadrantRow]) -> QuadrantRow:
    """Return the mean row; `dropped` is a share of the row's own tokens, all other numbers are of all tokens."""
    means = {}
    for name in vars(rows[0]):
        means[name] = sum(vars(row)[name] for row in rows) / len(rows)
    share = sum(row.share for row in rows)
    dropped = sum(row.dropped * row.share for row in rows)
    means["dropped"] = dropped / share if share else 0.0
    return QuadrantRow(**means)


def by_method(explanations: Sequence[Mapping[str, Any]], moment: str) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return the rows of a moment by method and quadrant."""
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in explanations:
        if row["moment"] == moment:
            rows.setdefault(row["method"], {})[row["quadrant"]] = row
    return rows


def print_explanations(console: Console, explanations: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of each moment, and the shares of the quadrants."""
    for moment in MOMENTS:
        print_moment(console, moment, by_method(explanations, moment))
    # Before the first update all methods have the same shares, so those of one method are enough.
    [*_, of_one] = by_method(explanations, MOMENTS[0]).values()
    shares = [f"{name.replace('_', ' ')} {row['share']:.1%}" for name, row in of_one.items() if name != "all"]
    console.print(f"tokens by the sign of A and of S* - N: {', '.join(shares)}", style="dim")
    console.print(
        "of each quadrant: the tokens that a method gives no gradient, and its weight x |A| against plain GRPO's; "
        "entropy: the first-order change, in nats for a common logit step of 1; a method with a memory is shown in its "
        "initial state; docs/which-method.md: which methods gained what, at which strength",
        style="dim",
    )


# How strong?


def with_shares(methods: Mapping[str, Method]) -> dict[str, list[str]]:
    """Return specs of increasing strength for each clip that is named without a strength of its own."""
    specs = {}
    for spec, method in methods.items():
        # Clips alone: their share is null by default, and that of other controls means something else.
        if getattr(type(method.controls.get(spec)), "share", 0) is None:
            specs[spec] = [f"{spec}(share={share:g})" for share in SHARES]
    return specs


def offset(explanation: Mapping[str, Any]) -> float:
    """Return the part of the entropy's predicted fall under plain GRPO that a method takes back; nan if it rises."""
    fall = -explanation["plain_predicted"]
    return (explanation["predicted"] + fall) / fall if fall > 0 else math.nan


def recommended(offsets: Mapping[str, float]) -> list[str]:
    """Return three of the specs, in order: the first that takes back half of the fall, and its neighbors."""
    specs = list(offsets)
    enough = [number for number, spec in enumerate(specs) if offsets[spec] >= 0.5]
    middle = min(max(enough[0] if enough else len(specs), 1), len(specs) - 2)
    return specs[middle - 1 : middle + 2]


def print_strengths(console: Console, of_clips: Mapping[str, Sequence[str]], explanations: Sequence[Any]) -> None:
    """Print what clips of increasing strength drop and take back, and candidates for `entrobench tune`."""
    rows = by_method(explanations, MOMENTS[0])
    whole = {spec: of_spec["all"] for spec, of_spec in rows.items()}
    lines, candidates = [], []
    for clip, specs in of_clips.items():
        for spec in specs:
            # The rest has no advantage, and so no gradient under any method.
            parts = [row for quadrant, row in rows[spec].items() if quadrant not in ("rest", "all")]
            dropped = sum(row["dropped"] * row["share"] for row in parts)
            taken_back = f"{offset(whole[spec]):.0%}".replace("nan%", "")
            lines.append([spec, f"{dropped:.1%}", f"{whole[spec]['predicted']:+.5f}", taken_back])
        chosen = recommended({spec: offset(whole[spec]) for spec in specs})
        second = f"{offset(whole[chosen[1]]):.0%}"
        candidates.append(f"    # the second takes back {second} of the predicted fall")
        candidates.append(f"    {clip}: [{', '.join(map(repr, chosen))}]")
    names = ("dropped", "entropy", "of GRPO's fall")
    columns = [Column("how strong?"), *(Column(name, right=True) for name in names)]
    terminal.show_table(console, columns, lines, pad_edge=False)
    if any(math.isnan(offset(row)) for row in whole.values()):
        console.print(
            "\nno strength is recommended: under plain GRPO the entropy is not predicted to fall on these batches"
        )
        return
    head = ["", "tune:", "  candidates:"]
    console.print(*head, *candidates, sep="\n")


def print_moment(console: Console, moment: str, rows_by_method: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Print one line for each method: its effect on each quadrant, and the predicted change of entropy."""
    quadrants = [name for name in next(iter(rows_by_method.values())) if name not in ("rest", "all")]
    titles = [name.replace("_", " ") for name in quadrants]
    entropies = ["entropy, plain", "by the method", "difference"]
    lines = []
    for method, rows in rows_by_method.items():
        line = [method]
        for name in quadrants:
            row = rows[name]
            weight = f" x{row['size'] / row['plain_size']:.2f}" if row["plain_size"] else ""
            line.append(f"{row['dropped']:.1%}{weight}")
        plain_change, change = rows["all"]["plain_predicted"], rows["all"]["predicted"]
        line += [f"{plain_change:+.5f}", f"{change:+.5f}", f"{change - plain_change:+.5f}"]
        lines.append(line)
    columns = [Column("method"), *(Column(name, right=True) for name in titles + entropies)]
    # A narrow terminal drops both entropies first, whose difference tells enough. It drops the quadrants only together.
    goes = [entropies[:2], titles]
    terminal.show_table(console, columns, lines, goes, title=moment, pad_edge=False, where="--format json")
    console.print()
