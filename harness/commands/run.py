"""entrobench run: runs what is missing of a matrix, and ends with its leaderboard."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import tasks
from harness.base.addresses import visible_address
from harness.base.deadline import finished_within
from harness.base.errors import UserError, one_of
from harness.cells import checksums
from harness.cells.state import OUTDATED, State
from harness.commands import leaderboard, sync
from harness.commands.common import Commands, command, console, load, tell_outdated, with_config
from harness.config import Config, variants
from harness.dist import devices
from harness.launch.launcher import Launcher
from harness.launch.local import Local
from harness.launch.pool import Pool
from harness.matrix import Cell, cells, claim
from harness.plan import cost
from harness.plan.machine import samples_with_vllm, this_machine
from harness.rollout import choice, digests, models

LAUNCHERS = ("local", "ray", "slurm")


def add(commands: Commands) -> None:
    parser = with_config(command(commands, "run", "run what is missing of a matrix, and end with its leaderboard"))
    parser.add_argument(
        "--jobs",
        type=int,
        default=None,
        help="cells side by side, at most (default: as many as there are GPUs for, or cores)",
    )
    parser.add_argument("--launcher", choices=LAUNCHERS, default="local")
    parser.add_argument("--retry-failed", action="store_true", help="run the cells that failed, and no others")
    parser.add_argument(
        "--only", action="append", default=[], metavar="METHOD", help="run the cells of this method, and no others"
    )
    parser.add_argument(
        "--keep-stale",
        action="store_true",
        help="keep cells that are done though their method or task was edited since; the leaderboard marks them",
    )


def call(arguments: argparse.Namespace) -> int:
    config = load(arguments)
    code = run(
        config,
        arguments.jobs,
        arguments.launcher,
        keep_stale=arguments.keep_stale,
        only=arguments.only,
        retry_failed=arguments.retry_failed,
    )
    uri = visible_address(config.tracking_uri)
    console.print(f"curves: entrobench report {arguments.config}, or mlflow ui --backend-store-uri {uri}")
    return code


def run(
    config: Config,
    jobs: int | None = None,
    where: str = "local",
    *,
    keep_stale: bool = False,
    only: Sequence[str] = (),
    retry_failed: bool = False,
) -> int:
    """Runs the missing cells, or those of some methods and those that failed, feeds MLflow, prints the leaderboard;
    returns the exit code."""
    from harness.launch import launcher
    from harness.launch.progress import LiveView

    matrix = cells(config)
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs is {jobs}; allowed: 1 and more")
    for method in only:
        one_of("--only", method, config.methods)
    check_problems(config)
    if any(models.resolve(model).shape() is None for model in config.models):
        fetch_models(config)
        matrix = cells(config)  # anew: the shape of a model, known by now, decides which engine samples from it
    chosen = [cell for cell in matrix if not only or cell.method in only]
    if retry_failed:
        chosen = [cell for cell in chosen if State.known(cell.folder).state == "failed"]
    todo = [cell for cell in chosen if not settled(cell, keep_stale) or any(checksums.changed(cell.folder))]
    if todo:
        check_engines(config)
    claim(config)
    present = fetch_models(config)
    for model, digest in present.items():
        console.print(f"base model {model}: {digest[: digests.SHOWN]}")
    number = f"{len(matrix)} cells" if chosen == matrix else f"{len(chosen)} of {len(matrix)} cells"
    console.print(f"matrix {config.name}: {number}, {len(chosen) - len(todo)} done before, {len(todo)} to run")
    progress = [(cell, cell.progress()) for cell in todo]
    tell_outdated(progress, "they begin anew, and the earlier attempts are kept beside them")
    if todo:
        with LiveView(console, chosen, todo, config.tracking_uri) as view:
            launcher.run(todo, launcher_of(where, config, jobs), view)
    failed = [cell for cell in chosen if not settled(cell, keep_stale)]
    for cell in failed:
        console.print(f"{cell.progress().state}  {cell.label}: see {cell.folder / 'log.txt'}", style="red")
    if not finished_within(60 * config.tracking.patience_minutes, lambda: conclude(config, matrix)):
        raise UserError(
            f"the MLflow store at {visible_address(config.tracking_uri)} took longer than tracking.patience_minutes "
            f"({config.tracking.patience_minutes:g}); the records are kept: `entrobench sync` feeds it, and then "
            "`entrobench leaderboard` has the table"
        )
    return 1 if failed else 0


def conclude(config: Config, matrix: list[Cell]) -> None:
    """Has MLflow hold all that the cells have recorded, and prints the leaderboard."""
    from harness.table import publish

    sync.sync(config, matrix)
    publish.write(config, matrix)
    leaderboard.show(config, matrix)


def fetch_models(config: Config) -> dict[str, str]:
    """Make or download the models that are not on this machine, and return the digest of each."""
    from harness.launch.progress import clock

    found = {}
    for name in config.models:
        with clock(console, f"making ready the model {name}"):
            model = models.resolve(name)
            found[name] = model.digest(model.folder(say=console.print))
    return found


def settled(cell: Cell, keep_stale: bool) -> bool:
    """Returns whether nothing of a cell is left to run."""
    state = cell.progress().state
    return state == "done" or (keep_stale and state == OUTDATED and State.known(cell.folder).state == "done")


def launcher_of(where: str, config: Config, jobs: int | None) -> Launcher:
    one_of("launcher", where, LAUNCHERS)
    device = this_machine(config).kind(config)
    if where == "ray":
        from harness.launch.ray import Ray

        return Ray(config, device, jobs)
    if where == "slurm":
        from harness.launch.slurm import Slurm

        return Slurm(config, device, jobs)
    return local(config, jobs)


def local(config: Config, jobs: int | None) -> Local:
    """Returns the launcher for this machine, which has room for as many cells as there are GPUs or cores for."""
    hardware, machine = config.hardware, this_machine(config)
    pool = None
    if machine.kind(config) == "cuda":
        pool = Pool(devices.gpus())
        pool.check(hardware)
        machine = replace(machine, devices=machine.devices[: len(pool.free)])
    return Local(jobs or machine.at_once(config), hardware.threads, pool)


def check_problems(config: Config) -> None:
    """Stop the matrix where a problem set is missing, damaged or too small, before each of its cells would fail."""
    for spec in config.tasks:
        tasks.build_task(spec, config.plugins).problems("train")
    for spec in config.eval.tasks or config.tasks:
        task = tasks.build_task(spec, config.plugins)
        task.problems(config.eval.of(tasks.evaluation_name(task)).split)
    cost.check_problems(variants(config))


def check_engines(config: Config) -> None:
    """Stops the matrix where an engine cannot sample here."""
    for shape in (models.resolve(model).shape() for model in config.models):
        if samples_with_vllm(shape, config):
            choice.check_vllm(this_machine(config).kind(config), shape)
