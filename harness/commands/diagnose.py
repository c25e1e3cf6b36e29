"""entrobench diagnose: why the entropy of one run collapsed or exploded, from its logged curves."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness.base.terminal import console, visible, width_of
from harness.commands.common import Commands, command

EXAMPLES = (
    "entrobench diagnose results/demo/grpo-countdown-countdown-tiny-s10-6dc514fceb92",
    "entrobench diagnose my_trl_run/checkpoint-500/trainer_state.json --format json",
    "entrobench diagnose verl_run.jsonl",
)


def add(commands: Commands) -> None:
    text = "why the entropy of one run collapsed or exploded: its verdict and likely causes, from the logged curves"
    parser = command(commands, "diagnose", text, EXAMPLES)
    readable = (
        "a cell's folder or its metrics.jsonl; TRL's output folder, trainer_state.json or log history as JSON lines; "
        "the log of verl's file logger; a CSV file with a column `step` and such keys as columns"
    )
    parser.add_argument("run", metavar="RUN", type=Path, help=readable)
    parser.add_argument("--format", choices=["table", "json"], default="table", help="form of the output")


def call(arguments: argparse.Namespace) -> int:
    from harness.diagnose.readers import read_run
    from harness.diagnose.rules import diagnose_run
    from harness.diagnose.text import diagnosis_record, diagnosis_text

    diagnosis = diagnose_run(read_run(arguments.run))
    if arguments.format == "json":
        print(json.dumps(diagnosis_record(diagnosis), indent=1))
    else:
        print(visible(diagnosis_text(diagnosis, width_of(console))), end="")
    return 0
