"""Running, feeding and reading a matrix: the functions that the Python interface and the commands share."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import tasks
from harness.base import devices
from harness.base.errors import Damaged, UserError, one_of, shown
from harness.base.terminal import console, visible, width_of
from harness.base.units import plural
from harness.cells import checksums
from harness.cells.log import FILE as METRICS
from harness.cells.spec import adopted_folders, is_adopted
from harness.cells.state import FILE as STATE
from harness.cells.state import STOP_MARK, STOPPED, State, is_stopped
from harness.config import Config, setting_label, variants
from harness.config.checks import check_scheme
from harness.launch.launcher import Launcher
from harness.launch.local import Local
from harness.launch.machine import check_gpus, check_one_machine, this_machine
from harness.matrix import Cell, cells, claim
from harness.methods.refusals import trainer_obstacle
from harness.rollout import choice, digests, models
from tasks.data import cache

if TYPE_CHECKING:
    from harness.table.leaderboard import LeaderboardRow

LAUNCHERS = ("local", "ray", "slurm")
RAY = "harness.elsewhere.ray"  # by name, since it is an annex, which nothing here imports


def run_matrix(
    config: Config,
    jobs: int | None = None,
    where: str = "local",
    *,
    only: Sequence[str] = (),
    retry_failed: bool = False,
) -> int:
    """Run the missing cells, feed MLflow, print the leaderboard, and return the exit code.

    `only`: the methods whose cells are run; `retry_failed`: of these, the cells that failed or are damaged.
    """
    from harness.launch import launcher
    from harness.launch.progress import LiveView

    check_scheme(config.tracking_uri)  # here, since commands that only read may have a wrong MLFLOW_TRACKING_URI
    matrix = cells(config)
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs is {jobs}; allowed: 1 and more")
    for method in only:
        one_of("--only", method, config.methods)
    if any(models.resolve(model).shape() is None for model in config.models):
        check_problems(config)  # before a download
        fetch_models(config)
        matrix = cells(config)  # again: the shapes of the models decide the engines, and are known only now
    chosen = [cell for cell in matrix if not only or cell.method in only]
    if retry_failed:
        chosen = [cell for cell in chosen if State.known(cell.folder).state == "failed" or is_damaged(cell)]
    todo = unfinished(chosen)
    if todo:
        check_problems(config)
        check_engines(todo)
        # By any cell: of the settled values only the engine depends on the model, and launchers do not read it.
        to_start = launcher_of(where, todo[0].settled, jobs)
    claim(config)
    for model, digest in fetch_models(config).items():
        console.print(f"base model {model}: {digest[: digests.SHOWN]}")
    announce(config, matrix, chosen, todo)
    if todo:
        if where == "local":
            look_at_models(todo)
        with LiveView(console, chosen, todo, config.tracking_uri) as view:
            launcher.run_cells(todo, to_start, view)
    missing = show_missing(chosen)
    conclude(config, matrix)
    untrained = show_untrained(chosen)
    return int(missing or untrained)


def announce(config: Config, matrix: Sequence[Cell], chosen: Sequence[Cell], todo: Sequence[Cell]) -> None:
    """Print how many cells will run, on what, and which of them may end early or within their warmup."""
    number = plural(len(matrix), "cell")
    if chosen != matrix:
        number = f"{len(chosen)} of {number}"
    done = sum(map(is_done, chosen))
    stopped = sum(cell.progress().state == STOPPED for cell in chosen)
    counts = f"{done} done before, {f'{stopped} stopped by hand, ' if stopped else ''}{len(todo)} to run"
    console.print(f"matrix {config.name}: {number}, {counts}")
    for line in tasks.descriptions([*config.tasks, *config.eval.tasks], config.plugins):
        console.print(line)
    notes = [(cell.config.train.short_warmup, cell.config.stop.rule) for cell in todo]
    for line in filter(None, dict.fromkeys(chain.from_iterable(notes))):
        console.print(line)


def show_missing(chosen: Sequence[Cell]) -> bool:
    """Name the cells without a result and their logs; return whether there are any."""
    missing = [cell for cell in chosen if cell.progress().missing]
    for cell in missing:
        log = cell.folder / "log.txt"
        console.print(f"{cell.progress().state}  {cell.label}: see {log}, and docs/trouble.md", style="red")
    return bool(missing)


def show_untrained(chosen: Sequence[Cell]) -> bool:
    """Say how many cells learned nothing; return whether there are any."""
    untrained = [cell for cell in chosen if State.known(cell.folder).untrained]
    if untrained:
        console.print(
            f"{len(untrained)} of {plural(len(chosen), 'cell')} learned nothing, since no step had a signal; above the "
            f"table stands why, in docs/trouble.md what to do; `entrobench diagnose {untrained[0].folder}` says more",
            style="red",
        )
    return bool(untrained)


def look_at_models(todo: Sequence[Cell]) -> None:
    """Look at each model on its task before the first cell; refuse what cannot learn for certain."""
    from harness.runs.look import look_first

    first = {(cell.model, cell.task): cell for cell in reversed(todo)}
    for (model, spec), cell in first.items():
        if cell.settled.hardware.ranks > 1:
            continue  # the model may be too large for one device
        seen = look_first(cell.settled, model, tasks.build_task(spec, cell.config.plugins), console.print)
        if seen is None:
            continue
        line = f"{model} on {seen.task}: {seen.sentence}"
        if seen.hopeless:
            raise UserError(line)
        console.print(line, style="" if seen.can_learn else "yellow")
        for note in seen.notes:
            console.print(f"note: {note}", style="yellow")


def stop_cells(config: Config, method: str, seed: int | None, *, undo: bool) -> list[Cell]:
    """Mark the cells of a method that are not done, or take their marks back; return them."""
    one_of("METHOD", method, config.methods)
    if seed is not None and seed not in config.seeds:
        raise UserError(f"--seed is {seed}; allowed: {', '.join(map(str, config.seeds))}")
    marked = [
        cell for cell in cells(config) if cell.method == method and seed in (None, cell.seed) and not is_done(cell)
    ]
    claim(config)
    for cell in marked:
        if undo:
            (cell.folder / STOP_MARK).unlink(missing_ok=True)
        else:
            cell.folder.mkdir(parents=True, exist_ok=True)
            (cell.folder / STOP_MARK).touch()
    return marked


def unfinished(chosen: Sequence[Cell]) -> list[Cell]:
    """Return the cells that are not done and not stopped by hand, or are done and whose records changed since."""
    todo = []
    for cell in chosen:
        if is_damaged(cell) or not (is_done(cell) or is_stopped(cell.folder)):
            todo.append(cell)
    return todo


def conclude(config: Config, matrix: list[Cell]) -> None:
    """Feed MLflow with the records of all cells, and print the leaderboard, for which MLflow is read once."""
    from harness.table.publish import publish
    from harness.table.render import render_rows

    sync_matrix(config, matrix)
    rows = publish(config, matrix)
    print(visible(render_rows(rows, "table", width_of(console))), end="")


def fetch_models(config: Config) -> dict[str, str]:
    """Make or download the models that are not on this machine, and return the digest of each."""
    digests_by_model = {}
    for name in config.models:
        with console.status(f"preparing the model {name}"):
            model = models.resolve(name)
            digests_by_model[name] = model.digest(model.folder(say=console.print))
    return digests_by_model


def is_done(cell: Cell) -> bool:
    return cell.progress().state == "done"


def is_damaged(cell: Cell) -> bool:
    """Return whether a cell is done and its records changed since."""
    return is_done(cell) and any(checksums.changed_records(cell.folder))


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
    check_one_machine(hardware)
    gpus = None
    if hardware.device == "cuda":
        gpus = list(dict.fromkeys(devices.gpus()))  # a user may name one twice
        check_gpus(len(gpus), hardware)
        machine = replace(machine, devices=machine.devices[: len(gpus)])
    return Local(jobs or machine.at_once(config), hardware.threads, gpus)


def check_problems(config: Config) -> None:
    """Refuse a problem set on which each cell would fail, or take one problem for another."""
    for spec in config.tasks:
        check_ids(tasks.build_task(spec, config.plugins), "train")
    for spec in config.eval.tasks or config.tasks:
        task = tasks.build_task(spec, config.plugins)
        check_ids(task, config.eval.of(tasks.evaluation_name(task)).split)
    check_problem_counts(variants(config))


def check_ids(task: tasks.Task, split: str) -> None:
    """Refuse a split without problems, or with two of the same id."""
    ids = Counter(problem.id for problem in task.problems(split))
    if not ids:
        raise UserError(f"{tasks.evaluation_name(task)} has no problems in its {split} split")
    ((most, times),) = ids.most_common(1)
    if times > 1:
        raise UserError(
            f"{times} problems of {tasks.evaluation_name(task)} have the id {shown(most)} in its {split} split"
        )


def check_engines(matrix: Sequence[Cell]) -> None:
    """Refuse cells whose trainer, type of the computation, model or engine cannot run on this machine."""
    settings = {(cell.model, setting_label(cell.config.setting)): cell.settled for cell in matrix}
    for (name, _), config in settings.items():
        model = models.resolve(name)
        in_bfloat16 = (config.hardware.device, config.train.dtype) == ("cuda", "bfloat16")
        cards = devices.cuda_devices() if in_bfloat16 else ()
        own_reason = trainer_obstacle(config) or devices.bfloat16_obstacle(cards)
        if reason := own_reason or choice.context_obstacle(config, model):
            raise UserError(reason)
        if config.rollout.engine == "vllm":
            choice.check_vllm(config.hardware.device, model.shape())


def check_problem_counts(variants: Sequence[Config]) -> None:
    """Refuse evaluations of more problems than their split has, if its size is known."""
    sizes: dict[tuple[str, str], tuple[int, bool]] = {}  # by task and split: Countdown takes 0.1 s to list its problems
    evaluations = [(config, spec) for config in variants for spec in config.eval.tasks or config.tasks]
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

    Adopted cells of the matrix's folder are among them.
    """
    from harness.tracking.sync import sync

    planned = [cell.folder for cell in matrix]
    present = [*planned, *adopted_folders(config.folder)]
    folders = [path for path in present if (path / STATE).exists() or (path / METRICS).exists()]
    fed = damaged = 0
    with console.status("feeding MLflow") as status:
        for number, folder in enumerate(folders, 1):
            status.update(f"feeding MLflow with cells: {number} of {len(folders)}, {folder.name}")
            try:
                sync(folder, config.tracking_uri)
                fed += 1
            except Damaged as damage:
                damaged += 1
                remedy = "adopt" if is_adopted(folder) else "run"
                console.print(f"MLflow is not fed: {damage}; `entrobench {remedy}` repairs the cell", style="yellow")
    return fed, damaged


def matrix_rows(config: Config, matrix: list[Cell]) -> list[LeaderboardRow]:
    """Return the rows of the matrix, with the cells that are not done counted as expected."""
    from harness.table.board import opened_experiment
    from harness.table.frames import read_frames
    from harness.table.leaderboard import leaderboard_rows

    with opened_experiment(config.name, config.tracking_uri) as experiment:
        board = experiment.board_of(config, matrix)
        frames = read_frames(experiment, board.expected, board.baseline)
    return leaderboard_rows(frames, board.baseline, board.ks)
