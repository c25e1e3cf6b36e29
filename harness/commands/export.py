"""entrobench export: the trained model of a cell as a folder of transformers, or on the Hugging Face Hub."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.base.terminal import console
from harness.commands.common import Commands, command

TEXT = "the trained model of a finished cell as a folder that transformers reads, with a model card"
EXAMPLES = (
    "entrobench export results/demo/clip_b-countdown-countdown-tiny-s10-6dc514fceb92 my-model",
    "entrobench export results/mine/grpo-gsm8k-qwen2.5-0.5b-instruct-s0-0f4c1a2b3d4e my-model --push me/my-model",
)


def add(commands: Commands) -> None:
    parser = command(commands, "export", TEXT, EXAMPLES)
    parser.add_argument("cell", metavar="CELL", type=Path, help="the folder of a cell that is done")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the new folder of the model")
    parser.add_argument(
        "--push",
        metavar="USER/NAME",
        help="also send it to this repository of the Hub, which is made if it is missing: public, unless the settings "
        "of its owner say otherwise",
    )


def call(arguments: argparse.Namespace) -> int:
    from harness.elsewhere.export import export_cell  # imports torch

    export_cell(arguments.cell, arguments.folder, arguments.push, console.print)
    return 0
