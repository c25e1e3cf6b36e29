"""A cell that another trainer trained: its weights are evaluated as a cell of a matrix, and recorded like one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from harness.base import identities
from harness.base.errors import CellFailure, Damaged, UserError, one_of, shown
from harness.base.shape import read_model_config, shape_of_config
from harness.base.units import plural
from harness.cells import checksums, evaluations, lease, state
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.spec import ELSEWHERE, MARK, CellKey, CellSpec, adopted_folders, adopted_name
from harness.cells.state import State
from harness.config import PUBLISHED, Config
from harness.elsewhere.checkpoints import TrainedCheckpoint, logged_metrics
from harness.matrix import Shared, evaluation_identity, readable_name
from harness.methods.composition import Method, composed
from harness.rollout import engines
from harness.rollout.ends import end_tokens
from harness.rollout.models import Model
from harness.rollout.proof import check_engine_weights
from harness.train.evaluate import Evaluator, evaluate_cell
from harness.train.parts import begin_cell, evaluation_tasks_of, training_device
from harness.train.policy import check_vocabulary
from harness.train.weights import load_model, opened
from harness.verify.pool import VerifierPool
from tasks import build_task

# Of a trainer, and of a method that is not registered. ASCII: letters of other alphabets look like those of our names.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


@dataclass(frozen=True)
class AdoptedCell:
    """A cell of a matrix that was trained elsewhere."""

    spec: CellSpec
    folder: Path
    model: Model  # the base model
    checkpoints: list[TrainedCheckpoint]

    @property
    def steps(self) -> dict[int, Path]:
        """The folders whose weights are evaluated, by step; step 0 is the base model."""
        trained = {each.step: each.weights for each in self.checkpoints}
        return {0: self.model.folder(), **trained}


def planned_adoption(
    config: Config,
    checkpoints: list[TrainedCheckpoint],
    *,
    method: str,
    model: str | None,
    task: str | None,
    seed: int,
    trainer: str,
    unregistered: bool,
    say: Callable[[str], None],
) -> AdoptedCell:
    """Return the cell of some checkpoints; refuse one that the matrix of the configuration cannot compare."""
    check_matrix(config)
    model, task = only("model", model, config.models), only("task", task, config.tasks)
    if seed not in config.seeds:
        listed = ", ".join(map(str, config.seeds))
        raise UserError(f"--seed is {seed}; allowed: the seeds of the matrix {config.name}, {listed}")
    if not PLAIN_NAME.fullmatch(trainer):
        raise UserError(f"--trainer is {shown(trainer)}; allowed: up to 100 of a-z A-Z 0-9 _ . -")
    shared = Shared(config)
    method_identity, made_of = identity_of_method(method, shared, unregistered=unregistered)
    base = shared.model(model)
    base.folder(say=say)  # before its shape is read, which may decide the engine
    for checkpoint in checkpoints:
        check_fits(checkpoint.weights, base)
    settled = shared.settled(config, model)
    evaluated = config.eval.tasks or [task]
    evaluation_identities = [shared.evaluation_identity(spec) for spec in evaluated]
    digests = {str(checkpoint.step): checkpoint.digest() for checkpoint in checkpoints}
    # Only the settings that decide an evaluation: the settings of training did not act on these weights.
    identity: dict[str, Any] = {
        "method": method_identity,
        "task": shared.task_identity(task),
        "evaluation_tasks": evaluation_identities,
        "model": shared.model_identity(model),
        "seed": seed,
        ELSEWHERE: {"trainer": trainer, "checkpoints": digests},
        "train": {"dtype": settled.config.train.dtype},
        "rollout": {
            "engine": settled.config.rollout.engine,
            "max_new_tokens": settled.config.rollout.max_new_tokens,
        },
        "eval": evaluation_identity(settled.config.eval),
        **shared.version(None, task, tuple(evaluated), config.eval.split),
    }
    if settled.config.hardware.device != "cpu":  # as in the identities of cells that are trained here
        identity["device"] = settled.config.hardware.device
    cell_id = identities.key(identity)
    key = CellKey(adopted_name(method, trainer), task, model, seed)
    spec = CellSpec(cell_id, config.name, key, identity, settled.plain, made_of)
    check_seed_is_free(config.folder, spec)
    folder = config.folder / f"{readable_name(method, task, model)}-s{seed}{MARK}{trainer}-{cell_id}"
    return AdoptedCell(spec, folder, base, checkpoints)


def check_matrix(config: Config) -> None:
    """Refuse a matrix that cannot contain a cell trained elsewhere."""
    if config.axes:
        axes = ", ".join(config.axes)
        raise UserError(
            f"the matrix {config.name} has further axes ({axes}); a cell trained elsewhere has no values on them"
        )
    if config.ruleset != PUBLISHED:
        raise UserError(
            f"ruleset is {config.ruleset!r}, but no tuning here chose the options of a cell trained elsewhere; "
            f"allowed: ruleset={PUBLISHED}"
        )


def only(axis: str, given: str | None, allowed: list[str]) -> str:
    """Return a model or a task of the matrix: the given one, or the only one."""
    if given is None and len(allowed) > 1:
        number = plural(len(allowed), axis)
        raise UserError(f"the matrix has {number}; name one with --{axis}, of {', '.join(allowed)}")
    chosen = allowed[0] if given is None else given
    one_of(f"--{axis}", chosen, allowed)
    return chosen


def identity_of_method(method: str, shared: Shared, *, unregistered: bool) -> tuple[list[dict[str, Any]], str | None]:
    """Return the identity of a method, and its spec with compositions written out.

    Its options are those of the spec alone: a configuration's `method_options` did not reach the other trainer.
    """
    if not unregistered:
        try:
            built = Method.of(method, shared.methods)
        except UserError as error:
            hint = ""
            if "unknown method" in str(error):
                hint = "; --unregistered accepts a method that entrobench does not have"
            raise UserError(f"{error}{hint}") from error
        return built.identity(), composed(method, shared.methods)
    if method in shared.methods:
        raise UserError(
            f"--unregistered is for methods that entrobench does not have, but it has {method!r}; leave it out"
        )
    if not PLAIN_NAME.fullmatch(method):
        raise UserError(f"--method is {shown(method)}; allowed with --unregistered: up to 100 of a-z A-Z 0-9 _ . -")
    return [{"component": method, "registered": False}], None


def check_fits(weights: Path, base: Model) -> None:
    """Refuse weights whose shape or tokenizer differs from that of the base model."""
    base_folder = base.folder()
    if shape_of_config(read_model_config(weights)) != shape_of_config(read_model_config(base_folder)):
        raise UserError(f"{weights} differs in shape from the model {base.name}, so it was not trained from that")
    theirs, ours = opened(AutoTokenizer, weights), opened(AutoTokenizer, base_folder)
    their_ids, our_ids = theirs.get_vocab(), ours.get_vocab()
    for token in sorted(their_ids.keys() | our_ids.keys()):
        if their_ids.get(token) != our_ids.get(token):
            raise UserError(
                f"the tokenizer of {weights} does not fit the model {base.name}: token {shown(token)} is "
                f"{their_ids.get(token, 'missing')} there and {our_ids.get(token, 'missing')} here"
            )
    if theirs.eos_token_id != ours.eos_token_id:
        raise UserError(
            f"the tokenizer of {weights} ends responses with token {theirs.eos_token_id}, but that of {base.name} with "
            f"{ours.eos_token_id}"
        )


def check_seed_is_free(matrix: Path, spec: CellSpec) -> None:
    """Refuse other weights for a seed of a method and a trainer that was adopted before."""
    for folder in adopted_folders(matrix):
        earlier = CellSpec.read(folder)
        if earlier.key == spec.key and earlier.identity[ELSEWHERE] != spec.identity[ELSEWHERE]:
            raise UserError(
                f"seed {spec.key.seed} of {spec.key.method} was adopted with different weights; choose another --seed, "
                f"or remove {folder}"
            )


# The evaluation


def adopt_cell(cell: AdoptedCell, say: Callable[[str], None]) -> None:
    """Evaluate the base model and each checkpoint, unless that was done before, and write the records of the cell."""
    with lease.hold(cell.folder, wait=0) as ours:
        if ours is None:
            raise UserError(f"{lease.holder(cell.folder)} works on {cell.folder}; wait until it has ended")
        started = time.monotonic()
        if not begin_evaluation(cell):
            say(f"{cell.spec.key.method} seed {cell.spec.key.seed} was evaluated before; nothing is sampled again")
            return
        try:
            device = evaluate_checkpoints(cell, say)
        except (CellFailure, UserError) as error:
            state.change(cell.folder, state="failed", reason=str(error))
            raise
        write_metrics(cell)
        checksums.write_checksums(cell.folder)  # before the state, so that every cell that is done has checksums
        seconds = State.read(cell.folder).seconds + time.monotonic() - started
        last = cell.checkpoints[-1].step
        state.change(cell.folder, state="done", seconds=seconds, device=device, durable_step=last)


def begin_evaluation(cell: AdoptedCell) -> bool:
    """Record what makes the numbers, and return whether any number is missing.

    Numbers from another base model and damaged records are deleted.
    """
    base_model, why = cell.model.digest(cell.model.folder()), None
    earlier = Made.read(cell.folder)
    same_base = earlier is not None and earlier.base_model in (None, base_model)
    if same_base and State.known(cell.folder).state == "done":
        if not any(checksums.changed_records(cell.folder)):
            return False
        why = "a record has changed since it was done"
    cell.spec.write(cell.folder)
    begin_cell(cell.folder, cell.spec.config, cell.spec.identity["source"], base_model, why)
    return True


def is_whole_evaluation(path: Path) -> bool:
    """Return whether an evaluation was written and has not changed since."""
    try:
        evaluations.read_evaluation(path)
    except Damaged:
        return False
    return True


def evaluate_checkpoints(cell: AdoptedCell, say: Callable[[str], None]) -> str:
    """Write the evaluations of the cell that are missing, and return the device that sampled.

    Prompts are those of every cell of the matrix: made with the tokenizer and the chat template of the base model.
    """
    config, base, key = cell.spec.config, cell.model.folder(), cell.spec.key
    device, dtype = training_device(config)
    torch.set_num_threads(config.hardware.threads)
    tokenizer = opened(AutoTokenizer, base)
    ends = end_tokens(tokenizer, base, cell.model.chat)
    engine = engines.build_engine(config.rollout.engine, base, ends, device, dtype, config.hardware)
    evaluated = evaluation_tasks_of(config, key.task, cell.model.chat)
    trained_on = build_task(key.task, config.plugins).name
    with VerifierPool.of(config.verify) as verifier:
        for step, weights in cell.steps.items():
            paths = [evaluations.evaluation_path(cell.folder, name, step) for name in evaluated]
            if all(map(is_whole_evaluation, paths)):  # by an earlier command that was interrupted
                continue
            say(f"evaluating {weights.name if step else 'the base model'} as step {step}")
            module = load_model(weights).to(device)
            check_vocabulary(tokenizer, module, weights)
            engine.load(module)
            check_engine_weights(engine, module, dtype, key.seed)
            evaluator = Evaluator.of_config(config, engine, tokenizer, verifier, cell.model.chat, module)
            evaluate_cell(evaluator, cell.folder, config, evaluated, seed=key.seed, trained_on=trained_on, step=step)
    return device


def write_metrics(cell: AdoptedCell) -> None:
    """Write metrics.jsonl: the scores of each evaluated step, and what the trainer logged."""
    by_step = logged_metrics(cell.checkpoints)
    for _, record in evaluations.all_evaluations(cell.folder):
        metrics = by_step.setdefault(record["step"], {})
        metrics |= evaluations.named_metrics(record)
    now = time.time()
    MetricsLog(cell.folder).write(
        {"step": step, "time": now, "metrics": metrics} for step, metrics in sorted(by_step.items())
    )
