"""The Python interface: an import that takes no time, and a matrix run from a script or a notebook."""

from __future__ import annotations

import ast
import json
import math
import os
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from commands import run_python
from patience import HANG
from places import REPOSITORY

import entrobench
from harness.base import seal

pytestmark = pytest.mark.processes

EXAMPLE = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "python.md").read_text(), re.DOTALL)[0]
SETTINGS = re.findall(r'"([\w.]+=\S+)"', EXAMPLE)
SMALL = ["train.steps=2", "train.prompts=4", "train.group=4", "eval.problems=4", "eval.samples=4", "eval.k=2"]


def run(*arguments: str, cwd: Path, script: str | None = None) -> str:
    return run_python(*arguments, cwd=cwd, script=script).stdout


# The import


def test_import_loads_nothing_heavy(tmp_path: Path) -> None:
    code = "import sys, entrobench; dir(entrobench); print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in run("-c", code, cwd=tmp_path).split()}
    assert "entrobench" in loaded
    assert not loaded & {"harness", "tasks", "baselines", "omegaconf", "numpy", "pandas", "mlflow", "torch"}


def test_public_names() -> None:
    assert dir(entrobench) == sorted(entrobench.__all__)
    assert set(entrobench.__all__) == {*entrobench.WHERE, "__version__"}
    for name in entrobench.WHERE:
        assert getattr(entrobench, name).__doc__.strip(), name
    [block] = [
        node
        for node in ast.parse(Path(entrobench.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == entrobench.WHERE
    assert entrobench.__version__ == version("entrobench")
    with pytest.raises(AttributeError, match="'entrobench' has no attribute 'Matrx'"):
        entrobench.Matrx  # noqa: B018


def test_load_and_leaderboard_refuse_mistakes(tmp_path: Path) -> None:
    with pytest.raises(entrobench.UserError, match=r"unknown key train\.step; .*did you mean 'steps'"):
        entrobench.load("smoke", "train.step=2")
    with pytest.raises(entrobench.UserError, match=r"^\['a=b'\] is not an override; write each as a text"):
        entrobench.load("smoke", ["a=b"])  # type: ignore[arg-type]
    assert repr(entrobench.load("smoke", "methods=[grpo]")) == "<matrix smoke: 1 cell in results/smoke>"
    with pytest.raises(entrobench.UserError, match=r"found no MLflow store .*`entrobench run`"):
        entrobench.load("smoke", f"results={tmp_path}", f"tracking.uri=sqlite:///{tmp_path / 'none.db'}").leaderboard()


# A script without a guard


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, put_store: Callable[[Path], None]) -> tuple[Path, str]:
    """The folder where the example of the documentation was run as a script, and what it printed."""
    folder = tmp_path_factory.mktemp("script")
    put_store(folder / "results")
    (folder / "script.py").write_text(f"print('begins')\n{EXAMPLE}\nprint('ends')\n")
    return folder, run("script.py", cwd=folder)


@pytest.fixture
def matrix(ran: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> entrobench.Matrix:
    monkeypatch.chdir(ran[0])
    return entrobench.load("smoke", *SETTINGS)


@pytest.mark.slow
def test_example_of_the_documentation(ran: tuple[Path, str]) -> None:
    folder, said = ran
    assert [line for line in said.splitlines() if line in ("begins", "ends")] == ["begins", "ends"]
    assert "planned  2" in said
    assert "2 cells, 0 done before, 2 to run" in said
    assert said.splitlines()[-2] == "results/smoke/report/report.html"
    assert "clip_b" in (folder / "results/smoke/report/report.html").read_text()
    logs = [path.read_text() for path in folder.glob("results/smoke/*/log.txt")]
    assert len(logs) == 2
    assert not any("begins" in log for log in logs)


@pytest.mark.slow
def test_leaderboard(matrix: entrobench.Matrix) -> None:
    table = matrix.leaderboard().set_index("method")
    assert list(table.index) == ["base model", "grpo", "clip_b"]
    for cell in matrix.cells:
        right = json.loads((cell.folder / "evals" / "countdown-000004.json").read_text())["right"]
        row = table.loc[cell.method]
        assert row["avg_at_k.mean"] == pytest.approx(sum(map(sum, right)) / (16 * 16))
        assert math.isnan(row["avg_at_k.low"])  # one seed
        assert row["pass_at_k.16.mean"] == pytest.approx(sum(map(any, right)) / 16)
        assert (row["task"], row["k"], row["seeds_done"], row["seeds_expected"]) == ("countdown", 8, 1, 1)
    assert table.loc["clip_b", "delta_to_baseline.mean"] == pytest.approx(
        table.loc["clip_b", "avg_at_k.mean"] - table.loc["grpo", "avg_at_k.mean"]
    )
    from harness import runs
    from harness.table.render import as_csv

    csv = as_csv(runs.matrix_rows(matrix.config, matrix.cells))
    assert ",".join(matrix.leaderboard().columns) == csv.splitlines()[0]


@pytest.mark.slow
def test_run_of_a_done_matrix(matrix: entrobench.Matrix, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in matrix.config.folder.glob("*/metrics.jsonl")}
    assert matrix.run(jobs=1).equals(matrix.leaderboard())
    assert len(before) == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "2 done before, 0 to run" in capsys.readouterr().out
    assert [plan.states for plan in matrix.plan()] == [{"done": 2}]
    status = matrix.status()
    assert list(status["state"]) == ["done", "done"]
    assert list(status["step"]) == list(status["steps"]) == [4, 4]
    assert list(status["folder"]) == [str(cell.folder) for cell in matrix.cells]


@pytest.mark.slow
def test_curves(matrix: entrobench.Matrix) -> None:
    curves = matrix.curves("entropy/mean", "eval/countdown/avg")
    assert list(curves.columns) == ["cell", "method", "task", "model", "seed", "step", "metric", "value"]
    values = {(row.cell, row.metric, row.step): row.value for row in curves.itertuples()}
    assert len(values) == len(curves)
    expected = {}
    for cell in matrix.cells:
        for line in map(json.loads, (cell.folder / "metrics.jsonl").read_text().splitlines()):
            for metric in ("entropy/mean", "eval/countdown/avg"):
                if metric in line["metrics"]:
                    expected[cell.id, metric, line["step"]] = line["metrics"][metric]
    assert values == expected
    assert {step for _, metric, step in values if metric == "entropy/mean"} == {1, 2, 3, 4}
    assert {step for _, metric, step in values if metric == "eval/countdown/avg"} == {0, 4}
    assert [(row.method, row.task, row.model, row.seed) for row in curves.drop_duplicates("cell").itertuples()] == [
        ("grpo", "countdown", "countdown-tiny", 0),
        ("clip_b", "countdown", "countdown-tiny", 0),
    ]
    # A critic's loss would stand where a method has one; what no method has is a mistake.
    with pytest.raises(entrobench.UserError, match=r"no cell has the metric 'entropy/maen'; .*mean 'entropy/mean'"):
        matrix.curves("entropy/maen")
    with pytest.raises(entrobench.UserError, match="names no metric; write for example"):
        matrix.curves()


@pytest.mark.slow
def test_samples(matrix: entrobench.Matrix) -> None:
    ids = matrix.samples()
    assert len(ids) == len(set(ids)) == 16
    samples = matrix.samples(ids[3])
    columns = ["cell", "method", "task", "model", "seed", "evaluated", "step"]
    columns += ["response", "verdict", "answer"]
    assert list(samples.columns) == columns
    assert samples.groupby(["method", "step"]).size().to_dict() == {
        (method, step): 16 for method in ("grpo", "clip_b") for step in (0, 4)
    }
    assert set(samples["evaluated"]) == {"countdown"}
    for cell in matrix.cells:
        right = json.loads((cell.folder / "evals" / "countdown-000004.json").read_text())["right"][3]
        mine = samples[(samples["cell"] == cell.id) & (samples["step"] == 4)]
        assert [int(verdict == "right") for verdict in mine["verdict"]] == right
    with pytest.raises(entrobench.UserError, match="no cell has answered the problem 'none'; allowed: "):
        matrix.samples("none")


@pytest.mark.slow
def test_curves_and_samples_of_some_cells(matrix: entrobench.Matrix) -> None:
    larger = entrobench.load("smoke", *SETTINGS, "methods=[grpo,clip_b,ppo]", "seeds=[0,1]")
    assert larger.curves("entropy/mean").equals(matrix.curves("entropy/mean"))
    assert larger.samples() == matrix.samples()


def test_curves_and_samples_without_a_run(tmp_path: Path) -> None:
    matrix = entrobench.load("smoke", f"results={tmp_path}")
    with pytest.raises(entrobench.UserError, match=r"no cell of the matrix smoke in .* has run yet"):
        matrix.curves("entropy/mean")
    for call in (matrix.samples, lambda: matrix.samples("1")):
        with pytest.raises(entrobench.UserError, match=r"no cell of the matrix smoke in .* has been evaluated yet"):
            call()


def test_curves_with_nan(tmp_path: Path) -> None:
    matrix = entrobench.load("smoke", f"results={tmp_path}")
    folder = matrix.cells[1].folder
    folder.mkdir(parents=True)
    lines = ['{"step": 1, "time": 0, "metrics": {"a": NaN, "b": 1}}', '{"step": 2, "time": 0, "metrics": {"b": 2.5}}']
    sealed = "".join(f"{seal.close_json(line)}\n" for line in lines)
    (folder / "metrics.jsonl").write_text(f'{sealed}{{"step')
    curves = matrix.curves("b", "a")
    assert list(curves["method"]) == ["clip_b"] * 3
    assert list(zip(curves["metric"], curves["step"], strict=True)) == [("b", 1), ("b", 2), ("a", 1)]
    assert list(curves["value"][:2]) == [1, 2.5]
    assert math.isnan(curves["value"][2])


# Without a file, as in a notebook, and a cell that fails

BROKEN = """from dataclasses import dataclass
from entrobench import Control

@dataclass(frozen=True)
class Broken(Control):
    '''Gives weights that are not finite.'''
    def weights(self, old, advantages_T, batch):
        return advantages_T / 0

METHODS = {"broken": Broken}
"""
NOTEBOOK = """import entrobench
assert "__file__" not in globals()
try:
    entrobench.run("smoke", "methods=[grpo,broken]", "plugins=[broken_method]", *SMALL, jobs=1)
except entrobench.CellsFailed as error:
    print("error:", error)
matrix = entrobench.load("smoke", "methods=[grpo,broken]", "plugins=[broken_method]", *SMALL)
print("states:", *matrix.status()["state"])
print("seeds:", *matrix.leaderboard().set_index("method")["seeds_done"].items())
print("second:", len(entrobench.run("smoke", "methods=[ppo,grpo]", *SMALL)))
"""


@pytest.mark.long
def test_run_in_a_notebook_with_a_cell_that_fails(tmp_path: Path, mlflow_uri: str) -> None:
    (tmp_path / "broken_method.py").write_text(BROKEN)
    kernel = "import sys; exec(sys.stdin.read())"  # as there, the main module has no file
    said = run("-c", kernel, cwd=tmp_path, script=f"SMALL = {[*SMALL, f'tracking.uri={mlflow_uri}']}\n{NOTEBOOK}")
    [error] = re.findall("^error: (.*)$", said, re.MULTILINE)
    assert re.fullmatch(
        r"1 of 2 cells are not done: broken seed 0 is failed \(.*not finite.*\), see results/smoke/broken-.*/log\.txt",
        error,
    )
    assert "states: done failed" in said
    assert "seeds: ('base model', 1) ('grpo', 1) ('broken', 0)" in said
    assert "second: 3" in said


# A notebook

TOUR = REPOSITORY / "docs" / "tour.ipynb"
MINIATURE = '"train.steps=2", "train.prompts=4", "train.group=4", "eval.problems=16"'


def test_tour_shows_plain_outputs() -> None:
    text = TOUR.read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    calls = "".join("".join(cell["source"]) for cell in cells)
    for name in ("load", "plan", "run", "status", "curves", "samples", "report"):
        assert f".{name}(" in calls
    assert '"train.steps=60"' in calls, "the next test replaces it"
    assert all(cell["outputs"] for cell in cells)
    assert "\\u001b" not in text  # colors of a terminal
    assert len(text) < 150_000  # a picture, and no live view
    assert str(Path.home()) not in text


@pytest.mark.long
def test_tour_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nbclient", "ipykernel"):
        pytest.importorskip(name, reason=f"{name} is not installed; pip install -e '.[notebook]'")
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        cell["source"] = cell["source"].replace('"train.steps=60"', MINIATURE)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=int(HANG), kernel_name="python3", resources=place).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    texts = [output["data"].get("text/plain", "") for output in shown if "data" in output]
    printed = "".join(output["text"] for output in shown if output["output_type"] == "stream")
    assert "planned  4" in printed
    assert "4 cells, 0 done before, 4 to run" in printed
    assert "\x1b" not in printed
    (plot,) = [output for output in shown if "image/png" in output.get("data", {})]
    assert len(plot["data"]["image/png"]) > 5000
    frames = [
        output["data"]["text/html"]
        for output in shown
        if output["output_type"] == "execute_result" and "text/html" in output["data"]
    ]
    assert [("clip_b" in frame and "grpo" in frame) for frame in frames[:3]] == [True] * 3
    assert "avg_at_k.mean" in frames[0]
    assert "boxed" in frames[3]
    assert texts[-1].endswith("report.html')")
    assert (tmp_path / "results/tour/report/report.html").is_file()
