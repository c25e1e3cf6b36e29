"""Commands called in this process, which saves the seconds of imports, and in processes of their own."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from patience import HANG
from places import REPOSITORY

from harness import cli


class Ended(NamedTuple):
    """The end of a command: its exit code, its output and its errors."""

    code: object
    out: str
    err: str


def end_of(*arguments: str, cwd: Path | None = None) -> Ended:
    """Call a command as on the command line, in this process."""
    out, err = StringIO(), StringIO()
    with chdir(cwd or Path()), redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert "Traceback" not in err.getvalue()
    return Ended(end.value.code, out.getvalue(), err.getvalue())


def run_command(*arguments: str, cwd: Path | None = None, code: int = 0) -> str:
    """Call a command that ends with this code, and return all that it prints."""
    ended = end_of(*arguments, cwd=cwd)
    assert ended.code == code, ended
    return ended.out + ended.err


def verify(*arguments: str, code: int = 0) -> str:
    """Return the output of `entrobench verify`, on one line."""
    return " ".join(run_command("verify", *arguments, code=code).split())


def refusal(*arguments: str, cwd: Path | None = None) -> str:
    """Return the sentence with which a command refuses its arguments."""
    code, out, err = end_of(*arguments, cwd=cwd)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("entrobench: ")
    return err


def run_python(
    *arguments: str, cwd: Path, code: int = 0, script: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, where this repository can be imported."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200", **environment},
        input=script,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert ended.returncode == code, f"{arguments} gave {ended.returncode}:\n{ended.stdout}\n{ended.stderr}"
    assert "Traceback" not in ended.stderr
    return ended


class Commands:
    """Commands called in a folder as on the command line; each call returns the printed text."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self.capture = capture
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        self.patch = patch

    def entrobench(self, *arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        out, err = self.capture.readouterr()
        assert ended.value.code == code, out + err
        assert "Traceback" not in err, err
        return out

    def lm_eval(self, *arguments: str) -> str:
        # Here, since they take seconds, and most tests need none of them.
        import datasets
        import huggingface_hub.constants
        import lm_eval.__main__
        from lm_eval.tasks import TaskManager
        from lm_eval.tasks._index import TaskIndex

        # Reading its own files, 13,000, takes seconds. These have a name that a task here has too.
        own, files = Path(inspect.getfile(TaskManager)).parent, TaskIndex._iter_yaml_files
        few = staticmethod(lambda root: files(root / "aime" if root == own else root))
        self.patch.setattr(TaskIndex, "_iter_yaml_files", few)
        self.patch.setattr(sys, "argv", ["lm_eval", *arguments])
        self.patch.setattr(lm_eval.__main__, "setup_logging", lambda: None)  # its handler would outlive the test
        for constants in (huggingface_hub.constants, datasets.config):
            self.patch.setattr(constants, "HF_HUB_OFFLINE", True)
        lm_eval.__main__.cli_evaluate()
        return self.capture.readouterr().out
