"""Commands called in this process, to save the seconds of imports that each process would need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import cli


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
