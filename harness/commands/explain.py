"""entrobench explain: the tokens that a method drops or weighs, and the effect on the entropy."""

from __future__ import annotations

import argparse
import json

import baselines
from harness.base import registry
from harness.base.errors import UserError, shown
from harness.base.terminal import console
from harness.commands.common import Commands, command, config_of_arguments, with_config
from harness.matrix import cells, check_filter, check_group
from harness.methods.composition import Method

EXAMPLES = (
    "entrobench explain clip_b demo",
    "entrobench explain 'clip_b ppo+clip_v(share=0.01)' demo train.group=8 --batches 8",
    "entrobench explain all my.yaml --plugin my_methods --format json",
)


def add(commands: Commands) -> None:
    text = "which tokens a method drops or weighs, and what that does to the entropy, on a few batches"
    parser = command(commands, "explain", text, EXAMPLES)
    several = "a method, several methods separated by spaces, or `all` that the configuration allows"
    parser.add_argument("method", metavar="METHOD", help=several)
    with_config(parser)
    parser.add_argument("--batches", type=int, default=4, help="rollout batches to examine (default: 4)")
    parser.add_argument("--format", choices=["table", "json"], default="table", help="form of the output")


def call(arguments: argparse.Namespace) -> int:
    config = config_of_arguments(arguments)
    cells(config)  # checks the configuration
    table = baselines.table(config.plugins)
    named = list(filter(None, registry.split(arguments.method, " "))) or [arguments.method]  # an empty one is refused
    if "all" in named and len(named) > 1:
        raise UserError(f"METHOD is {shown(arguments.method)}; `all` is the whole registry, without others")
    specs = list(table) if arguments.method == "all" else named
    methods = {spec: Method.of(spec, table, config.method_options) for spec in specs}
    if arguments.method == "all":
        methods = {spec: method for spec, method in methods.items() if method.min_group <= config.train.group}
        if config.train.filter is None:
            methods = {spec: method for spec, method in methods.items() if not method.needs_filter}
    for method in methods.values():
        check_filter(config, method)
        check_group(config, method)
    from harness.theory import explain  # imports torch, so only after the names have been checked

    of_clips = {} if arguments.method == "all" else explain.with_shares(methods)
    tried = [spec for specs_of_clip in of_clips.values() for spec in specs_of_clip]
    all_explanations = explain.explain(config, [*methods, *tried], arguments.batches)
    explanations = [row for row in all_explanations if row["method"] in methods]
    if arguments.format == "json":
        print(json.dumps(explanations, indent=1))
    else:
        explain.print_explanations(console, explanations)
        if of_clips:
            explain.print_strengths(console, of_clips, all_explanations)
        if any(method.objective.lr is not None for method in methods.values()):
            note = "a learning rate of its own changes nothing here: all methods are shown on the updates of plain GRPO"
            console.print(note, style="dim")
        for spec, method in methods.items():
            if method.base_share > 0 or "likeliest_entropy" in method.needs:
                note = f"{spec} has a term that is left out: only what uses the tokens' log p and entropy is shown"
                console.print(note, style="dim")
    return 0
