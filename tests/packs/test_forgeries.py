"""Forged packs whose sums all fit: `verify` names each contradiction, and gives no mark."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from answered import Forgery, Record
from boards import json_rows
from commands import end_of, refusal, verify

from harness.base import files, seal
from harness.cells import evaluations
from harness.cells.evaluations import answers_path, evaluation_path
from harness.cells.log import MetricsLog
from harness.cells.spec import CellSpec
from harness.packs.audit import CellAudit, Evaluation, judged_again
from tasks import Problem, Verdict, Verifier
from tasks.countdown import Countdown

pytestmark = pytest.mark.slow

Forge = Callable[[Forgery], object]


def edit_record(name: str, **fields: Any) -> Forge:
    return lambda forgery: forgery.edit_record(name, **fields)


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
    for folder in forgery.cells:
        spec = CellSpec.read(folder)
        key = dataclasses.replace(spec.key, method={"grpo": "clip_b", "clip_b": "grpo"}[spec.key.method])
        dataclasses.replace(spec, key=key).write(folder)


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


def add_axes(forgery: Forgery) -> None:
    """Claim a billion cells, in a few kilobytes."""
    forgery.definition["axes"] = forgery.summary["config"]["axes"] = {f"axis{i}": list(range(10)) for i in range(9)}


def other_identity(forgery: Forgery) -> None:
    identity = CellSpec.read(forgery.folder).identity
    forgery.edit_spec(identity={**identity, "train": {**identity["train"], "lr": 0.5}})


def other_order(forgery: Forgery) -> None:
    """Set what neither the protocol nor the identity has, since they leave it out at its default."""
    settings = CellSpec.read(forgery.folder).settings
    forgery.edit_spec(settings={**settings, "train": {**settings["train"], "order": "given"}})


def replace_last_evaluation(forgery: Forgery) -> None:
    """Put the evaluation of the base model in the place of the last one."""
    first, last = (evaluation_path(forgery.folder, "countdown", step) for step in (0, 4))
    shutil.copy(first, last)


def remove_evaluation(step: int) -> Forge:
    return lambda forgery: evaluation_path(forgery.folder, "countdown", step).unlink()


def remove_logged_scores(forgery: Forgery) -> None:
    def remove(lines: list[Record]) -> None:
        for line in lines:
            line["metrics"] = {key: value for key, value in line["metrics"].items() if not key.startswith("eval/")}

    forgery.edit_log(remove)


def raise_logged(key: str) -> Forge:
    def raise_score(lines: list[Record]) -> None:
        lines[-1]["metrics"][f"eval/countdown/{key}"] += 0.25

    return lambda forgery: forgery.edit_log(raise_score)


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


FORGERIES: list[tuple[Forge, str]] = [
    (rename_methods, "matrix.json: its values of grpo s0"),
    (exchange_labels, "its identity is not that of the method"),
    (lambda forgery: forgery.summary.update(ks={"countdown": 4}), "its K of countdown is 4, and 2 in the protocol"),
    (
        lambda forgery: forgery.summary.update(baseline="clip_b"),
        "its baseline is 'clip_b', and 'grpo' in its configuration",
    ),
    (drop_seed, "its expected cells are not those of its axes (clip_b countdown countdown-tiny 1)"),
    (drop_protocol_seed, "its seeds or its further axes are not those of the protocol"),
    (add_axes, f"its expected cells are not those of its axes (grpo countdown countdown-tiny 0{' 0' * 9})"),
    (lambda forgery: forgery.summary["config"]["train"].update(lr=0.5), "its settings are not those of the protocol"),
    (other_identity, "its identity has the hash "),
    (other_order, "its train.order is 'given'"),
    (replace_last_evaluation, "countdown-000004.json holds the evaluation of countdown at step 0"),
    (
        lambda forgery: forgery.edit_evaluation(step=5, right=[[1] * 4] * 5),
        "countdown-000005.json is of a step or a task at which it is not evaluated",
    ),
    (remove_evaluation(0), "countdown-000000.json is missing: it is evaluated at that step"),
    (remove_evaluation(2), "countdown-000002.json is missing: it is evaluated at that step"),
    (lambda forgery: MetricsLog(forgery.folder).truncate(0), "metrics.jsonl does not hold the steps 0 to 4"),
    (remove_logged_scores, "countdown-000000.json has no avg among the metrics of its step"),
    (raise_logged("avg"), "its answers give eval/countdown/avg ="),
    (raise_logged("distinct_answers"), "its answers give eval/countdown/distinct_answers ="),
    (raise_logged("coverage"), "its answers give eval/countdown/coverage ="),
    (lambda forgery: forgery.edit_evaluation(problems=["of my own"] * 5), "its problems are not the first 5 of test"),
    (lambda forgery: forgery.edit_answers(lambda answers: answers[0].update(prompt="1 1 2=4:")), "is another one"),
    (
        lambda forgery: forgery.edit_answers(lambda answers: answers[0].pop("verdicts")),
        "its records are not those of a cell (KeyError",
    ),
    (lambda forgery: forgery.edit_evaluation(flags=["none"]), "its flags are not those of the task"),
    (edit_record("state.json", collapsed=3), "its state has the collapse 3, and its entropies None"),
    (copy_seed, "its answers are those of clip_b s0, byte for byte"),
    (copy_attempt, "its attempt is that of clip_b s0"),
]


@pytest.mark.parametrize(("forge", "sentence"), FORGERIES)
def test_verify_names_a_forgery(forge: Forge, sentence: str, forgery: Forgery, tmp_path: Path) -> None:
    forge(forgery)
    pack = forgery.write(tmp_path / "forged.zip")
    assert sentence in verify(str(pack), code=1)
    code, table, _ = end_of("leaderboard", "--pack", str(pack), "--format", "json")
    assert code == 2 or '"reported"' in table


def hostile_config(forgery: Forgery) -> None:
    """Repeat a value of a configuration a billion times, by aliases."""
    path = forgery.folder / "config.yaml"
    text = path.read_text().rpartition("# sum")[0].replace("made_of: null", "made_of: &a0 [x, x, x, x, x, x, x, x]")
    text += "".join(f"b{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 10))
    path.write_text(seal.close_yaml(text))


@pytest.mark.parametrize("command", [["verify"], ["leaderboard", "--pack"]])
@pytest.mark.parametrize(
    ("forge", "sentence"),
    [
        (hostile_config, "config.yaml is damaged: it holds more than 100000 values"),
        (edit_record("state.json", device=None), "state.json is damaged: device is not what it must be"),
        (edit_record("made.json", commit={}), "made.json is damaged: commit is not what it must be"),
        (edit_record("made.json", sources={"grpo": {}}), "made.json is damaged: sources is not what it must be"),
        (lambda forgery: forgery.edit_evaluation(right=1), "its records are not those of a cell (TypeError"),
        (
            lambda forgery: forgery.edit_log(lambda lines: lines[0].update(time=1 << 70)),  # no date
            "metrics.jsonl is damaged: one of its lines is not the record of a step",
        ),
    ],
)
def test_hostile_records_are_refused(
    forge: Forge, sentence: str, command: list[str], forgery: Forgery, tmp_path: Path
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
    folder = forgery.folder
    record = evaluations.read_evaluation(evaluation_path(folder, "countdown", 4))
    path = answers_path(evaluation_path(folder, "countdown", 4))
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
    findings = judged_again(audit, Evaluation(record, path, task, problems), None, {})  # type: ignore[arg-type]
    assert audit.undecided == count
    assert audit.notes == [f"countdown at step 4: {count} answers stored as right could not be decided here"]
    too_many = "20 of 20 answers (100.0%) could not be verified (20 timeouts, 0 errors); allowed are 5.0%"
    assert findings == ([] if noted else [too_many])


def many_keys(number: int) -> dict[str, int]:
    return {f"key{i}": i for i in range(number)}


def test_verify_lists_a_few_departures_of_each_cell(forgery: Forgery, tmp_path: Path) -> None:
    forgery.definition["stop"] |= many_keys(900)
    pack = forgery.write(tmp_path / "forged.zip")
    assert verify(str(pack), code=1).count("by the protocol of the pack, ") == 5 * len(forgery.cells)


@pytest.mark.parametrize(
    ("part", "value", "sentence"),
    [
        ("seeds", [*range(25_001)], "4 cells with 25,001 seeds are more than a table has"),
        ("seeds", 5, "the seeds of its protocol are not a list of numbers"),
        ("axes", many_keys(1000), "the definition of its protocol has 1,036 keys, more than a protocol may have"),
    ],
)
def test_leaderboard_refuses_an_odd_protocol(
    part: str, value: Any, sentence: str, forgery: Forgery, tmp_path: Path
) -> None:
    forgery.definition[part] = value
    pack = forgery.write(tmp_path / "forged.zip")
    assert f"{pack} is damaged: {sentence}" in refusal("leaderboard", "--pack", str(pack))


def test_leaderboard_counts_the_seeds_that_a_pack_lacks(forgery: Forgery, tmp_path: Path) -> None:
    drop_seed(forgery)
    rows = {row["method"]: row for row in json_rows("--pack", str(forgery.write(tmp_path / "forged.zip")))}
    assert (rows["clip_b"]["seeds_done"], rows["clip_b"]["seeds_expected"]) == (1, 2)
    assert (rows["grpo"]["seeds_done"], rows["grpo"]["seeds_expected"]) == (2, 2)
