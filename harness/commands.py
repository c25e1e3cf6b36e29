"""What each command of the command line does; each imports what it needs, and gives its exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import cli
from harness import config as configs
from harness.config import Config, UserError
from harness.matrix import Cell, cells, claim

# Reasons and specs may hold brackets, so no markup; a file or a pipe gets one line a row.
WIDTH = None if sys.stdout.isatty() else 160
console = Console(highlight=False, soft_wrap=True, markup=False, width=WIDTH)


def run(arguments: argparse.Namespace) -> int:
    from harness.launch import local
    from harness.launch.progress import LiveView
    from harness.rollout import models

    config = cli.load(arguments)
    matrix = cells(config)
    jobs = arguments.jobs
    if jobs is None:
        jobs = default_jobs(config)
    if jobs < 1:
        raise UserError(f"--jobs is {jobs}; allowed: 1 and more")
    check_problems(config)
    todo = [cell for cell in matrix if cell.progress().state != "done"]
    if todo:
        check_engines(config)
    claim(config)
    for model in config.models:
        models.resolve(model).folder(say=console.print)
    console.print(
        f"matrix {config.name}: {len(matrix)} cells, {len(matrix) - len(todo)} done before, {len(todo)} to run"
    )
    if todo:
        with LiveView(console, matrix, todo, config.tracking_uri) as view:
            local.run(todo, jobs, view)
    failed = [cell for cell in matrix if cell.progress().state != "done"]
    for cell in failed:
        console.print(f"{cell.progress().state}  {cell.label}: see {cell.folder / 'log.txt'}", style="red")
    sync_all(config, matrix)
    show_leaderboard(config, matrix, "table")
    console.print(
        f"curves: entrobench report {arguments.config}, or mlflow ui --backend-store-uri {config.tracking_uri}"
    )
    return 1 if failed else 0


def default_jobs(config: Config) -> int:
    """Cells side by side: as many as there are cores for; one where they compute on GPUs, which one fills."""
    from harness.plan import estimate as plans

    if plans.this_machine(config).kind(config) == "cuda":
        return 1
    return max((os.cpu_count() or 1) // (config.hardware.threads * config.hardware.ranks), 1)


def check_problems(config: Config) -> None:
    """A set that is missing or damaged stops the matrix here, not in each of its cells."""
    import tasks

    for spec in config.tasks:
        tasks.build(spec).problems("train")
    for spec in config.eval.tasks or config.tasks:
        task = tasks.build(spec)
        task.problems(config.eval.of(task.name).split)


def check_engines(config: Config) -> None:
    """An engine that cannot sample here stops the matrix here, too."""
    from harness import rollout
    from harness.plan import estimate as plans
    from harness.rollout import models

    for shape in (models.resolve(model).shape() for model in config.models):
        if plans.samples_with_vllm(shape, config):
            rollout.check_vllm(plans.this_machine(config).kind(config), shape)


def sync_all(config: Config, matrix: list[Cell]) -> None:
    from harness.record import tracking

    for cell in matrix:
        if (cell.folder / "state.json").exists():
            tracking.sync(cell.folder, config.tracking_uri)


def sync(arguments: argparse.Namespace) -> int:
    config = cli.load(arguments)
    matrix = cells(config)
    sync_all(config, matrix)
    console.print(f"MLflow at {config.tracking_uri} holds what {len(matrix)} cells have recorded")
    return 0


def show_leaderboard(config: Config, matrix: list[Cell], how: str) -> None:
    from harness.report import table as leaderboard

    print(leaderboard.render(board(config, matrix), how), end="")


def board(config: Config, matrix: list[Cell]) -> list:
    import tasks
    from harness.report import table as leaderboard

    expected = [
        leaderboard.Expected(
            cell.method,
            cell.task,
            [tasks.build(spec).name for spec in cell.evaluation_tasks],
            cell.model,
            cell.seed,
            cell.key,
        )
        for cell in matrix
    ]
    ks = {task: config.eval.of(task).k for each in expected for task in each.eval_tasks}
    return leaderboard.rows(config.tracking_uri, config.name, expected, config.baseline, ks)


def leaderboard(arguments: argparse.Namespace) -> int:
    config = cli.load(arguments)
    show_leaderboard(config, cells(config), arguments.format)
    return 0


def report(arguments: argparse.Namespace) -> int:
    from harness.report import page

    config = cli.load(arguments)
    matrix = cells(config)
    path = page.write(config, matrix, board(config, matrix))
    console.print(f"wrote {path}")
    return 0


def plan(arguments: argparse.Namespace) -> int:
    from harness.plan import estimate as plans

    config = cli.load(arguments)
    plans.show(console, plans.of(config, cells(config), plans.this_machine(config)))
    return 0


def status(arguments: argparse.Namespace) -> int:
    config = cli.load(arguments)
    table = Table("cell", "state", "step", "entropy", "reward", "reason", box=None, header_style="dim")
    matrix = cells(config)
    for cell in matrix:
        progress = cell.progress()
        numbers = [
            f"{progress.metrics[k]:.3f}" if k in progress.metrics else "" for k in ("entropy/mean", "reward/mean")
        ]
        table.add_row(
            cell.label, progress.state, f"{progress.step}/{config.train.steps}", *numbers, progress.reason or ""
        )
    console.print(table)
    ours = {cell.folder for cell in matrix}
    others = [path for path in config.folder.glob("*/config.yaml") if path.parent not in ours]
    if others:
        console.print(f"{len(others)} more cells in {config.folder} belong to earlier versions of this configuration")
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    import tasks
    from harness.base import registry
    from harness.rollout import models
    from harness.verify.pool import TooManyFailures

    model = models.resolve(arguments.model)
    asked = [tasks.build(spec) for spec in registry.split(arguments.tasks, ",")]
    from harness.study import assess  # from here on with torch: what is misspelled is known by now

    given = ("samples", "temperature", "max_new_tokens", "problems", "seed", "beyond_context")
    wanted = assess.Wanted(**{key: getattr(arguments, key) for key in given})
    out = arguments.out or Path("results") / "eval" / model.name
    try:
        found = assess.assess(model, asked, wanted, out, console.print)
    except TooManyFailures as failure:
        console.print(f"failed  {failure}; what was sampled is kept in {out}", style="red")
        return 1
    assess.show(console, found)
    console.print(f"samples and results: {out}")
    return 0


def doctor(arguments: argparse.Namespace) -> int:
    from harness.plan import doctor as checks

    found = checks.findings(cli.load(arguments))
    if arguments.format == "json":
        print(json.dumps([vars(each) for each in found], indent=1))
    else:
        checks.show(console, found)
    return 1 if any(each.state == checks.BROKEN for each in found) else 0


def explain(arguments: argparse.Namespace) -> int:
    import baselines
    from harness.method import Method

    config = cli.load(arguments)
    cells(config)  # which checks the configuration
    table = baselines.table(config.plugins)
    specs = list(table) if arguments.method == "all" else arguments.method.split()
    for spec in specs:
        Method.of(spec, table, config.method_options)
    from harness.study import explain as lens  # from here on with torch: what is misspelled is known by now

    found = lens.explain(config, specs, arguments.batches)
    if arguments.format == "json":
        print(json.dumps(found, indent=1))
    else:
        lens.show(console, found)
    return 0


def dynamics(arguments: argparse.Namespace) -> int:
    config = cli.load(arguments)
    cells(config)  # which checks the configuration
    from harness.study import theory

    found = theory.measure(config, arguments.steps)
    theory.show(console, found)
    folder = config.folder / "dynamics"
    theory.write(folder, found)
    console.print(f"wrote dynamics.json and its plots to {folder}")
    return 0


def listing(arguments: argparse.Namespace) -> int:
    import baselines
    import tasks
    from harness.rollout import models

    def first_line(thing: object) -> str:
        return (thing.__doc__ or "").strip().splitlines()[0]

    table = Table(box=None, show_header=False)
    if arguments.what == "methods":
        for name, cls in baselines.table(arguments.plugin).items():
            table.add_row(name, first_line(cls), cls.source)
    elif arguments.what == "tasks":
        for name, task in tasks.TASKS.items():
            table.add_row(name, first_line(task))
    elif arguments.what == "models":
        for name in models.names():
            table.add_row(name, models.resolve(name).summary())
    else:
        for path in sorted(configs.CONFIGS.glob("*.yaml")):
            comment = path.read_text().splitlines()[0]
            table.add_row(path.stem, comment.removeprefix("#").strip())
    console.print(table)
    return 0


def data(arguments: argparse.Namespace) -> int:
    return data_prepare(arguments) if arguments.action == "prepare" else data_check()


def data_prepare(arguments: argparse.Namespace) -> int:
    from harness import data as sets

    table = Table("set", "problems", "rows", "left out", "mended", "fingerprint", box=None, header_style="dim")
    for about in sets.prepare(arguments.sets, arguments.origin, console.print):
        counts = (sum(about["problems"].values()), about["rows"], sum(about["dropped"].values()))
        mended = sum(number for reason, number in about["repaired"].items() if reason != sets.clean.UNWRAPPED)
        table.add_row(about["name"], *(f"{n:,}" for n in (*counts, mended)), about["fingerprint"][:12])
    console.print(table)
    console.print(f"kept in {sets.folder()}; a set's .json says where it is from, what was left out, and why")
    return 0


def data_check() -> int:
    from harness import data as sets

    table = Table("set", "problems", "word for word", "near", "verdict", box=None, header_style="dim")
    for name, found in sets.check().items():
        numbers = (str(found[key]) for key in ("problems", "contained", "near"))
        table.add_row(name, *numbers, "contaminated" if found["near"] else "clean")
    near = f"near: half of its {sets.overlap.N}-grams, or word for word"
    console.print(f"problems that also stand in {sets.TRAINED}; {near}")
    console.print(table)
    return 0
