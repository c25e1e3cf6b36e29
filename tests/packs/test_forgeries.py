"""Forged packs whose sums all fit: `verify` names each contradiction, and gives no mark."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from answered import answered_pack
from boards import json_rows, show_table
from commands import end_of, run_command

from harness.base import files, seal
from harness.cells import checksums, evaluation_files
from harness.cells.evaluation_files import evaluation_path
from harness.cells.log import MetricsLog
from harness.cells.spec import CellSpec
from harness.packs.archive import unpacked, write_pack
from harness.packs.audit import CellAudit, judged_again
from harness.packs.protocol import Protocol
from harness.table import verified
from tasks import Problem, Verdict, Verifier
from tasks.countdown import Countdown

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep marks out of the user's cache."""
    monkeypatch.setattr(verified, "marks_path", lambda digest: tmp_path / "marks" / f"{digest}.json")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of two methods and two seeds, evaluated at the steps 0, 2 and 4."""
    return answered_pack(tmp_path_factory.mktemp("honest"), "train.steps=4", "eval.every=2")


@dataclass
class Forgery:
    """The records of a pack, to be edited."""

    folder: Path
    matrix: str
    summary: dict[str, Any]
    definition: dict[str, Any]

    def cell(self, method: str, seed: int) -> Path:
        [folder] = (self.folder / "cells").glob(f"{method}-*-s{seed}-*")
        return folder

    def write(self, path: Path) -> Path:
        """Write a pack of these records, in which all sums fit."""
        folders = sorted((self.folder / "cells").iterdir())
        for folder in folders:
            checksums.write_checksums(folder)
        write_pack(path, self.matrix, json.dumps(self.summary), folders, Protocol(self.definition))
        return path


@pytest.fixture
def forgery(honest: Path, tmp_path: Path) -> Iterator[Forgery]:
    with unpacked(honest) as pack:
        yield Forgery(pack.folder, pack.matrix, json.loads(pack.summary), pack.protocol.definition)


def edit_spec(folder: Path, **fields: Any) -> None:
    dataclasses.replace(CellSpec.read(folder), **fields).write(folder)


def rename_methods(forgery: Forgery) -> None:
    """Exchange the names of two methods in matrix.json."""
    names = {"grpo": "clip_b", "clip_b": "grpo"}
    for cell in forgery.summary["expected"]:
        cell["method"] = names[cell["method"]]


def exchange_labels(forgery: Forgery) -> None:
    """Exchange the names of two methods everywhere but in their identities."""
    rename_methods(forgery)
    for cell in forgery.summary["expected"]:
        cell["params"]["method"] = cell["method"]
    for folder in (forgery.folder / "cells").iterdir():
        key = CellSpec.read(folder).key
        edit_spec(folder, key=dataclasses.replace(key, method={"grpo": "clip_b", "clip_b": "grpo"}[key.method]))


def raise_k(forgery: Forgery) -> None:
    forgery.summary["ks"] = {"countdown": 4}


def other_baseline(forgery: Forgery) -> None:
    forgery.summary["baseline"] = "clip_b"


def drop_seed(forgery: Forgery) -> None:
    """Leave a seed out that the protocol has, of one method."""
    shutil.rmtree(forgery.cell("clip_b", 1))
    cells = forgery.summary["expected"]
    forgery.summary["expected"] = [cell for cell in cells if (cell["method"], cell["seed"]) != ("clip_b", 1)]


def drop_protocol_seed(forgery: Forgery) -> None:
    """Leave a seed out everywhere, but in the protocol."""
    for method in ("grpo", "clip_b"):
        shutil.rmtree(forgery.cell(method, 1))
    forgery.summary["expected"] = [cell for cell in forgery.summary["expected"] if cell["seed"] == 0]
    forgery.summary["config"]["seeds"] = [0]


def replace_last_evaluation(forgery: Forgery) -> None:
    """Put the evaluation of the base model in the place of the last one."""
    folder = forgery.cell("clip_b", 0)
    shutil.copy(evaluation_path(folder, "countdown", 0), evaluation_path(folder, "countdown", 4))


def add_evaluation(forgery: Forgery) -> None:
    """Add a better evaluation of a step that never was."""
    folder = forgery.cell("clip_b", 0)
    record = evaluation_files.read_evaluation(evaluation_path(folder, "countdown", 4)) | {"step": 5}
    record["right"] = [[1] * 4 for _ in record["right"]]
    evaluation_files.write_evaluation(folder, record)


def remove_first_evaluation(forgery: Forgery) -> None:
    evaluation_path(forgery.cell("clip_b", 0), "countdown", 0).unlink()


def remove_early_evaluation(forgery: Forgery) -> None:
    evaluation_path(forgery.cell("clip_b", 0), "countdown", 2).unlink()


def remove_logged_scores(forgery: Forgery) -> None:
    log = MetricsLog(forgery.cell("clip_b", 0))
    lines = log.read()
    for line in lines:
        line["metrics"] = {key: value for key, value in line["metrics"].items() if not key.startswith("eval/")}
    log.write(lines)


def raise_logged(key: str) -> Callable[[Forgery], None]:
    def raise_score(forgery: Forgery) -> None:
        log = MetricsLog(forgery.cell("clip_b", 0))
        lines = log.read()
        lines[-1]["metrics"][f"eval/countdown/{key}"] += 0.25
        log.write(lines)

    return raise_score


def remove_flags(forgery: Forgery) -> None:
    folder = forgery.cell("clip_b", 0)
    record = evaluation_files.read_evaluation(evaluation_path(folder, "countdown", 4))
    evaluation_files.write_evaluation(folder, record | {"flags": ["none"]})


def state_collapse(forgery: Forgery) -> None:
    folder = forgery.cell("clip_b", 0)
    state = files.read_json(folder / "state.json")
    files.write_json(folder / "state.json", state | {"collapsed": 3})


def copy_seed(forgery: Forgery) -> None:
    """Put the cell of seed 0 in the place of seed 1."""
    for method in ("grpo", "clip_b"):
        source, old = forgery.cell(method, 0), forgery.cell(method, 1)
        spec = CellSpec.read(old)
        shutil.rmtree(old)
        shutil.copytree(source, old)
        spec.write(old)
        made = files.read_json(old / "made.json")
        files.write_json(old / "made.json", made | {"attempt": spec.id})


def copy_attempt(forgery: Forgery) -> None:
    made = files.read_json(forgery.cell("clip_b", 0) / "made.json")
    files.write_json(forgery.cell("clip_b", 1) / "made.json", made)


def other_settings(forgery: Forgery) -> None:
    """Claim in matrix.json that cells were trained with another learning rate."""
    forgery.summary["config"]["train"]["lr"] = 0.5


FORGERIES = [
    (rename_methods, "matrix.json: its values of grpo s0"),
    (exchange_labels, "its identity is not that of the method"),
    (raise_k, "its K of countdown is 4, and 2 in the protocol"),
    (other_baseline, "its baseline is 'clip_b', and 'grpo' in its configuration"),
    (drop_seed, "its expected cells are not those of its axes (clip_b countdown countdown-tiny 1)"),
    (drop_protocol_seed, "its seeds or its further axes are not those of the protocol"),
    (other_settings, "its settings are not those of the protocol"),
    (replace_last_evaluation, "countdown-000004.json holds the evaluation of countdown at step 0"),
    (add_evaluation, "countdown-000005.json is of a step or a task at which it is not evaluated"),
    (remove_first_evaluation, "countdown-000000.json is missing: it is evaluated at that step"),
    (remove_early_evaluation, "countdown-000002.json is missing: it is evaluated at that step"),
    (remove_logged_scores, "countdown-000000.json has no avg among the metrics of its step"),
    (raise_logged("distinct_answers"), "its answers give eval/countdown/distinct_answers ="),
    (raise_logged("coverage"), "its answers give eval/countdown/coverage ="),
    (remove_flags, "its flags are not those of the task"),
    (state_collapse, "its state has the collapse 3, and its entropies None"),
    (copy_seed, "its answers are those of clip_b s0, byte for byte"),
    (copy_attempt, "its attempt is that of clip_b s0"),
]


def verify(pack: Path, code: int = 0) -> str:
    """Return the output of `entrobench verify`, on one line."""
    return " ".join(run_command("verify", str(pack), code=code).split())


@pytest.mark.parametrize(("forge", "sentence"), FORGERIES)
def test_verify_names_a_forgery(
    forge: Callable[[Forgery], None],
    sentence: str,
    forgery: Forgery,
    tmp_path: Path,
) -> None:
    forge(forgery)
    pack = forgery.write(tmp_path / "forged.zip")
    output = verify(pack, code=1)
    assert sentence in output
    rows = json_rows("--pack", str(pack))
    assert "reported" in {row["checked"] for row in rows}


def hostile_config(forgery: Forgery) -> None:
    """Repeat a value of a configuration a billion times, by aliases."""
    path = forgery.cell("clip_b", 0) / "config.yaml"
    text = path.read_text().rpartition("# sum")[0].replace("made_of: null", "made_of: &a0 [x, x, x, x, x, x, x, x]")
    text += "".join(f"b{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 10))
    path.write_text(seal.close_yaml(text))


def record_value(name: str, key: str, value: Any) -> Callable[[Forgery], None]:
    def write_value(forgery: Forgery) -> None:
        path = forgery.cell("clip_b", 0) / name
        path.write_text(json.dumps(files.read_json(path) | {key: value}))

    return write_value


@pytest.mark.parametrize("command", [["verify"], ["leaderboard", "--pack"]])
@pytest.mark.parametrize(
    ("forge", "sentence"),
    [
        (hostile_config, "config.yaml is damaged: it holds more than 100000 values"),
        (record_value("state.json", "device", None), "state.json is damaged: device is not what it must be"),
        (record_value("made.json", "commit", {}), "made.json is damaged: commit is not what it must be"),
        (record_value("made.json", "sources", {"grpo": {}}), "made.json is damaged: sources is not what it must be"),
    ],
)
def test_verify_of_hostile_records(
    forge: Callable[[Forgery], None],
    sentence: str,
    command: list[str],
    forgery: Forgery,
    tmp_path: Path,
) -> None:
    forge(forgery)
    pack = forgery.write(tmp_path / "hostile.zip")
    code, out, err = end_of(*command, str(pack))
    assert code in (1, 2)
    assert sentence in " ".join((out + err).split())


class Undecided(Countdown):
    """Countdown whose judge gives up on an answer."""

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        given_up = {"\\boxed{1+1}": Verdict.TIMEOUT}
        return [given_up.get(response, Verdict.WRONG) for _, response in pairs]


@pytest.mark.parametrize(("count", "noted"), [(1, True), (20, False)])
def test_judged_again_never_counts_undecided_answers_as_right(
    forgery: Forgery, monkeypatch: pytest.MonkeyPatch, count: int, noted: bool
) -> None:
    folder = forgery.cell("clip_b", 0)
    record = evaluation_files.read_evaluation(evaluation_path(folder, "countdown", 4))
    path = folder / "samples" / "evaluate-countdown-000004.jsonl"
    samples, left = files.read_lines(path), count
    for number, sample in enumerate(samples):
        given, left = min(left, 4), left - min(left, 4)
        sample["responses"] = ["\\boxed{1+1}"] * given + ["\\boxed{1}"] * (4 - given)
        sample["verdicts"] = ["right"] * given + ["wrong"] * (4 - given)
        record["right"][number] = [1] * given + [0] * (4 - given)
        record["right_distinct"][number] = min(given, 1)
    files.write_lines(path, samples)
    audit = CellAudit(CellSpec.read(folder), folder)
    task = Undecided()
    problems = {problem.id: problem for problem in task.problems("test")}
    monkeypatch.setattr("harness.verify.pool.FEWEST_FAILURES", 2)
    findings = judged_again(audit, record, path, task, problems, None, {})  # type: ignore[arg-type]
    assert audit.undecided == count
    assert audit.notes == [f"countdown at step 4: {count} answers stored as right could not be decided here"]
    too_many = "20 of 20 answers (100.0%) could not be verified (20 timeouts, 0 errors); allowed are 5.0%"
    assert findings == ([] if noted else [too_many])


def test_leaderboard_counts_the_seeds_that_a_pack_lacks(forgery: Forgery, tmp_path: Path) -> None:
    drop_seed(forgery)
    rows = {row["method"]: row for row in json_rows("--pack", str(forgery.write(tmp_path / "forged.zip")))}
    assert (rows["clip_b"]["seeds_done"], rows["clip_b"]["seeds_expected"]) == (1, 2)
    assert (rows["grpo"]["seeds_done"], rows["grpo"]["seeds_expected"]) == (2, 2)


def test_leaderboard_ignores_marks_beside_a_pack(honest: Path, tmp_path: Path) -> None:
    pack = Path(shutil.copy(honest, tmp_path / "theirs.zip"))
    with unpacked(pack) as opened:
        marks = {CellSpec.read(folder).id: "replayed" for folder in opened.cells}
    files.write_json(tmp_path / "theirs.zip.verified.json", {"sha256": files.sha256_of(pack), "cells": marks})
    assert {row["checked"] for row in json_rows("--pack", str(pack))[1:]} == {"reported"}


def test_leaderboard_ignores_marks_of_another_pack(honest: Path, forgery: Forgery, tmp_path: Path) -> None:
    verify(honest)
    add_evaluation(forgery)
    forged = forgery.write(tmp_path / "forged.zip")
    rows = json_rows("--pack", str(forged), "--pack", str(honest))
    assert {row["checked"] for row in rows[1:]} == {"reported"}


def test_leaderboard_names_columns_stated_by_the_author(forgery: Forgery, tmp_path: Path) -> None:
    log = MetricsLog(forgery.cell("clip_b", 0))
    log.write([line | {"metrics": line["metrics"] | {"entropy/mean": 3.0}} for line in log.read()])
    pack = forgery.write(tmp_path / "forged.zip")
    verify(pack)
    text = show_table("--pack", str(pack), "--format", "md")
    [stated] = [line for line in text.splitlines() if "As the author states, unless replayed" in line]
    assert "entropy, end" in stated
    [judged] = [line for line in text.splitlines() if "Recomputed from the answers in rows judged again" in line]
    assert "Avg@K" in judged
    assert "entropy" not in judged
