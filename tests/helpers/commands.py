"""Commands called in this process, to save the seconds of imports that each process would need."""

from __future__ import annotations

import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from harness import cli


class Ended(NamedTuple):
    """The end of a command: its exit code, its output and its errors."""

    code: object
    out: str
    err: str


def end_of(*arguments: str) -> Ended:
    """Call a command as on the command line, in this process."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err, pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert "Traceback" not in err.getvalue()
    return Ended(end.value.code, out.getvalue(), err.getvalue())


def run_command(*arguments: str, code: int = 0) -> str:
    """Call a command that ends with this code, and return all that it prints."""
    ended = end_of(*arguments)
    assert ended.code == code, ended
    return ended.out + ended.err


def refusal(*arguments: str) -> str:
    """Return the sentence with which a command refuses its arguments."""
    code, out, err = end_of(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("entrobench: ")
    return err


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

        self.patch.setattr(sys, "argv", ["lm_eval", *arguments])
        self.patch.setattr(lm_eval.__main__, "setup_logging", lambda: None)  # its handler would outlive the test
        for constants in (huggingface_hub.constants, datasets.config):
            self.patch.setattr(constants, "HF_HUB_OFFLINE", True)
        lm_eval.__main__.cli_evaluate()
        return self.capture.readouterr().out
