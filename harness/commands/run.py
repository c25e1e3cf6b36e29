"""entrobench run: runs the missing cells of a matrix, and ends with its leaderboard."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import tasks
from harness.base.addresses import visible_address
from harness.base.deadline import finished_within
from harness.base.errors import UserError, one_of
from harness.cells import checksums
from harness.cells.attempts import complete_attempt, take_back
from harness.cells.state import OUTDATED, State
from harness.commands import leaderboard, sync
from harness.commands.common import (
    Commands,
    announce_compilation,
    command,
    config_of_arguments,
    confirm,
    console,
    outdated_sentences,
    tell_outdated,
    with_config,
)
from harness.config import Config, variants
from harness.launch.launcher import Launcher
from harness.launch.local import Local
from harness.launch.pool import GpuPool
from harness.matrix import Cell, cells, claim
from harness.methods.refusals import backend_obstacle
from harness.plan import cost
from harness.plan.machine import this_machine
from harness.ranks import devices
from harness.rollout import choice, digests, models

LAUNCHERS = ("local", "ray", "slurm")
EXAMPLES = (
    "entrobench run demo",
    "entrobench run demo train.lr=3e-4 'seeds=[0,1]' --jobs 2",
    "entrobench run demo --only clip_b --only clip_v --retry-failed",
    "entrobench run paper --launcher slurm --plugin my_methods --keep-stale",
    "entrobench run demo --rerun-edited",
)


def add(commands: Commands) -> None:
    text = "run the missing cells of a matrix, and end with its leaderboard"
    parser = with_config(command(commands, "run", text, EXAMPLES))
    parser.add_argument(
        "--jobs",
        type=int,
        default=None,
        help="most cells side by side (default: as many as GPUs, or cores, allow)",
    )
    parser.add_argument(
        "--launcher", choices=LAUNCHERS, default="local", help="where cells run: on this machine, by Ray or by SLURM"
    )
    parser.add_argument("--retry-failed", action="store_true", help="run only the cells that failed")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="METHOD",
        help="run only the cells of this method; may be repeated",
    )
    edited = parser.add_mutually_exclusive_group()
    edited.add_argument(
        "--keep-stale",
        action="store_true",
        help="keep finished cells whose method or task was edited since; the leaderboard marks them",
    )
    edited.add_argument(
        "--rerun-edited",
        action="store_true",
        help="train such cells again from step 0 without asking",
    )


def call(arguments: argparse.Namespace) -> int:
    config = config_of_arguments(arguments)
    code = run_matrix(
        config,
        arguments.jobs,
        arguments.launcher,
        keep_stale=arguments.keep_stale,
        rerun_edited=arguments.rerun_edited,
        only=arguments.only,
        retry_failed=arguments.retry_failed,
    )
    console.print(f"curves: entrobench report {arguments.config}, or {mlflow_hint(config.tracking_uri)}")
    return code


def mlflow_hint(uri: str) -> str:
    """Return a hint on seeing the curves in MLflow. `mlflow ui` shows stores; a tracking server has its own pages."""
    address = visible_address(uri)
    if uri.partition(":")[0].lower() in ("http", "https", "databricks"):
        return f"MLflow at {address}"
    return f"mlflow ui --backend-store-uri {address}"


def run_matrix(
    config: Config,
    jobs: int | None = None,
    where: str = "local",
    *,
    keep_stale: bool = False,
    rerun_edited: bool = False,
    only: Sequence[str] = (),
    retry_failed: bool = False,
) -> int:
    """Run the missing cells, feed MLflow, print the leaderboard, and return the exit code.

    `only`: the methods whose cells are run; `retry_failed`: of these, the cells that failed.
    """
    from harness.launch import launcher
    from harness.launch.progress import LiveView

    matrix = cells(config)
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs is {jobs}; allowed: 1 and more")
    for method in only:
        one_of("--only", method, config.methods)
    if any(models.resolve(model).shape() is None for model in config.models):
        check_problems(config)  # before a download
        fetch_models(config)
        matrix = cells(config)  # again: the shapes of the models decide the engines, and are known only now
    chosen = [cell for cell in matrix if is_chosen(cell, only, retry_failed=retry_failed)]
    todo = unfinished(chosen, keep_stale)
    if todo:
        announce_compilation()
        check_problems(config)
        check_engines(todo)
    # Before anything is written or downloaded: the answer may be no.
    if not may_train_again(todo, rerun_edited=rerun_edited):
        console.print("nothing was run; --keep-stale runs the other cells and keeps these")
        return 1
    claim(config)
    # Only now that the folder is known to be this matrix's own: this moves records in it.
    if take_back_undone_edits(todo):
        todo = unfinished(chosen, keep_stale)
    present = fetch_models(config)
    for model, digest in present.items():
        console.print(f"base model {model}: {digest[: digests.SHOWN]}")
    number = f"{len(matrix)} cells"
    if chosen != matrix:
        number = f"{len(chosen)} of {number}"
    console.print(f"matrix {config.name}: {number}, {len(chosen) - len(todo)} done before, {len(todo)} to run")
    progress = [(cell, cell.progress()) for cell in todo]
    tell_outdated(progress, "training starts again at step 0, and the earlier attempts are kept")
    if todo:
        with LiveView(console, chosen, todo, config.tracking_uri) as view:
            # Any cell's: of the settled values only the engine depends on the model, and launchers do not read it.
            launcher.run_cells(todo, launcher_of(where, todo[0].settled, jobs), view)
    failed = [cell for cell in chosen if not settled(cell, keep_stale)]
    for cell in failed:
        console.print(f"{cell.progress().state}  {cell.label}: see {cell.folder / 'log.txt'}", style="red")
    if not finished_within(60 * config.tracking.patience_minutes, lambda: conclude(config, matrix)):
        raise UserError(
            f"the MLflow store at {visible_address(config.tracking_uri)} took longer than tracking.patience_minutes "
            f"({config.tracking.patience_minutes:g}); the records are kept: `entrobench sync` feeds it, and then "
            "`entrobench leaderboard` has the table"
        )
    return int(bool(failed))


def is_chosen(cell: Cell, only: Sequence[str], *, retry_failed: bool) -> bool:
    if only and cell.method not in only:
        return False
    return not retry_failed or State.known(cell.folder).state == "failed"


def unfinished(chosen: Sequence[Cell], keep_stale: bool) -> list[Cell]:
    """Return the cells that are not done, or whose records changed since."""
    todo = []
    for cell in chosen:
        if not settled(cell, keep_stale) or any(checksums.changed_records(cell.folder)):
            todo.append(cell)
    return todo


def may_train_again(todo: Sequence[Cell], *, rerun_edited: bool) -> bool:
    """Ask before cells that are done are trained again because their method or task was edited.

    A cell is not asked about if an earlier attempt by the present source is complete: that one is taken back.
    """
    edited = []
    for cell in todo:
        progress = cell.progress()
        done = progress.state == OUTDATED and State.known(cell.folder).state == "done"
        if done and complete_attempt(cell.folder, cell.sources) is None:
            edited.append((cell, progress))
    if rerun_edited or not edited:
        return True
    number = "1 cell that is done" if len(edited) == 1 else f"{len(edited)} cells that are done"
    sentences = outdated_sentences(edited)
    if sys.stdin.isatty():  # without a terminal they are part of the refusal
        for sentence in sentences:
            console.print(sentence, style="yellow")
    return confirm(
        f"Train {number} again from step 0?",
        f"{'; '.join(sentences)}; to train {number} again use --rerun-edited (in Python: rerun_edited=True), to keep "
        "the numbers use --keep-stale",
    )


def take_back_undone_edits(todo: Sequence[Cell]) -> bool:
    """Take back the earlier attempts of the present source, and return whether any was taken back."""
    any_taken = False
    for cell in todo:
        if cell.progress().state != OUTDATED:
            continue
        aside = complete_attempt(cell.folder, cell.sources)
        if aside is not None and take_back(cell.folder, aside):
            any_taken = True
            console.print(f"{cell.label}: the edit was undone, so the attempt in {aside.name} counts again")
    return any_taken


def conclude(config: Config, matrix: list[Cell]) -> None:
    """Feed MLflow with the records of all cells, and print the leaderboard, for which MLflow is read once."""
    from harness.table.publish import publish

    sync.sync_matrix(config, matrix)
    leaderboard.print_table(publish(config, matrix))


def fetch_models(config: Config) -> dict[str, str]:
    """Make or download the models that are not on this machine, and return the digest of each."""
    from harness.launch.progress import show_elapsed

    digests_by_model = {}
    for name in config.models:
        with show_elapsed(console, f"preparing the model {name}"):
            model = models.resolve(name)
            digests_by_model[name] = model.digest(model.folder(say=console.print))
    return digests_by_model


def settled(cell: Cell, keep_stale: bool) -> bool:
    """Return whether a cell needs no more work."""
    state = cell.progress().state
    return state == "done" or (keep_stale and state == OUTDATED and State.known(cell.folder).state == "done")


def launcher_of(where: str, config: Config, jobs: int | None) -> Launcher:
    """Return the launcher of that name for cells of a settled configuration."""
    one_of("launcher", where, LAUNCHERS)
    device = config.hardware.device
    if where == "ray":
        from harness.elsewhere.ray import Ray

        return Ray(config, device, jobs)
    if where == "slurm":
        from harness.launch.slurm import SlurmArray

        return SlurmArray(config, device, jobs)
    return local_launcher(config, jobs)


def local_launcher(config: Config, jobs: int | None) -> Local:
    """Return the launcher for this machine; without `jobs` it runs as many cells as GPUs or cores allow."""
    hardware, machine = config.hardware, this_machine(config)
    pool = None
    if hardware.device == "cuda":
        pool = GpuPool(devices.gpus())
        pool.check(hardware)
        machine = replace(machine, devices=machine.devices[: len(pool.free)])
    return Local(jobs or machine.at_once(config), hardware.threads, pool)


def check_problems(config: Config) -> None:
    """Refuse a missing, damaged or too small problem set, on which each cell would fail."""
    for spec in config.tasks:
        tasks.build_task(spec, config.plugins).problems("train")
    for spec in config.eval.tasks or config.tasks:
        task = tasks.build_task(spec, config.plugins)
        task.problems(config.eval.of(tasks.evaluation_name(task)).split)
    cost.check_problem_counts(variants(config))


def check_engines(matrix: Sequence[Cell]) -> None:
    """Refuse cells whose trainer or engine cannot run on this machine."""
    one_of_each_backend = {cell.config.train.backend: cell.settled for cell in matrix}
    for config in one_of_each_backend.values():
        if reason := backend_obstacle(config):
            raise UserError(reason)
    one_of_each_model = {cell.model: cell for cell in matrix}
    for name, cell in one_of_each_model.items():
        if cell.settled.rollout.engine == "vllm":
            choice.check_vllm(cell.settled.hardware.device, models.resolve(name).shape())
