"""The theory's lens on any method: what it does to the entropy, token by token, on a few real batches.

The batches are the first ones of a cell, and all methods see the same tokens. Before the first update of a batch the
importance ratio is 1 and methods that differ in their clips alone are the same; so every method is looked at twice,
there and after plain GRPO has made its updates.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

import baselines
from harness.base.errors import UserError
from harness.batch import TokenBatch, TokenStats
from harness.composition import Method
from harness.config import Config
from harness.matrix import Cell
from harness.terminal import layout
from harness.terminal.layout import Column
from harness.tokens import dynamics
from harness.tokens.dynamics import QuadrantRow
from harness.tokens.metrics import Stopwatch
from harness.train import parts
from harness.trainer import Trainer
from harness.verify.pool import VerifierPool

PLAIN = "grpo"
MOMENTS = ("first update", "after the updates")
MODELS = frozenset({"values", "ref_logp"})  # the needs for which a trainer has a second model


def build(config: Config, method: str, folder: str, verifier: VerifierPool) -> Trainer:
    """As a cell of the first task, model and seed begins, but without a word."""
    disable_progress_bar()
    set_verbosity_error()
    planned = Cell.of(config, method, config.tasks[0], config.models[0], config.seeds[0])
    trainer = Trainer(parts.build_parts(planned.spec, verifier, say=lambda _: None), Path(folder))
    trainer.engine.load(trainer.policy.module)
    return trainer


def batch_of(trainer: Trainer, step: int, temperature: float | None = None) -> TokenBatch:
    """Samples a step's batch from the policy as it is; at the configured temperature, unless another is given."""
    collected = trainer.collector.sample(step, Stopwatch(), temperature=temperature)
    budget = trainer.config.rollout.max_new_tokens
    return TokenBatch.of(collected.groups, collected.rewards, budget, trainer.policy.device, copies=collected.copies)


def seen_by_plain(trainer: Trainer, batches: int) -> Iterator[tuple[TokenBatch, TokenStats]]:
    """Batches of the untrained model, and what the policy says of their tokens after plain GRPO's updates on them."""
    start = copy.deepcopy(trainer.policy.state())
    for step in range(1, batches + 1):
        batch = batch_of(trainer, step)
        trainer.train_step(step, Stopwatch())  # which samples the very same batch
        yield batch, trainer.policy.stats(batch, frozenset({"sum_p2"}))
        trainer.policy.load_state(start, partial(put, start))
        trainer.synchronise(step)


def put(state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    for name, x in tensors.items():
        x.copy_(state[name])


def explain(config: Config, specs: Sequence[str], batches: int) -> list[dict[str, Any]]:
    """For each method, moment and quadrant, the mean row over the batches."""
    if batches < 1:
        raise UserError(f"--batches is {batches}; allowed: 1 and more")
    table = baselines.table(config.plugins)
    methods = {spec: Method.of(spec, table, config.method_options) for spec in specs}
    found = []
    with tempfile.TemporaryDirectory() as folder, VerifierPool.of(config.verify) as verifier:
        seen = list(seen_by_plain(build(config, PLAIN, folder, verifier), batches))
        plain = Method.of(PLAIN, table, config.method_options)
        before: dict[frozenset[str], list[TokenStats]] = {}  # any update, by what the trainer has to compute for it
        for spec, method in methods.items():
            models = method.needs & MODELS
            if models not in before:
                trainer = build(config, spec, folder, verifier)
                before[models] = [trainer.stats_before(batch, sum_p2=True) for batch, _ in seen]
                del trainer  # and its engine, before there is another one
            lenses: dict[str, list[dict[str, QuadrantRow]]] = {moment: [] for moment in MOMENTS}
            for (batch, moved), old in zip(seen, before[models], strict=True):
                parts = list(batch.split(config.train.updates))
                later = dataclasses.replace(moved, ref_logp=old.ref_logp)
                for moment, current in zip(MOMENTS, (old, later), strict=True):
                    lenses[moment].append(
                        dynamics.lens(method, plain, old, batch, parts, current, config.rollout.temperature)
                    )
            for moment, rows in lenses.items():
                for quadrant in rows[0]:
                    mean = average([each[quadrant] for each in rows])
                    found.append({"method": spec, "moment": moment, "quadrant": quadrant, **vars(mean)})
    return found


def average(rows: Sequence[QuadrantRow]) -> QuadrantRow:
    """`dropped` is a share of the row's own tokens, all else of all tokens."""
    means = {name: sum(vars(row)[name] for row in rows) / len(rows) for name in vars(rows[0])}
    share = sum(row.share for row in rows)
    means["dropped"] = sum(row.dropped * row.share for row in rows) / share if share else 0.0
    return QuadrantRow(**means)


def show(console: Console, found: Sequence[dict[str, Any]]) -> None:
    quadrants = [name for name in dict.fromkeys(row["quadrant"] for row in found) if name not in ("rest", "all")]
    for moment in MOMENTS:
        here = [row for row in found if row["moment"] == moment]
        names = [*(name.replace("_", " ") for name in quadrants), "entropy, plain", "by the method", "difference"]
        columns = [Column("method"), *(Column(name, right=True) for name in names)]
        lines = []
        for method in dict.fromkeys(row["method"] for row in here):
            rows = {row["quadrant"]: row for row in here if row["method"] == method}
            cells = []
            for row in (rows[name] for name in quadrants):
                weight = f" x{row['size'] / row['plain_size']:.2f}" if row["plain_size"] else ""
                cells.append(f"{row['dropped']:.1%}{weight}")
            whole = rows["all"]
            change = whole["predicted"] - whole["plain_predicted"]
            predicted = (whole["plain_predicted"], whole["predicted"], change)
            lines.append([method, *cells, *(f"{each:+.5f}" for each in predicted)])
        # Of the entropies the difference says enough; of the quadrants all are shown, or each method gets a card.
        goes = [["entropy, plain", "by the method"], names[: len(quadrants)]]
        layout.show(console, columns, lines, goes, title=moment, pad_edge=False, where="--format json")
        console.print()
    shares = {row["quadrant"]: row["share"] for row in found if row["moment"] == MOMENTS[0]}
    parts = ", ".join(f"{name.replace('_', ' ')} {share:.1%}" for name, share in shares.items() if name != "all")
    console.print(f"tokens by the sign of A and of S* - N: {parts}", style="dim")
    console.print(
        "of each quadrant: the tokens that a method gives no gradient, and its weight x |A| against plain GRPO's; "
        "entropy: the first-order change, in nats for a common logit step of 1; a method with a memory is shown as it "
        "begins",
        style="dim",
    )
