"""Running, feeding and reading a matrix: the functions that the Python interface and the commands share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tasks
from harness.base import devices
from harness.base.addresses import visible_address
from harness.base.bytecode import announce_compilation
from harness.base.deadline import finished_within, results_as_ready
from harness.base.errors import Damaged, UserError, one_of
from harness.cells import checksums
from harness.cells.adopted import adopted_folders, is_adopted
from harness.cells.attempts import complete_attempt, earlier_attempts, take_back
from harness.cells.state import OUTDATED, Progress, State
from harness.config import Config, variants
from harness.launch.launcher import Launcher
from harness.launch.local import Local
from harness.launch.machine import this_machine
from harness.launch.pool import GpuPool
from harness.matrix import Cell, cells, claim
from harness.methods.refusals import backend_obstacle
from harness.rollout import choice, digests, models
from harness.terminal.layout import confirm, console, visible, width_of
from harness.terminal.units import plural
from tasks.data import cache

if TYPE_CHECKING:
    from harness.table.leaderboard import LeaderboardRow

LAUNCHERS = ("local", "ray", "slurm")
RAY = "harness.elsewhere.ray"  # by name, since it is an annex, which nothing here imports
# Cells that are sent to a server at once; it has four processes by default. A file has one writer at a time.
AT_ONCE = 4
CONTINUES = "; the same command continues from there"


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
    conclude(config, matrix)
    untrained = [cell for cell in chosen if State.known(cell.folder).untrained]
    if untrained:
        console.print(
            f"{len(untrained)} of {plural(len(chosen), 'cell')} learned nothing, since no step had a signal; the notes "
            "below the table say why",
            style="red",
        )
    return int(bool(failed or untrained))


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

    def work() -> None:
        sync_matrix(config, matrix)
        print_table(publish(config, matrix))

    remedy = "; the records are kept: `entrobench sync` feeds it, and then `entrobench leaderboard` has the table"
    in_time(config, work, remedy)


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
        ray: Launcher = importlib.import_module(RAY).Ray(config, device, jobs)
        return ray
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
    check_problem_counts(variants(config))


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


def check_problem_counts(variants: Sequence[Config]) -> None:
    """Refuse evaluations of more problems than their split has, if its size is known."""
    sizes: dict[tuple[str, str], tuple[int, bool]] = {}  # by task and split: Countdown takes 0.1 s to list its problems
    evaluations = []
    for config in variants:
        for spec in config.eval.tasks or config.tasks:
            evaluations.append((config, spec))
    for config, spec in evaluations:
        task = tasks.build_task(spec, config.plugins)
        name = tasks.evaluation_name(task)
        settings = config.eval.of(name)
        if settings.problems is None:
            continue
        place = name, settings.split
        if place not in sizes:
            sizes[place] = cache.problem_count(task, settings.split)
        number, known = sizes[place]
        if known and settings.problems > number:
            for_this_task = config.eval.by_task.get(name, {}).get("problems") is not None
            key = f"eval.by_task.{name}.problems" if for_this_task else "eval.problems"
            raise UserError(
                f"{key} is {settings.problems}, but {name} has {number} problems in its {settings.split} split "
                f"(allowed: up to {number}, or null for all)"
            )


# MLflow


def sync_matrix(config: Config, matrix: list[Cell]) -> tuple[int, int]:
    """Feed MLflow with all cells that have records; return the numbers of fed cells and of damaged ones.

    Adopted cells of the matrix's folder are among them. Earlier attempts at a cell are fed too; they count only if they
    are damaged.
    """
    from harness.launch.progress import show_count

    planned = [cell.folder for cell in matrix]
    present = [*planned, *adopted_folders(config.folder)]
    folders = folders_with_records(present)
    fed, damaged = set[Path](), 0
    with show_count(console, "feeding MLflow with cells", len(folders)) as show_next:
        for folder, damage in fed_folders(config, folders):
            show_next(folder.name)
            if damage is None:
                fed.add(folder)
            else:
                damaged += 1
                remedy = "adopt" if is_adopted(folder) else "run"
                console.print(f"MLflow is not fed: {damage}; `entrobench {remedy}` repairs the cell", style="yellow")
    return len(fed.intersection(present)), damaged


def sync_and_publish(config: Config, matrix: list[Cell]) -> tuple[int, int]:
    """Feed MLflow with cells and table; return the numbers of `sync_matrix`."""
    from harness.table.publish import publish

    counts = sync_matrix(config, matrix)
    in_time(config, partial(publish, config, matrix), f" for the table{CONTINUES}")
    return counts


def folders_with_records(cell_folders: Sequence[Path]) -> list[Path]:
    """Return the folders of those cells that have begun, each after those of its earlier attempts."""
    folders = []
    for cell_folder in cell_folders:
        for folder in (*earlier_attempts(cell_folder), cell_folder):
            if (folder / "state.json").exists() or (folder / "metrics.jsonl").exists():
                folders.append(folder)
    return folders


def fed_folders(config: Config, folders: Sequence[Path]) -> Iterator[tuple[Path, Damaged | None]]:
    """Feed MLflow with cells, and yield each folder with the damage for which it was not fed."""
    from harness.tracking.store import is_server, store
    from harness.tracking.sync import sync

    uri = config.tracking_uri

    def feed(folder: Path) -> Damaged | None:
        try:
            in_time(config, partial(sync, folder, uri), f" for {folder.name}{CONTINUES}")
        except Damaged as damage:
            return damage
        return None

    def connect() -> None:
        with store(uri, write=True):  # loads MLflow here, not in several threads at the same time
            pass

    threads = 1
    if is_server(uri):
        in_time(config, connect, f" for the connection{CONTINUES}")
        threads = AT_ONCE
    yield from results_as_ready(feed, folders, threads)


def in_time(config: Config, work: Callable[[], object], sentence: str) -> None:
    """Do work with MLflow within tracking.patience_minutes; `sentence` ends the error."""
    minutes = config.tracking.patience_minutes
    if not finished_within(60 * minutes, work):
        raise UserError(
            f"the MLflow store at {visible_address(config.tracking_uri)} took longer than tracking.patience_minutes "
            f"({minutes:g}){sentence}"
        )


def print_table(rows: Sequence[LeaderboardRow]) -> None:
    """Print the table of a matrix, whether or not any cell is done."""
    from harness.table.render import render_rows

    print(visible(render_rows(rows, "table", width_of(console))), end="")


def matrix_rows(config: Config, matrix: list[Cell]) -> list[LeaderboardRow]:
    """Return the rows of the matrix, with the cells that are not done counted as expected."""
    from harness.table.board import Board
    from harness.table.experiment import Experiment
    from harness.table.frames import read_frames
    from harness.table.leaderboard import leaderboard_rows
    from harness.tracking.reader import reader

    uri = config.tracking_uri
    with reader(uri) as source:
        experiment = Experiment(source, config.name, uri)
        board = Board.of_config(config, matrix).with_adopted(experiment.runs)
        frames = read_frames(experiment, board.expected, board.baseline)
    return leaderboard_rows(frames, board.baseline, board.ks)


def tell_outdated(cells: Iterable[tuple[Cell, Progress]], what_then: str) -> None:
    """Print which cells are outdated, and why."""
    for sentence in outdated_sentences(cells):
        console.print(f"{sentence}; {what_then}", style="yellow")


def outdated_sentences(cells: Iterable[tuple[Cell, Progress]]) -> list[str]:
    """Return a sentence for each reason for which cells are outdated, with their labels."""
    labels_by_reason: dict[str | None, list[str]] = {}
    for cell, progress in cells:
        if progress.state == OUTDATED:
            labels_by_reason.setdefault(progress.reason, []).append(cell.label)
    sentences = []
    for reason, labels in labels_by_reason.items():
        verb = "was" if len(labels) == 1 else "were"
        sentences.append(f"{plural(len(labels), 'cell')} {verb} {reason} ({', '.join(labels)})")
    return sentences
