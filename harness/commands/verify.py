"""entrobench verify: judges the answers in a pack again, and replays the first steps of a cell."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.plugins import import_plugin
from harness.base.terminal import boxed, console, visible, width_of
from harness.base.units import plural
from harness.commands.common import Commands, command, with_plugins

if TYPE_CHECKING:
    from harness.packs.audit import CellAudit, PackAudit

EXAMPLES = (
    "entrobench verify demo.zip",
    "entrobench verify theirs.zip --plugin their_methods --replay 9eee552761fb --steps 3",
    "entrobench verify least_sure.zip --plugin least_sure --row results/packs/demo.zip",
)
STEPS = 2  # that are replayed


def add(commands: Commands) -> None:
    text = "judge every answer in a pack again, check its sums and scores, and replay the first steps of a cell"
    parser = command(commands, "verify", text, EXAMPLES)
    parser.add_argument("file", metavar="FILE", type=Path, help="a file that `entrobench pack` has written")
    with_plugins(parser)
    parser.add_argument(
        "--replay", metavar="CELL", help="train the first steps of this cell again on the CPU, and compare them"
    )
    parser.add_argument("--steps", type=int, help=f"how many steps are replayed (default: {STEPS})")
    text = "check the plugin's methods too, and print the table of this pack of the same protocol with FILE's rows"
    parser.add_argument("--row", metavar="PACK", type=Path, help=text)


def call(arguments: argparse.Namespace) -> int:
    from harness.packs.archive import unpacked
    from harness.packs.audit import audit_pack
    from harness.packs.reader import opened_packs
    from harness.packs.replay import check_replay
    from harness.packs.submission import check_figures, check_submission
    from harness.table import formats, select
    from harness.table.verified import write_marks
    from harness.verify.pool import VerifierPool

    if arguments.steps is not None and arguments.replay is None:
        raise UserError(f"--steps is {arguments.steps}, but no cell is replayed; --replay CELL names one")
    steps = STEPS if arguments.steps is None else arguments.steps
    for plugin in arguments.plugin:
        import_plugin(plugin)
    with unpacked(arguments.file) as pack, VerifierPool() as verifier:
        if arguments.replay is not None:  # before the answers are judged, which takes longer
            check_replay(pack, arguments.replay, steps)
        if arguments.row is not None:
            check_submission(pack, arguments.row, arguments.plugin)
        audited = audit_pack(pack, verifier, arguments.plugin)
        if arguments.row is not None:
            check_figures(pack, audited)
        console.print(f"{pack.path}: matrix {pack.matrix}, protocol {pack.protocol.name}, sums and identities checked")
        # Before anything is printed about the cells: a replay changes the mark of one, or adds a finding.
        if arguments.replay is not None:
            replayed = next(audit for audit in audited.cells if audit.spec.id == arguments.replay)
            replay_cell(replayed, steps, arguments.plugin)
        print_audit(pack.matrix, audited)
        write_marks(pack.digest, {audit.spec.id: audit.mark for audit in audited.cells})
    wrong = sum(bool(audit.findings) for audit in audited.cells)
    if wrong:
        cells = plural(wrong, "cell")
        console.print(f"{cells} of {len(audited.cells)} contradict their own records or answers", style="red")
    elif arguments.row is not None:
        with opened_packs([arguments.row, arguments.file]) as experiment:
            parts = select.parts_of_boards(experiment, experiment.boards(), where={})
            print(visible(formats.render_parts(parts, "table", width=width_of(console))), end="")
    return 1 if wrong or audited.findings else 0


def replay_cell(audit: CellAudit, steps: int, plugins: Sequence[str]) -> None:
    """Replay a cell, and change its mark, or add a finding."""
    from harness.packs.replay import replay_steps
    from harness.table.verified import JUDGED, REPLAYED, REPORTED

    difference = replay_steps(audit.folder, steps, plugins)
    if difference is not None:
        audit.findings.append(f"replayed, {difference}")
        audit.mark = REPORTED
        return
    console.print(f"{audit.label}: steps 0 to {steps} replayed, all metrics and answers are the same bit for bit")
    if audit.mark == JUDGED:
        audit.mark = f"{REPLAYED} to step {steps} of {audit.spec.config.train.steps}"


def print_audit(matrix: str, audited: PackAudit) -> None:
    """Print each method with its cells, the answers that were judged again and its mark, and then all findings."""
    from harness.table.verified import COUNTED, mark_of_row

    by_method: dict[str, list[CellAudit]] = {}
    for audit in audited.cells:
        by_method.setdefault(audit.spec.key.method, []).append(audit)
    lines = [["method", "cells", "answers judged", "undecided", "wrong", "mark"]]
    for method, group in by_method.items():
        answers = sum(audit.answers for audit in group)
        undecided = sum(audit.undecided for audit in group)
        wrong = sum(bool(audit.findings) for audit in group)
        mark = mark_of_row(audit.mark for audit in group) or ""
        lines.append([method, str(len(group)), f"{answers:,}", f"{undecided:,}", f"{wrong:,}", mark])
    print(visible(boxed(matrix, lines, None)))
    for audit in audited.cells:
        for sentence in audit.findings:
            console.print(f"wrong: {audit.label}: {sentence}", style="red")
        for sentence in dict.fromkeys(audit.notes):
            console.print(f"not judged: {audit.label}: {sentence}", style="yellow")
    for sentence in audited.findings:
        console.print(f"wrong: matrix.json: {sentence}", style="red")
    if any(audit.mark == COUNTED for audit in audited.cells):
        counted = sum(audit.counted for audit in audited.cells)
        console.print(f"in the pack as counts alone, and not judged again: {plural(counted, 'answer')}")
