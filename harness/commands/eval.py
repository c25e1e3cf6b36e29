"""entrobench eval: Avg@K, Pass@K and maj@K of any model, without training."""

from __future__ import annotations

import argparse
from pathlib import Path

import tasks
from harness.base import files, registry
from harness.base.errors import CellFailure
from harness.base.terminal import console
from harness.commands.common import Commands, command, with_plugins
from harness.rollout import models
from harness.verify.pool import VerifierPool

TEXT = "Avg@K, Pass@K and maj@K of any model, without training; samples are kept, and the same command draws none again"
EXAMPLES = (
    "entrobench eval --model countdown-tiny --tasks countdown --problems 20 --samples 8 --temperature 0.7 --seed 1",
    "entrobench eval --model ./my-model --tasks aime24,math500 --max-new-tokens 4096 --beyond-context --out mine",
    "entrobench eval --model Qwen/Qwen2.5-0.5B --tasks my_task --plugin my_tasks",
)


def add(commands: Commands) -> None:
    parser = command(commands, "eval", TEXT, EXAMPLES)
    parser.add_argument(
        "--model",
        required=True,
        help="a name of `entrobench list models`, a folder, a .gguf file, package:NAME, or a name on the Hub",
    )
    parser.add_argument("--tasks", required=True, metavar="TASK,...", help="names of `entrobench list tasks`")
    parser.add_argument("--samples", type=int, help="responses to each problem (default: the task's)")
    parser.add_argument("--problems", type=int, help="number of problems, from the first (default: all)")
    parser.add_argument("--temperature", type=float, help="of the sampling; 0 is greedy (default: the task's)")
    parser.add_argument("--max-new-tokens", type=int, help="most tokens of a response (default: the task's)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling (default: 0)")
    parser.add_argument(
        "--beyond-context", action="store_true", help="evaluate even beyond the model's max_position_embeddings"
    )
    parser.add_argument("--out", type=Path, help="folder for samples and results (default: results/eval/MODEL-KEY)")
    with_plugins(parser)


def call(arguments: argparse.Namespace) -> int:
    if arguments.out is not None:
        files.check_folder(arguments.out, f"--out {arguments.out}", make=True)
    model = models.resolve(arguments.model)
    specs = list(dict.fromkeys(map(str.strip, registry.split(arguments.tasks, ","))))
    chosen_tasks = [tasks.build_task(spec, arguments.plugin) for spec in specs]
    for line in tasks.descriptions(specs, arguments.plugin):
        console.print(line)
    from harness.elsewhere import assess  # imports torch, so only after the names have been checked

    wanted = assess.Wanted(
        samples=arguments.samples,
        temperature=arguments.temperature,
        max_new_tokens=arguments.max_new_tokens,
        problems=arguments.problems,
        seed=arguments.seed,
        beyond_context=arguments.beyond_context,
    )
    out = arguments.out or assess.default_folder(model, console.print)
    try:
        with VerifierPool() as verifier:
            results = assess.assess(model, chosen_tasks, wanted, verifier, out, console.print)
    except CellFailure as failure:
        console.print(f"failed  {failure}; the samples are kept in {out}", style="red")
        return 1
    assess.print_results(console, results)
    console.print(f"samples and results: {out}")
    return 0
