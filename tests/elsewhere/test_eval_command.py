"""`entrobench eval`: any model, no training, resumable by problem; and the real contests from end to end."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import invented
import pytest
import torch
from commands import refusal, run_command
from intervals import slow_bounded
from patience import wait_until
from places import REAL, REPOSITORY
from rich.console import Console

import tasks
from harness.base import files
from harness.base.errors import UserError
from harness.commands import eval as command
from harness.elsewhere import assess
from harness.elsewhere.assess import EngineOnDemand, Wanted
from harness.rollout import models
from harness.train import untrained
from harness.verify.pool import VerifierPool
from tasks import Verdict
from tasks.countdown import Countdown
from tasks.data import check, prepare

pytestmark = pytest.mark.slow

TINY = models.resolve("countdown-tiny")
FEW = Wanted(samples=4, temperature=1.0, max_new_tokens=8, problems=10)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many problems each call of the engine was asked; a batch is four of them here."""
    torch.set_num_threads(1)
    monkeypatch.setattr(assess, "BATCH", {"embedded": 16, "vllm": 16})
    asked: list[int] = []
    generate = EngineOnDemand.generate

    def counted(self: EngineOnDemand, prompts: Sequence[Sequence[int]], n: int, **settings: Any) -> Any:
        asked.append(len(prompts))
        return generate(self, prompts, n, **settings)

    monkeypatch.setattr(EngineOnDemand, "generate", counted)
    return asked


def run(out: Path, wanted: Wanted = FEW, specs: Sequence[str] = ("countdown",)) -> list[dict[str, Any]]:
    with VerifierPool() as verifier:
        return assess.assess(TINY, [tasks.build_task(spec) for spec in specs], wanted, verifier, out, lambda text: None)


def records(out: Path, task: str = "countdown") -> list[dict[str, Any]]:
    files = sorted(out.glob(f"{task}-*/samples/*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().split("\n")[:-1]]


def test_assess_keeps_responses_with_verdicts(tmp_path: Path, calls: list[int]) -> None:
    (result,) = run(tmp_path)
    assert calls == [4, 4, 2]
    problems = tasks.build_task("countdown").problems("test")[:10]
    kept = records(tmp_path)
    assert [record["problem"] for record in kept] == [problem.id for problem in problems]
    assert [record["prompt"] for record in kept] == [problem.prompt for problem in problems]
    for problem, record, right in zip(problems, kept, result["right"], strict=True):
        verdicts = [Countdown().verdict(problem, text) for text in record["responses"]]
        assert record["verdicts"] == verdicts
        assert right == [int(verdict == "right") for verdict in verdicts]
        assert all(end or length == 8 for end, length in zip(record["finished"], record["lengths"], strict=True))
    assert json.loads((tmp_path / "results.json").read_text())["tasks"] == [result]
    assert result["verdicts"] == Counter(verdict for record in kept for verdict in record["verdicts"])
    assert result["metrics"]["avg"] == sum(map(sum, result["right"])) / 40
    assert result["metrics"]["length"] == sum(sum(record["lengths"]) for record in kept) / 40


def test_estimates_have_intervals_over_problems(tmp_path: Path) -> None:
    (result,) = run(tmp_path)
    right = [[1, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]]
    cells = []
    for k in (1, 2, 4):
        by_problem = [fmean(max(subset) for subset in combinations(answers, k)) for answers in right]
        half = 3.182446305284263 * stdev(by_problem) / 2  # Student's quantile at 3 degrees of freedom
        mean = fmean(by_problem)
        limits = slow_bounded(mean, mean - half, mean + half, len(right))
        cells += [f"{mean:.3f}", f"[{limits[1]:.3f},", f"{limits[2]:.3f}]"]
    console = Console(width=400, record=True, file=io.StringIO())
    metrics = dict.fromkeys(("maj@4", "truncated", "length"), 0.0)
    metrics |= {"right_distinct": 1.25, "coverage": 0.375, "after_answer": 0.0625}
    assess.print_results(console, [{**result, "right": right, "metrics": metrics}])
    line = next(line for line in console.export_text().splitlines() if line.startswith("countdown  "))
    assert line.split()[3:] == [*cells, "0.000", "1.25", "37.5%", "6.2%", "0.0%", "0"]


def test_assess_samples_nothing_twice(tmp_path: Path, calls: list[int]) -> None:
    run(tmp_path)
    before = (tmp_path / "results.json").read_text()
    calls.clear()
    run(tmp_path)
    assert calls == []
    assert (tmp_path / "results.json").read_text() == before
    run(tmp_path, replace(FEW, problems=13))
    assert calls == [4, 1], "whole batches are taken over, the last one grows"
    calls.clear()
    for number in (3, 13):
        run(tmp_path, replace(FEW, problems=number))
        assert len(records(tmp_path)) == 13
    assert calls == [], "to ask for less loses nothing"
    first, *_ = sorted(tmp_path.glob("countdown*/samples/*.jsonl"))
    one, *rest = files.read_lines(first)
    files.write_lines(first, [{**one, "prompt": f"8{one['prompt']}"}, *rest])
    run(tmp_path)
    assert calls == [4], "answers to another prompt are no answers"
    calls.clear()
    fewer = replace(FEW, problems=4)
    others: list[dict[str, Any]] = [{"temperature": 0.9}, {"max_new_tokens": 7}, {"seed": 1}, {"samples": 2}]
    for other in others:
        run(tmp_path, replace(fewer, **other))
    run(tmp_path, fewer, ["countdown(target=50)"])
    assert calls == [4] * 5, "other settings are another evaluation"


def test_assess_samples_changed_responses_again(tmp_path: Path) -> None:
    run(tmp_path)
    first, *_ = sorted(tmp_path.glob("countdown*/samples/*.jsonl"))
    first.write_text(first.read_text().replace('"responses": ["', '"responses": ["8', 1))
    with pytest.raises(UserError, match="does not fit its sum; remove this file, and the same command asks") as error:
        run(tmp_path)
    assert str(error.value).startswith(f"{first} is damaged: ")
    before = (tmp_path / "results.json").read_text()
    first.unlink()
    run(tmp_path)
    assert (tmp_path / "results.json").read_text() == before


def test_folders_of_one_name_have_results_of_their_own(
    tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all have that training leaves: each cell's is called `model`."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        shutil.copytree(TINY.folder(), tmp_path / name / "model")
    weights = tmp_path / "two" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    (tmp_path / "two.yaml").write_text(f"path: {tmp_path / 'two' / 'model'}\nsystem: '7'")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "two.yaml").write_text(f"path: {tmp_path / 'two' / 'model'}")
    asked = ["--tasks", "countdown", "--samples", "2", "--problems", "2", "--max-new-tokens", "4"]

    def call(model: str) -> Path:
        said = run_command("eval", "--model", model, *asked)
        return Path(said.splitlines()[-1].removeprefix("samples and results: "))

    outs = [call(model) for model in ("one/model", "two/model", "two.yaml", "sub/two.yaml")]
    assert [out.parent for out in outs] == [Path("results/eval")] * 4
    assert [out.name.partition("-")[0] for out in outs] == ["model", "model", "two", "two"]
    assert len(set(outs)) == 4
    first = (outs[0] / "results.json").read_text()
    assert str(tmp_path / "one" / "model") in json.loads(first)["summary"]
    assert calls == [2] * 4
    assert call("one/model") == outs[0]
    assert calls == [2] * 4, "the same files are the same model"
    assert (outs[0] / "results.json").read_text() == first


@pytest.mark.long
@pytest.mark.processes
def test_eval_killed_and_repeated_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["eval", "--model", "countdown-tiny", "--tasks", "countdown", "--samples", "128", "--problems", "24"]
    asked += ["--temperature", "1", "--out"]
    command = [sys.executable, "-m", "entrobench", *asked]
    monkeypatch.setitem(assess.BATCH, "embedded", assess.EMBEDDED_SEQUENCES)  # as in the process that is killed
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    def parts(out: Path) -> list[Path]:
        return sorted(out.glob("countdown*/samples/*.jsonl"))

    with subprocess.Popen([*command, str(tmp_path / "a")], env=environment, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: len(parts(tmp_path / "a")) >= 2 or process.poll() is not None, pause=0.005)
        process.send_signal(signal.SIGKILL)
    kept = {path: path.read_text() for path in parts(tmp_path / "a")}
    assert 2 <= len(kept) < 6
    for out in ("a", "b"):
        assert run_command(*asked, str(tmp_path / out)).count("problems sampled") == 6
    for path, text in kept.items():
        before, after = ([json.loads(line) for line in t.split("\n")[:-1]] for t in (text, path.read_text()))
        assert [{**record, "verdicts": None} for record in after] == [{**record, "verdicts": None} for record in before]
    assert (tmp_path / "a" / "results.json").read_text() == (tmp_path / "b" / "results.json").read_text()
    assert [path.read_text() for path in parts(tmp_path / "a")] == [path.read_text() for path in parts(tmp_path / "b")]


def test_wanted_defaults() -> None:
    defaults = {"split": "test", "samples": 32, "temperature": 0.7, "max_new_tokens": 7168}
    assert Wanted().of(tasks.build_task("aime24")) == defaults
    assert Wanted().of(tasks.build_task("dapo500"))["samples"] == 8
    assert Wanted().of(tasks.build_task("dapo_math"))["split"] == "validation"
    settings = Wanted(samples=3, temperature=0.0, max_new_tokens=5).of(tasks.build_task("aime24"))
    assert settings == {"split": "test", "samples": 3, "temperature": 0.0, "max_new_tokens": 5}


def test_prompts_without_room_are_refused_unless_asked_for(tmp_path: Path) -> None:
    longest = max(len(problem.prompt) for problem in tasks.build_task("countdown").problems("test")[:4])
    wanted = Wanted(samples=1, max_new_tokens=255, problems=4)
    with pytest.raises(UserError) as error:
        run(tmp_path, wanted)
    words = str(error.value)
    assert words.startswith("max_new_tokens is 255, but with 4 of 4 prompts of countdown that exceeds the model's")
    room = int(words.split("allowed: up to ")[1].split()[0])
    assert words.endswith(f"; allowed: up to {room} or --beyond-context, where answers may get worse")
    assert 256 - longest <= room < 255
    run(tmp_path, replace(wanted, max_new_tokens=room))
    with pytest.raises(UserError, match=f"up to {room}"):
        run(tmp_path, replace(wanted, max_new_tokens=room + 1))
    (result,) = run(tmp_path, replace(wanted, beyond_context=True))
    assert len(result["right"]) == 4


def test_half_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**22}.__getitem__)
    assert untrained.half_of_memory("cpu") == 8


def test_eval_with_a_failing_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invented.prepare_in(tmp_path / "cache", monkeypatch, "aime24")
    closed: list[VerifierPool] = []
    monkeypatch.setattr(VerifierPool, "verdicts", lambda verifier, pairs: [Verdict.TIMEOUT for _ in pairs])
    monkeypatch.setattr(VerifierPool, "close", lambda verifier: closed.append(verifier))
    monkeypatch.setattr(command, "console", Console(width=400))
    arguments = ["eval", "--model", "countdown-tiny", "--tasks", "aime24", "--samples", "4", "--max-new-tokens", "4"]
    output = run_command(*arguments, "--out", str(tmp_path / "out"), code=1)
    assert "16 of 16 answers (100.0%) could not be verified" in output
    assert "the samples are kept in" in output
    assert [record["verdicts"] for record in records(tmp_path / "out", "aime24")] == [["timeout"] * 4] * 4
    assert len(closed) == 1


def test_flags_of_a_task_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invented.prepare_in(tmp_path / "cache", monkeypatch, "amc23")
    monkeypatch.setattr(check, "flags", lambda name: [f"{name} is known by heart"])
    monkeypatch.setattr(command, "console", Console(width=400))
    arguments = ["eval", "--model", "countdown-tiny", "--tasks", "amc23,countdown,amc23", "--problems", "3"]
    arguments += ["--samples", "4", "--max-new-tokens", "4"]
    lines = run_command(*arguments, "--out", str(tmp_path / "out")).splitlines()
    assert "amc23: amc23 is known by heart" in lines
    assert "amc23: the tokenizer leaves letters out of 3 of 3 prompts" in lines
    assert not any("countdown: the tokenizer" in line or "countdown is known" in line for line in lines)
    header = next(line for line in lines if line.startswith("task"))
    passes, diversity = ["Avg@K", "Pass@2", "Pass@4", "maj@K"], "distinct right solutions found text after answer"
    assert header.split() == ["task", "problems", "K", *passes, *diversity.split(), "truncated", "length"]
    assert [line.split()[:3] for line in lines if line.startswith(("amc23  ", "countdown  "))] == [
        ["amc23", "3", "4"],
        ["countdown", "3", "4"],
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "countdown-tny", "--tasks", "aime24"], "unknown model 'countdown-tny'"),
        (["--model", "countdown-tiny", "--tasks", "aime42"], "unknown task 'aime42'"),
        (["--model", "countdown-tiny", "--tasks", "countdown", "--samples", "0"], "--samples is 0; allowed: 1"),
        (["--model", "countdown-tiny", "--tasks", "countdown", "--problems", "999"], ": --problems is 999, but"),
        (["--model", "countdown-tiny", "--tasks", "aime24"], "run `entrobench data prepare aime24`"),
    ],
)
def test_eval_command_mistakes(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invented.prepare_in(tmp_path / "cache", monkeypatch)
    assert words in refusal("eval", *arguments, "--out", str(tmp_path / "out"))


def test_eval_command_refuses_a_file_as_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    words = ["--model", "countdown-tiny", "--tasks", "countdown", "--out", str(tmp_path / "a")]
    assert f"--out {tmp_path / 'a'} cannot be written: {tmp_path / 'a'} is not a folder" in refusal("eval", *words)


def test_assess_the_real_contests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model knows nothing of mathematics: scores near 0 are right, and every part has done its work."""
    if not (REAL / "aime24.jsonl").is_file():
        pytest.skip("needs the real problem sets, whose folder ENTROBENCH_DATA names")
    invented.prepare_in(tmp_path / "cache", monkeypatch)
    prepare.prepare_sets(["aime24", "aime25"], str(REAL))
    with pytest.raises(UserError, match=r"1 of 30 prompts of aime24 that exceeds the model's max_position_embeddings"):
        run(tmp_path, Wanted(samples=2, max_new_tokens=24), ["aime24"])
    wanted = Wanted(samples=2, max_new_tokens=24, beyond_context=True)
    for result in run(tmp_path, wanted, ["aime24", "aime25"]):
        assert len(result["problems"]) == len(result["right"]) == 30
        assert sum(result["verdicts"].values()) == 60
        assert result["metrics"]["avg"] < 0.1
        assert 0 < result["metrics"]["length"] <= 24
        assert result["notes"] == ["the tokenizer leaves letters out of 30 of 30 prompts"]
        kept = records(tmp_path, result["task"])
        assert len(kept) == 30
        assert all(record["prompt"].endswith(r"\boxed{}.") and len(record["verdicts"]) == 2 for record in kept)
