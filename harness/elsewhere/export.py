"""The trained model of a finished cell as a folder that transformers reads, with a model card; and its upload."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from harness.base import devices, files, identities
from harness.base.errors import UserError, shown
from harness.base.hub import hub_errors, hub_fault
from harness.base.units import gib, plural
from harness.cells import checksums
from harness.cells.checksums import MODEL
from harness.cells.spec import FILE as SPEC
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.elsewhere.card import CARD, Standing, model_card
from harness.rollout import models
from harness.rollout.ends import end_tokens
from harness.rollout.models import HUB_NAME, Model
from harness.rollout.rendering import Chat
from harness.table.board import opened_experiment
from harness.table.frames import BASE_MODEL
from harness.table.select import part_of_board
from harness.train.weights import opened

GENERATION, TEMPLATE = "generation_config.json", "chat_template.jinja"


def export_cell(cell: Path, folder: Path, repository: str | None, say: Callable[[str], None]) -> None:
    """Write the trained model of a cell to a new folder, and send it to a repository of the Hub if one is named.

    All that may be wrong is looked at before anything is written.
    """
    spec = finished_cell(cell)
    weights = cell / MODEL
    size = sum(path.stat().st_size for path in weights.iterdir())
    check_place(folder, size)
    model = base_model(spec)
    tokenizer = opened(AutoTokenizer, weights)
    ends = end_tokens(tokenizer, model.present_folder() or weights, model.chat)
    card = model_card(cell, spec, model, tokenizer, ends, standing(cell, spec), repository or str(folder))
    address = None if repository is None else made_repository(repository)
    with files.atomic_folder(folder) as place:
        shutil.copytree(weights, place, dirs_exist_ok=True)
        write_prompt_settings(place, tokenizer, model.chat, ends)
        files.write_text(place / CARD, card)
    say(f"wrote {folder}: {plural(len(list(folder.iterdir())), 'file')}, {gib(size)}")
    if repository is not None:
        upload(folder, repository)
        say(f"sent it to {address}")


def finished_cell(cell: Path) -> CellSpec:
    """Return the record of a cell that is done; refuse one without its trained model, or with changed records."""
    if not (cell / SPEC).is_file():
        raise UserError(f"{cell} is not the folder of a cell; give one such as results/demo/grpo-countdown-...")
    spec = CellSpec.read(cell)
    if spec.trainer is not None:
        raise UserError(f"{cell} was trained elsewhere ({spec.trainer}), where its model is; only its scores are here")
    state = State.read(cell)
    if state.state != "done":
        raise UserError(f"{cell} is {state.state}; `entrobench run` finishes it, and then its model can be exported")
    if not (cell / MODEL).is_dir():
        raise UserError(
            f"{cell} kept no model; with checkpoint.save_model=true and its folder removed, `entrobench run` trains "
            "it again"
        )
    for damage, _ in checksums.changed_records(cell):
        raise damage
    return spec


def check_place(folder: Path, size: int) -> None:
    """Refuse a folder that exists, that cannot be made, or that has no room for this many bytes."""
    if folder.exists():
        raise UserError(f"{folder} exists; name a folder that does not, or remove it")
    files.check_folder(folder.parent, str(folder))
    devices.check_room(f"export to {folder}", folder.absolute().parent, disk=size, memory=0)


def base_model(spec: CellSpec) -> Model:
    """Return the model that a cell began from; refuse one that was edited since, whose prompts may be others."""
    model = models.resolve(spec.key.model)
    if identities.key(model.identity()) != identities.key(spec.identity["model"]):
        raise UserError(
            f"the model {shown(spec.key.model)} was changed since this cell was trained, so its prompts are not known; "
            "restore its file or folder"
        )
    return model


def standing(cell: Path, spec: CellSpec) -> Standing:
    """Return the rows of the leaderboard that a cell belongs to: its method's, the baseline's and the base model's."""
    config = dataclasses.replace(spec.config, results=str(cell.absolute().parent.parent))  # results may be moved
    with opened_experiment(spec.matrix, config.tracking_uri) as experiment:
        for board in experiment.boards() if spec.id in experiment.done else []:
            for own in board.expected:
                if own.cell == spec.id:
                    where = {"task": own.task, "model": own.model, **own.setting}
                    part = part_of_board(experiment, board, board.title, where)
                    shown_methods = (BASE_MODEL, board.baseline, own.method)
                    rows = [row for row in part.rows() if row.method in shown_methods]
                    return Standing(own.method, rows)
    raise UserError(
        f"the experiment {spec.matrix!r} in MLflow has no table with this cell; `entrobench sync CONFIG` writes it"
    )


def write_prompt_settings(folder: Path, tokenizer: Any, chat: Chat, ends: tuple[int, ...]) -> None:
    """Write the chat template and the end tokens with which a model was trained, which its file may have replaced."""
    if chat.template is not None:
        (folder / TEMPLATE).unlink(missing_ok=True)
        tokenizer.chat_template = chat.template or None
        tokenizer.save_pretrained(folder)
    path = folder / GENERATION
    settings = files.read_json(path) if path.is_file() else {}
    files.write_json(path, {**settings, "eos_token_id": list(ends)})


# The Hub


def made_repository(name: str) -> str:
    """Return the address of a repository, which is made if it is missing; refuse one that cannot be written."""
    from huggingface_hub import HfApi, get_token

    if not HUB_NAME.fullmatch(name):
        raise UserError(f"--push is {shown(name)}; write USER/NAME, of letters, digits, _ . and -")
    if get_token() is None:
        raise UserError("--push needs a token with the right to write: `hf auth login`, or set HF_TOKEN")
    with said_in_a_sentence(name):
        return str(HfApi().create_repo(name, exist_ok=True))


def upload(folder: Path, name: str) -> None:
    from huggingface_hub import HfApi

    with said_in_a_sentence(name):
        HfApi().upload_folder(repo_id=name, folder_path=folder, commit_message="A model trained by entrobench")


@contextmanager
def said_in_a_sentence(name: str) -> Iterator[None]:
    """Raise UserError for an error of the Hub's client."""
    expected: tuple[type[Exception], ...] = (*hub_errors(), RuntimeError)  # the latter: of hf_xet, for large files
    try:
        yield
    except expected as error:
        reason, unreachable = hub_fault(error)
        check = "" if unreachable else "check the name and what the token may do; "
        raise UserError(
            f"{name} cannot be written on the Hugging Face Hub: {reason}; {check}`hf upload {name} FOLDER` sends an "
            "exported folder later"
        ) from error
