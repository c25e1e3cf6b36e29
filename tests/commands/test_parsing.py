"""Mistakes on the command line: one sentence with the nearest or the allowed values, and exit code 2."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from commands import refusal, run_command

from harness import cli

DASHES = "a key of the configuration is written without dashes:"
OF_CONFIG = "CONFIG is a YAML file, or a name that `entrobench list configs` shows, for example demo"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rnu"], "unknown command 'rnu'; did you mean 'run'?"),
        (["zzz"], f"unknown command 'zzz'; allowed: {', '.join(sorted(cli.COMMANDS))}"),
        (["run"], f"run needs CONFIG; {OF_CONFIG}"),
        (["list"], "list needs one of methods, tasks, models, configs, studies"),
        (["explain"], f"explain needs METHOD, CONFIG; {OF_CONFIG}"),
        (["eval", "--tasks", "countdown"], "eval needs --model"),
        (["leaderboard", "demo", "--fromat", "md"], "leaderboard has no option '--fromat'; did you mean '--format'?"),
        (["leaderboard", "demo", "--fromat=md"], "leaderboard has no option '--fromat'; did you mean '--format'?"),
        (
            ["leaderboard", "--experiment", "e", "train.lr=1"],
            "'train.lr=1' goes with a CONFIG; packs and experiments are read as they are",
        ),
        (["run", "demo", "--job", "1"], "run has no option '--job'; did you mean '--jobs'?"),
        (["run", "demo", "--train.lr", "1e-4"], f"run has no option '--train.lr'; {DASHES} train.lr=1e-4"),
        (["run", "demo", "--seeds=[0,1]"], f"run has no option '--seeds'; {DASHES} seeds=[0,1]"),
        (
            ["eval", "--model", "m", "--tasks", "t", "--limit", "4"],
            "eval has no option '--limit'; did you mean '--problems'?",
        ),
        (
            ["leaderboard", "demo", "--out", "nowhere/table.md"],
            "--out nowhere/table.md cannot be written: the folder nowhere does not exist; make it first",
        ),
        (
            ["plan", "smoke", "--plugin", "my.py"],
            "plugin 'my.py' is not the name of a module; write it as in an import statement, for example my",
        ),
        (["--zzz"], "entrobench has no option '--zzz'; allowed: --help, --version"),
        (
            ["leaderboard", "demo", "--format", "jsn"],
            "--format is 'jsn'; allowed: csv, json, latex, md, parquet, table; did you mean 'json'?",
        ),
        (["explain", "grpo clip_b(share=0.1, pace=2)", "demo"], "unknown key clip_b.pace; allowed: "),
        (["explain", " ", "demo"], "' ' is not a valid spec; write name or name(key=value, ...), in quotes in a list"),
        (["check", "all", "clip_b"], "METHOD is 'all clip_b'; `all` is the whole registry, without others"),
        (["explain", "all clip_b", "demo"], "METHOD is 'all clip_b'; `all` is the whole registry, without others"),
        (
            ["explain", "ppo passk", "demo", "train.group=4"],
            "train.group is 4, but method 'passk' compares the responses to one prompt (allowed: 5 and more)",
        ),
        (["explain", "grpo", "demo", "--batches", "0"], "--batches is 0; allowed: 1 and more"),
        (["dynamics", "demo", "--steps", "0"], "--steps is 0; allowed: 1 and more"),
        (["run", "demo", "--jobs", "two"], "--jobs is 'two'; it must be a whole number"),
        (["sync", "demo", "--tensorboard", ""], "--tensorboard is ''; it must be the name of a file or a folder"),
        (["verify", ""], "FILE is ''; it must be the name of a file or a folder"),
        (["run", "demo", "--jobs"], "run: --jobs: expected one argument"),
        (["list", "models", "more"], "list does not take the argument 'more'; see entrobench list --help"),
        (["data", "prepar"], "unknown action 'prepar'; did you mean 'prepare'?"),
        (["status", "dem\x1b[2Jo"], "no configuration is called 'dem\\x1b[2Jo'; allowed: "),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], sentence: str) -> None:
    err = refusal(*arguments)
    assert err.startswith(f"entrobench: {sentence}") if sentence.endswith(": ") else err == f"entrobench: {sentence}\n"


def test_entrobench_without_arguments() -> None:
    shown = run_command()
    assert shown.startswith("usage: entrobench ")
    assert all(f"\n    {name}" in shown for name in cli.COMMANDS)


def test_parse_command_with_overrides_behind_options() -> None:
    arguments = cli.parse_command(["run", "demo", "a=1", "--jobs", "2", "b=2"])
    assert (arguments.config, arguments.overrides, arguments.jobs) == ("demo", ["a=1", "b=2"], 2)
    assert cli.parse_command(["run", "demo"]).overrides == []


def test_version_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.metadata, "version", lambda name: "7")
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "harness" / "cli.py"))
    assert run_command("--version") == "entrobench 7\n"
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not here")
    subprocess.run([git, "init", "-q", str(tmp_path)], check=True)
    assert run_command("--version") == "entrobench 7\n", "there is no commit yet"
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([git, "-C", str(tmp_path), *who, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    commit = subprocess.run([git, "-C", str(tmp_path), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    shown = run_command("--version")
    assert shown.startswith("entrobench 7 (commit ")
    assert commit.stdout.startswith(shown.removeprefix("entrobench 7 (commit ").removesuffix(")\n"))
