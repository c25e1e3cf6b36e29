"""Addresses without an MLflow store, and damaged stores: one true sentence, in a limited time, no traceback."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from boards import smoke_matrix
from commands import end_of, run_python
from full_disk import files_of_at_most
from matrices import write_done
from patient_server import QuietHandler, serving

from harness import config as configs
from harness.base.errors import UserError
from harness.matrix import cells
from harness.tracking import store
from harness.tracking.reader import reader

pytestmark = pytest.mark.slow

EXPERIMENT = {"experiment_id": "1", "name": "made", "lifecycle_stage": "active"}
PLACE = {"run_id": "a", "artifact_uri": "mlflow-artifacts:/1/a/artifacts"}
NO_LINES = {"tags": [{"key": "lines", "value": "many"}]}
ODD_ANSWERS = [  # JSON in another shape than MLflow's
    {"experiment": 3},
    {"experiment": EXPERIMENT | {"name": "wanted"}, "runs": [3]},
    {"experiment": EXPERIMENT | {"name": "wanted"}, "runs": [{"info": PLACE, "data": {"tags": 3}}]},
]
KNOWN = {"experiment": EXPERIMENT, "experiments": [EXPERIMENT]}


@dataclass
class Foreign:
    """A server that gives the same answer to all."""

    uri: str = ""
    body: bytes = b""


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Iterator[Foreign]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    one = Foreign()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.sent()
            self.reply(one.body)

        do_POST = do_PUT = do_PATCH = do_GET

    with serving(Handler) as one.uri:
        yield one


def end_and_output(*arguments: str) -> tuple[object, str]:
    """Return how a command ends, and all that it prints."""
    code, out, err = end_of(*arguments)
    return code, out + err


def output_of_one_cell(command: str, foreign: Foreign, tmp_path: Path) -> tuple[object, str]:
    """Return how a command on a matrix of one cell ends with this server, and all that it prints."""
    settings = [f"results={tmp_path}", f"tracking.uri={foreign.uri}", "name=wanted", "methods=grpo", "eval.samples=4"]
    [cell] = cells(configs.load_config("smoke", [*settings, "eval.k=2"]))
    write_done(cell.folder, cell.spec)
    return end_and_output(command, "smoke", *settings, "eval.k=2")


@pytest.mark.parametrize("command", ["leaderboard", "sync"])
def test_command_with_a_server_of_something_else(command: str, foreign: Foreign, tmp_path: Path) -> None:
    foreign.body = b"<html>hello</html>"
    code, text = output_of_one_cell(command, foreign, tmp_path)
    sentence = rf"the MLflow store at {foreign.uri} cannot be used: .* the response body was not in a valid JSON format"
    assert code == 2
    assert re.match(f"entrobench: {sentence}", text)
    assert text.count("\n") == 1


@pytest.mark.parametrize("answer", ODD_ANSWERS)
def test_sync_to_a_server_with_odd_answers(answer: object, foreign: Foreign, tmp_path: Path) -> None:
    foreign.body = json.dumps(answer).encode()
    code, text = output_of_one_cell("sync", foreign, tmp_path)
    assert code == 2
    assert re.match(f"entrobench: the MLflow store at {foreign.uri} ", text)
    assert text.count("\n") == 1


@pytest.mark.parametrize(("data", "end"), [({}, (0, 2)), (NO_LINES, (2,))])
def test_sync_to_a_server_whose_runs_have_odd_tags(
    data: object, end: tuple[int, ...], foreign: Foreign, tmp_path: Path
) -> None:
    wanted, run = EXPERIMENT | {"name": "wanted"}, {"info": PLACE, "data": data}
    foreign.body = json.dumps({"experiment": wanted, "experiments": [wanted], "run": run, "runs": [run]}).encode()
    code, text = output_of_one_cell("sync", foreign, tmp_path)
    assert code in end
    assert ("has the tag lines with" in text) == (data == NO_LINES)


def test_texts_of_a_run_whose_id_is_a_path(foreign: Foreign, tmp_path: Path) -> None:
    info = PLACE | {"run_id": str(tmp_path / "victim")}
    foreign.body = json.dumps(KNOWN | {"runs": [{"info": info, "data": {}}]}).encode()
    with reader(foreign.uri) as source:
        [run] = source.runs("1")
        assert source.texts([run], "matrix.json") == [foreign.body]
    assert not list(tmp_path.iterdir())


# Pages


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, put_store: Callable[[Path], None]) -> Path:
    """The folder of a store with the numbers of a matrix."""
    folder = tmp_path_factory.mktemp("whole")
    put_store(folder)
    smoke_matrix(folder, f"sqlite:///{folder / 'mlflow.db'}").send_all()
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder


@pytest.mark.parametrize("trials", [20, pytest.param(120, marks=pytest.mark.long)])
def test_leaderboard_of_damaged_pages(trials: int, whole: Path) -> None:
    """Seeds of damage at which other errors than those of SQLite came up."""
    content, damaged = (whole / "mlflow.db").read_bytes(), whole / "damaged.db"
    drawn = random.Random(1)
    ends = []
    for trial, number in zip(range(trials), itertools.cycle([1, 3, 30, 300])):
        pages = bytearray(content)
        for _ in range(number):
            pages[drawn.randrange(len(pages))] ^= 1 << drawn.randrange(8)
        damaged.write_bytes(pages)
        code, text = end_and_output("leaderboard", "--experiment", "made", "--uri", f"sqlite:///{damaged}")
        ends.append(code)
        assert code == 0 or (code, text.count("\n")) == (2, 1), (trial, text)
        if "malformed" in text:
            assert "put the file aside, and `entrobench sync` creates a new one from the records of the cells" in text
    assert {*ends} == {0, 2}


def test_store_with_a_schema_that_is_no_text(whole: Path, tmp_path: Path) -> None:
    """SQLite quotes its own schema in an error, and Python cannot decode that."""
    path = tmp_path / "mlflow.db"
    content = (whole / "mlflow.db").read_bytes()
    assert content.count(b"CREATE TABLE") > 10
    path.write_bytes(content.replace(b"CREATE TABLE", b"CREATE \xff\xfeBLE"))
    uri = f"sqlite:///{path}"
    for opened in (reader(uri), store.store(uri, write=True)):
        with pytest.raises(UserError, match=r"is damaged \(.+\); put the file aside"), opened:
            pass


def test_store_on_a_full_disk(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = Path(shutil.copy(whole / "mlflow.db", tmp_path))

    def write() -> None:
        with store.store(f"sqlite:///{path}", write=True) as client, files_of_at_most(100):
            client.create_experiment("x" * 400)

    with pytest.raises(UserError, match=r"^the MLflow store at sqlite:///.* cannot be used: [^(]"):
        write()
    assert capfd.readouterr() == ("", "")


def test_runs_with_tags_of_a_missing_run(whole: Path, tmp_path: Path) -> None:
    class Contradicting(sqlite3.Connection):
        def execute(self, query: str, *given: object) -> sqlite3.Cursor:
            rows = super().execute(query, *given)  # type: ignore[arg-type]
            return iter([("nobody", "key", "value")]) if "FROM tags" in query else rows  # type: ignore[return-value]

    uri = f"sqlite:///{whole / 'mlflow.db'}"

    def read() -> None:
        with reader(uri) as source:
            source.connection = sqlite3.connect(whole / "mlflow.db", factory=Contradicting)  # type: ignore[attr-defined]
            source.runs(source.experiments()["made"])

    with pytest.raises(UserError, match=r"is damaged \(tags has a run that is not in runs\)"):
        read()


# Stdout


@pytest.mark.processes
def test_leaderboard_on_an_ascii_stdout(whole: Path, tmp_path: Path) -> None:
    words = ("-m", "entrobench", "leaderboard", "--experiment", "made", "--uri", f"sqlite:///{whole / 'mlflow.db'}")
    shown = run_python(*words, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert shown.stderr == ""
    assert r"\xb1" in shown.stdout
    assert shown.stdout.isascii()


# Addresses


def test_leaderboard_from_a_closed_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and listens to nothing
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, text = end_and_output("leaderboard", "--experiment", "made", "--uri", uri)
    assert code == 2
    assert text == (
        f"entrobench: the MLflow store at {uri} cannot be used: Connection refused; start the server, or correct "
        "tracking.uri or MLFLOW_TRACKING_URI\n"
    )


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("http://[u:s3cRet@::1]/", "the MLflow store at http://*** cannot be used: "),
        ("htp://host", "the MLflow store at htp://host is of no kind that MLflow opens; allowed: "),
        (
            "results/mlflow.db",
            "the MLflow store at results/mlflow.db has no scheme in its address; write sqlite:///PATH for a file, "
            "http://HOST for a server\n",
        ),
        ("me:s3cRet@host", "the MLflow store at *** has no scheme in its address; write sqlite:///PATH for a file, "),
    ],
)
def test_leaderboard_from_an_impossible_address(uri: str, sentence: str) -> None:
    code, text = end_and_output("leaderboard", "--experiment", "made", "--uri", uri)
    assert (code, text.count("\n")) == (2, 1)
    assert text.startswith(f"entrobench: {sentence}")
    assert "s3cRet" not in text
