"""The packages that commands load: start-up times change with the machine, but imports do not."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import companions
import pytest
from boards import smoke_matrix
from commands import run_python
from places import REPOSITORY

from harness.base.processes import python_command
from harness.matrix import claim

pytestmark = pytest.mark.processes

HEAVY = {"torch", "transformers", "mlflow", "sqlalchemy", "lm_eval", "datasets", "matplotlib", "plotly"}
TABLE = {"pandas", "scipy"}  # compute the numbers of a table
PROGRAM = """
import json, sys
from harness import cli
for command in json.loads(sys.argv[2]):
    try:
        cli.main(command)
    except SystemExit as end:
        assert end.code == 0, end.code
with open(sys.argv[1], "w") as file:
    json.dump(sorted({name.partition(".")[0] for name in sys.modules}), file)
"""


def loaded_by(folder: Path, *commands: list[str]) -> tuple[set[str], str]:
    """Return the packages that commands in one process load, and their output."""
    modules = folder / "modules.json"
    done = run_python("-c", PROGRAM, str(modules), json.dumps(commands), cwd=REPOSITORY)
    return set(json.loads(modules.read_text())), done.stdout


@pytest.mark.slow
def test_run_with_nothing_to_do_loads_no_torch(tmp_path: Path, mlflow_uri: str) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri)
    claim(made.config)
    made.send_all()
    loaded, output = loaded_by(tmp_path, *([command, *made.given] for command in ("sync", "run")))
    assert loaded & HEAVY == set()
    assert loaded & TABLE == TABLE, "the table is computed each time, so that it is never stale"
    assert "holds the records of 6 cells" in output
    assert "6 cells, 6 done before, 0 to run" in output
    assert "clip_b" in output.partition("0 to run")[2]


def test_commands_without_a_table_load_no_pandas(tmp_path: Path) -> None:
    commands = ["--help"], ["list", "methods"], ["status", "demo"], ["plan", "demo"], ["doctor", "--help"]
    loaded, _ = loaded_by(tmp_path, *commands)
    assert loaded & (HEAVY | TABLE) == set()


STOPPED = """
import os, signal, sys
from harness import cli

class Stop:
    def find_spec(self, name, *_):
        if name == "rich":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Stop())
cli.main(["list", "methods"])
"""


def test_command_that_is_stopped_while_it_imports() -> None:
    stopped = run_python("-c", STOPPED, cwd=REPOSITORY, code=128 + signal.SIGTERM)
    assert stopped.stderr == "\nentrobench: interrupted; finished work is kept, and the same command continues\n"


@pytest.mark.slow
def test_modules_and_garbage_of_a_forked_cell(tmp_path: Path) -> None:
    """transformers would import scikit-learn and SciPy for nothing that a cell does."""
    process = companions.forkserver().Process(target=companions.write_process, args=(tmp_path / "process",))
    process.start()
    process.join()
    loaded, searches, left_out = json.loads((tmp_path / "process").read_text())
    assert "transformers.generation.candidate_generator" in loaded
    assert not {"sklearn", "scipy"} & set(loaded)
    assert searches
    assert left_out > 500_000


def test_garbage_of_a_cell_by_command() -> None:
    _, *command = python_command("import argparse, gc", "print(gc.isenabled(), gc.get_freeze_count())")
    searches, left_out = run_python(*command, cwd=REPOSITORY).stdout.split()
    assert searches == "True"
    assert int(left_out) > 1_000
