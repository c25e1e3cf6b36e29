"""The leaderboard from MLflow alone: the command, its selections, and its messages on bad input."""

import csv
import dataclasses
import io
import itertools
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from boards import MOST_DISTINCT, MadeUpMatrix, json_rows, show_table, smoke_matrix, trained_rows
from cells import write_cell
from commands import refusal

from harness.base import identities
from harness.base.errors import UserError
from harness.cells.evaluations import right_distinct
from harness.cells.log import NO_SIGNAL, SHARE
from harness.cells.spec import ELSEWHERE, adopted_name
from harness.cells.state import change
from harness.config import Config
from harness.table import board
from harness.table.board import Experiment
from harness.table.leaderboard import LeaderboardRow
from harness.table.publish import publish
from harness.table.statistics import crossed_interval
from harness.tracking import store, sync
from harness.tracking.reader import Run, reader

pytestmark = pytest.mark.slow


@pytest.fixture
def at(mlflow_uri: str) -> list[str]:
    return ["--uri", mlflow_uri]


@pytest.fixture
def asked(sent_matrix: MadeUpMatrix) -> list[str]:
    return ["--experiment", "made", "--uri", sent_matrix.config.tracking_uri]


def test_compare_of_a_selected_method_counts_all_methods(asked: list[str]) -> None:
    """Otherwise a reader could lower any p-value by selecting the one row."""
    asked.append("--compare")
    whole = [row for row in json_rows(*asked) if row["method"] != "ppo"]
    assert json_rows(*asked, "--where", "method=clip_b") == whole
    table = show_table(*asked, "--where", "method=clip_b")
    assert "Methods that are not selected count in Holm's adjustment and in the ranks, too." in table
    assert "ppo" not in table
    assert "not selected" not in show_table(*asked)


def test_leaderboard_without_a_configuration(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri).send_all()
    alone = show_table("--experiment", "made", *at)
    assert alone == show_table(*made.given)
    assert "2 of 2" in alone
    assert "made" not in alone
    for folder in tmp_path.glob("made/*"):  # nothing of the results is read
        folder.rename(tmp_path / f"away-{folder.name}")
    assert show_table("--experiment", "made", *at) == alone


def test_tracking_uri_of_the_environment(
    tmp_path: Path, sent_matrix: MadeUpMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow_uri = sent_matrix.config.tracking_uri
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_uri)
    assert "clip_b" in show_table("--experiment", "made")
    other = f"sqlite:///{tmp_path / 'other.db'}"
    assert f"no MLflow store at {other}" in show_table("--experiment", "made", "--uri", other)
    assert Config(name="x").tracking_uri == mlflow_uri


def test_leaderboard_with_chosen_rows_and_columns(asked: list[str]) -> None:
    table = show_table(*asked, "--columns", "hours,tokens,length,dropped,entropy_kept", "--format", "md").splitlines()
    assert table[2] == "| method | CPU-hours a cell | tokens a cell | length | dropped | entropy kept |"
    assert table[4:6] == ["| base model |  |  |  |  |  |", "| grpo | 0.5 | 200 | 8.0 | 0.125 | 50.0% |"]
    others = ("Avg@K", "Entropy:", "excludes 0", "verdict", "Distinct right")
    assert not [word for word in others if word in "".join(table)], "notes on other columns"
    every = {row["method"]: row for row in json_rows(*asked)}
    base = every["base model"]
    by_value = sorted(every, key=lambda method: (method != "base model", -every[method]["avg_at_k"]["mean"]))
    assert [row["method"] for row in json_rows(*asked, "--sort", "avg_at_k")] == by_value
    # A condition on the method leaves the baseline in the comparison, but not in the table.
    assert json_rows(*asked, "--where", "method=clip_b") == [base, every["clip_b"]]
    assert json_rows(*asked, "--where", "method.clip_b.share=0.02") == [base, every["clip_b"]]
    one = json_rows(*asked, "--where", "seed=1", "--where", "method=ppo")
    assert [(row["method"], row["seeds_done"], row["seeds_expected"]) for row in trained_rows(one)] == [("ppo", 1, 1)]
    turned = {row["method"]: row for row in json_rows(*asked, "--baseline", "ppo")}
    assert turned["grpo"]["delta_to_baseline"]["mean"] == -every["ppo"]["delta_to_baseline"]["mean"]
    assert turned["grpo"]["baseline"] == "ppo"


def test_right_distinct_by_seed_and_problem(asked: list[str]) -> None:
    def distinct(seed: int, *method: int) -> np.ndarray:
        right = np.random.default_rng([seed, *method]).random((6, 16)) < 0.3
        return np.minimum(right.sum(axis=1), MOST_DISTINCT)

    rows = {row["method"]: row for row in json_rows(*asked)}
    for method in ("grpo", "clip_b", "ppo"):
        expected = crossed_interval(np.array([distinct(seed, *method.encode()) for seed in (0, 1)], dtype=float))
        assert rows[method]["right_distinct"] == pytest.approx(dataclasses.asdict(expected))
        share = expected.mean / (2 * MOST_DISTINCT)
        assert rows[method]["coverage"]["mean"] == pytest.approx(share)
    before = np.mean([distinct(seed) for seed in (0, 1)])
    assert rows["base model"]["right_distinct"]["mean"] == pytest.approx(before)
    header = show_table(*asked, "--columns", "right_distinct,coverage,distinct_answers,after_answer", "--format", "md")
    names = "method | distinct right | solutions found | distinct answers | text after answer"
    assert header.splitlines()[2] == f"| {names} |"
    line = next(line for line in header.splitlines() if line.startswith("| grpo |"))
    assert line.endswith("| 0.250 | 12.5% |")


def test_right_distinct_of_an_earlier_version() -> None:
    with pytest.raises(UserError, match=r"countdown-000001\.json has no right_distinct: an earlier version"):
        right_distinct({"task": "countdown"}, "countdown-000001.json")


def test_leaderboard_row_of_the_base_model(asked: list[str]) -> None:
    rows = json_rows(*asked)
    assert [row["method"] for row in rows] == ["base model", "grpo", "clip_b", "ppo"]
    drawn = [(np.random.default_rng([seed]).random((6, 16)) < 0.3).mean() for seed in (0, 1)]
    assert rows[0]["avg_at_k"]["mean"] == pytest.approx(np.mean(drawn), abs=1e-12)
    grpo = rows[1]["avg_at_k"]["mean"]
    assert rows[0]["delta_to_baseline"]["mean"] == pytest.approx(np.mean(drawn) - grpo, abs=1e-12)
    assert (rows[0]["entropy_initial"]["mean"], rows[0]["entropy_final"]) == (pytest.approx(2.0), None)
    for form in ("md", "csv", "table"):
        lines = show_table(*asked, "--format", form).splitlines()
        named = [line.strip("| ") for line in lines if line.strip("| ").startswith(("base model", "grpo", "clip_b"))]
        assert named[0].startswith("base model"), form
        assert (named[-1] == "base model: the model before training, by its evaluation at step 0.") == (form == "table")
    (best,) = [row for row in rows if row["method"] == "clip_b"]
    compared = {(row["method"], row["score"]): row for row in json_rows(*asked, "--compare")}
    base, clip = compared["base model", "Avg@K"], compared["clip_b", "Avg@K"]
    assert base["mean"]["mean"] == rows[0]["avg_at_k"]["mean"]
    assert base["difference"]["mean"] == pytest.approx(rows[0]["delta_to_baseline"]["mean"], abs=1e-12)
    assert (base["p_holm"], base["rank_best"], base["best"]) == (None, None, False)
    others = [compared[method, "Avg@K"]["p"] for method in ("clip_b", "ppo")]
    assert clip["p_holm"] == pytest.approx(min(1, max(min(others) * 2, clip["p"])), abs=1e-12), "of two comparisons"
    assert clip["mean"]["mean"] == best["avg_at_k"]["mean"]


def test_leaderboard_of_several_experiments(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    few = ("methods=[grpo]", "seeds=[0]")
    smoke_matrix(tmp_path, mlflow_uri, *few, name="größer").send_all()
    smoke_matrix(tmp_path, mlflow_uri, *few, "rollout.max_prompt_tokens=9", name="other").send_all()
    both = ["--experiment", "größer,other", *at]
    assert both[1].split(",") == [line for line in show_table(*both).splitlines() if line in both[1].split(",")]
    lines = list(csv.DictReader(io.StringIO(show_table(*both, "--format", "csv"))))
    assert [(line["experiment"], line["seeds_done"]) for line in lines] == [("größer", "1")] * 2 + [("other", "1")] * 2
    assert show_table("--experiment", "größer", "--experiment", "other", *at) == show_table(*both)
    newer = smoke_matrix(tmp_path, mlflow_uri, *few, name="other")
    newer.clock = itertools.count(2000.0, 10.0)
    newer.send_all()
    headings = [line for line in show_table("--experiment", "other", *at).splitlines() if line.startswith("other")]
    assert headings == ["other: rollout.max_prompt_tokens=null", "other: rollout.max_prompt_tokens=9"]


def test_made_of_compositions(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri, "methods=[grpo,dapo,psr+clip_b]", "seeds=[0]").send_all()
    notes = ["dapo = grpo(clip_high=0.28, dual_clip=10)+overlong", "psr+clip_b = w_reinforce(right=1, wrong=0)+clip_b"]
    for asked in (made.given, ["--experiment", "made", *at]):
        assert [line for line in show_table(*asked).splitlines() if " = " in line] == notes
        compositions = {row["method"]: row["made_of"] for row in json_rows(*asked)}
        assert compositions == {"base model": None, "grpo": None, **dict(note.split(" = ") for note in notes)}


def test_leaderboard_without_a_summary(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri)
    for cell in made.cells[:-1]:
        made.send(cell)
    assert "holds no table; `entrobench run` writes it at its end" in show_table("--experiment", "made", *at)
    publish(made.config, made.cells)
    rows = trained_rows(json_rows("--experiment", "made", *at))
    counts = [(row["method"], row["seeds_done"], row["seeds_expected"]) for row in rows]
    assert counts == [("grpo", 2, 2), ("clip_b", 2, 2), ("ppo", 1, 2)]
    assert rows[0]["baseline"] == "grpo"
    assert "Of 6 cells: 5 done, 1 without a run." in show_table("--experiment", "made", *at)


def test_leaderboard_with_further_axes(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    """Of values in a section and in an inner one."""
    second, further = "train.resample.max_batches", ["train.resample={}", "methods=[grpo,clip_b]", "seeds=[0]"]
    axes = f"axes={{stop.tokens: [null, 9], {second}: [1, 2]}}"
    made = smoke_matrix(tmp_path, mlflow_uri, axes, *further)
    for number, cell in enumerate(made.cells):
        made.send(cell, last=1.0 + number // 2)  # another one in each setting
    publish(made.config, made.cells)
    told_of_summary = show_table("--experiment", "made", *at)
    assert told_of_summary == show_table(*made.given)
    header, _, *lines = told_of_summary.splitlines()[2:]
    assert header.split()[:3] == ["method", "stop.tokens", second]
    settings = [[tokens, batches] for tokens in ("null", "9") for batches in ("1", "2")]
    expected = [[m, *each] for each in settings for m in ("base model", "grpo", "clip_b")]
    assert [line.split()[:3] for line in lines[:12]] == [" ".join(each).split()[:3] for each in expected]
    rows = trained_rows(json_rows("--experiment", "made", *at))
    assert [row["setting"] for row in rows[::2]] == [{"stop.tokens": x, second: y} for x, y in settings]
    assert [row["entropy_final"]["mean"] for row in rows] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]
    for base, other in zip(rows[::2], rows[1::2], strict=True):
        difference = other["avg_at_k"]["mean"] - base["avg_at_k"]["mean"]
        assert other["delta_to_baseline"]["mean"] == pytest.approx(difference)
    compared = json_rows("--experiment", "made", *at, "--compare")
    assert {each["setting"] for each in compared} == {f"stop.tokens={x}, {second}={y}" for x, y in settings}
    # One cell less: the table counts it.
    one_axis = f"axes={{{second}: [1, 2]}}"
    unfinished = smoke_matrix(tmp_path, mlflow_uri, one_axis, *further, name="other")
    for cell in unfinished.cells[:-1]:
        unfinished.send(cell)
    publish(unfinished.config, unfinished.cells)
    rows = trained_rows(json_rows("--experiment", "other", *at))
    assert [(row["seeds_done"], row["seeds_expected"]) for row in rows] == [(1, 1)] * 3 + [(0, 1)]


def test_leaderboard_with_collapsed_cells(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri, "methods=[grpo,clip_b]", "stop.entropy_below=0.5")
    for cell in made.cells:
        made.send(cell)
        if cell.method == "grpo":
            change(cell.folder, collapsed=14 + cell.seed)
            sync.sync(cell.folder, mlflow_uri)
    publish(made.config, made.cells)
    rows = trained_rows(json_rows("--experiment", "made", *at))
    assert [(row["seeds_done"], row["collapsed"]) for row in rows] == [(2, {"0": 14, "1": 15}), (2, {})]
    said = show_table("--experiment", "made", *at, "--columns", "avg_at_k,collapsed")
    assert "2 of 2 at steps 14, 15" in said.splitlines()[5]
    text = (
        "grpo, countdown, countdown-tiny: the entropy of 2 of 2 at steps 14, 15 fell so low that training ended there."
    )
    assert text in said


def test_leaderboard_with_cells_without_a_signal(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    """One that never had one, and one that ended early because it had none any more."""
    made = smoke_matrix(tmp_path, mlflow_uri, "methods=[grpo]", "stop.without_signal=2", "train.prompts=4").send_all()
    silent = {SHARE: 1.0, "reward/mean": 0.0}
    for cell, steps in zip(made.cells, ([silent, silent], [{SHARE: 0.5}, silent, silent]), strict=True):
        write_cell(cell.folder, steps=[{}, *steps], made=None)
        sync.sync(cell.folder, mlflow_uri)
    publish(made.config, made.cells)
    asked = ("--experiment", "made", *at)
    base, trained = json_rows(*asked)
    assert (base["method"], base["flags"]) == ("base model", [])
    never, ended = sorted(trained["flags"])
    responses = 2 * 4 * made.config.train.group
    assert never.startswith(f"grpo seed 0: {NO_SIGNAL} (all {responses} training rewards were 0, all answers wrong; ")
    assert ended.startswith("grpo seed 1: training ended at step 3, since its last 2 steps had no signal: all answers")
    above, _, below = show_table(*asked, "--format", "md").partition("**countdown, countdown-tiny †**")
    assert (f"{never}.\n" in above, never in below, ended in above, ended in below) == (True, False, False, True)


def test_leaderboard_refuses_bad_input(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri).send_all()
    asked = ["--experiment", "made", *at]
    assert "needs one of three" in show_table()
    assert "needs one of three" in show_table("smoke", *asked)
    assert "no experiment 'mde'" in show_table("--experiment", "mde", *at)
    assert "did you mean 'made'?" in show_table("--experiment", "mde", *at)
    assert "the experiment 'Default' at" in show_table("--experiment", "Default", *at)
    assert "--columns is 'avg_at'" in show_table(*asked, "--columns", "avg_at")
    assert "--sort is 'avg_at'" in show_table(*asked, "--sort", "avg_at")
    assert "--where is 'grpo'; write key=value" in show_table(*asked, "--where", "grpo")
    assert "names 'sed', which no cell has" in show_table(*asked, "--where", "sed=1")
    assert "--where seed is '7'; allowed: 0, 1" in show_table(*asked, "--where", "seed=7")
    assert "--where train.filter is 'nul'; allowed: null" in show_table(*asked, "--where", "train.filter=nul")
    assert json_rows(*asked, "--where", "method.clip_b.share=2e-2") == json_rows(
        *asked, "--where", "method.clip_b.share=0.02"
    )
    for same in ("train.filter=null", "train.filter=None", "eval.beyond_context=false"):
        assert json_rows(*asked, "--where", same) == json_rows(*asked)
    share = ["--where", "method.clip_b.share=0.02"]
    assert "no cell meets all of" in show_table(*asked, "--where", "method=ppo", *share)
    assert "--baseline is 'grp'" in show_table(*asked, "--baseline", "grp")
    assert "--baseline is ''; allowed: " in show_table(*asked, "--baseline", "")
    other = "no run of 'made' is of this configuration, whose overrides must be those of `run`; the experiment holds 6 "
    assert show_table(*made.given, "train.lr=5e-4").endswith(f"{other}others\n")
    assert refusal("report", *made.given, "train.lr=5e-4").endswith(f"{other}others\n")
    with store.store(mlflow_uri, write=True) as client, reader(mlflow_uri) as source:
        for run in Experiment(source, "made", mlflow_uri).runs:
            if run.tags["cell"] == made.cells[0].id:
                client.delete_run(run.id)
    assert "Of 6 cells: 5 done, 1 without a run." in show_table(*asked)
    with closing(sqlite3.connect(mlflow_uri.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("ALTER TABLE runs RENAME COLUMN artifact_uri TO moved")
    assert "was written by an unknown version of MLflow: no such column: artifact_uri" in show_table(*asked)


def test_leaderboard_without_done_cells_or_a_baseline(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri)
    given = ["smoke", f"tracking.uri={mlflow_uri}", "name=made", "methods=[grpo,clip_b,ppo]"]
    made.send(made.cells[1], "failed")
    assert "made: no cell is done. Of 3 cells: 1 failed, 2 without a run." in show_table(*given)
    assert " Of 1 cell: 1 failed." in show_table(*given[:-1], "methods=[clip_b]", "baseline=clip_b")
    made.send(made.cells[2])
    publish(made.config, made.cells)
    assert "Of 3 cells: 1 done, 1 failed, 1 without a run." in show_table(*given)
    (row,) = [row for row in json_rows("--experiment", "made", *at) if row["method"] == "ppo"]
    assert (row["delta_to_baseline"], row["seeds_done"]) == (None, 1)
    assert "No cell is of the baseline" not in show_table("--experiment", "made", *at)


def test_check_one_version_of_cells_of_two_versions() -> None:
    """As two packs may hold them; digests of earlier versions of entrobench are of whole files, and not compared."""
    tags = [
        {"cell": "a", "source": "", "source.clip_b": "1" * 16},
        {"cell": "b", "source": "", "source.clip_b": "2" * 16},
    ]
    ours, theirs = (Run("", "", each, {}, "", {}) for each in tags)
    board.check_one_version([ours, ours])
    board.check_one_version([ours, Run("", "", {"cell": "b", "source": "", "source.clip_b": "2" * 12}, {}, "", {})])
    with pytest.raises(UserError, match="cells a and b are of two versions of clip_b"):
        board.check_one_version([ours, theirs])


def test_leaderboard_counts_runs_of_an_earlier_version(tmp_path: Path, mlflow_uri: str) -> None:
    """Two seeds of clip_b by its earlier version, of which only one was run again."""
    made = smoke_matrix(tmp_path, mlflow_uri)
    clips = [cell for cell in made.cells if cell.method == "clip_b"]
    for cell in clips:
        spec = cell.spec
        sources = {**cell.sources, "clip_b": "0123456789abcdef"}
        identity = {**spec.identity, "source": sources}
        old = dataclasses.replace(spec, id=identities.key(identity), identity=identity)
        made.write(cell, sources=sources)
        folder = cell.folder.rename(cell.folder.with_name(f"old-{cell.seed}"))
        old.write(folder)
        sync.sync(folder, mlflow_uri)
    for cell in made.cells:
        if cell is not clips[1]:
            made.send(cell)
    assert "2 runs of an earlier version of clip_b are left out." in show_table(*made.given)
    rows = {row["method"]: row for row in trained_rows(json_rows(*made.given))}
    assert {name: (row["seeds_done"], row["seeds_expected"]) for name, row in rows.items()} == {
        "grpo": (2, 2),
        "clip_b": (1, 2),
        "ppo": (2, 2),
    }


@pytest.mark.parametrize(("corrected", "seed"), [(False, 0), (True, 0), (False, 1)])
def test_leaderboard_of_an_adopted_cell_and_corrected_problems_or_another_seed(
    corrected: bool, seed: int, tmp_path: Path, mlflow_uri: str
) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri, "methods=[grpo]", "seeds=[0]").send_all()
    [cell] = made.cells
    parts = ("method", "task", "evaluation_tasks", "model", "seed", "eval", "source")
    identity = {part: cell.spec.identity[part] for part in parts}
    identity |= {ELSEWHERE: {"trainer": "other", "checkpoints": {"1": "c"}}, "seed": seed}
    if corrected:
        identity["problems"] = {"countdown": "of before"}
    key = dataclasses.replace(cell.spec.key, method=adopted_name("grpo", "other"), seed=seed)
    folder = cell.folder.rename(cell.folder.with_name("grpo@other"))
    dataclasses.replace(cell.spec, id=identities.key(identity), identity=identity, key=key).write(folder)
    (folder / "mlflow.json").unlink()
    sync.sync(folder, mlflow_uri)
    assert (key.method in [row["method"] for row in json_rows(*made.given)]) is (not corrected and seed == 0)
    assert ("1 run of an earlier version is left out." in show_table(*made.given)) is corrected


def test_experiment_takes_the_newest_complete_attempt(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri, "methods=[grpo]").send_all()
    with store.store(mlflow_uri, write=True) as client, reader(mlflow_uri) as source:
        before = Experiment(source, "made", mlflow_uri)
        number = client.get_experiment_by_name("made").experiment_id
        old = before.done[made.cells[0].id]
        client.create_run(number, 1, {**old.tags, "attempt": "older", "outcome": "of the past"})
        client.create_run(number, 10**7, {**old.tags, "attempt": "failed", "status": "failed"})
    with reader(mlflow_uri) as source:
        after = Experiment(source, "made", mlflow_uri)
        assert (len(after.runs), after.done) == (4, before.done)
    assert json_rows("--experiment", "made", *at)[0]["seeds_done"] == 2


def test_leaderboard_with_an_entropy_of_nan(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri, "seeds=[0]")
    for cell in made.cells:
        made.send(cell, last=float("nan") if cell.method == "ppo" else 1.0)
    publish(made.config, made.cells)
    for how in ("table", "md"):
        said = show_table("--experiment", "made", *at, "--format", how)
        (line,) = [line for line in said.splitlines() if line.strip(" |").startswith("ppo")]
        assert " nan " in line
        assert "nan: at a seed of the row the entropy was no number" in said
        assert "One seed cannot tell how much seeds differ" in said
    rows = {row["method"]: row for row in json_rows("--experiment", "made", *at)}
    assert (rows["ppo"]["entropy_final"]["mean"], rows["ppo"]["entropy_kept"]) == (None, None)
    assert "nan:" not in show_table("--experiment", "made", *at, "--where", "method=clip_b")


def test_leaderboard_of_experiments_with_unlike_tasks(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    few = ("methods=[grpo]", "seeds=[0]")
    smoke_matrix(tmp_path, mlflow_uri, *few, name="one").send_all()
    smoke_matrix(tmp_path, mlflow_uri, *few, "eval.tasks=[countdown,aime24]", name="two").send_all()
    rows = trained_rows(json_rows("--experiment", "one,two", *at))
    expected = [("one", "countdown"), ("two", "countdown"), ("two", "aime24")]
    assert [(row["experiment"], row["task"]) for row in rows] == expected
    assert "no cell has" in show_table("--experiment", "one,two", *at, "--where", "method.clip_v.share=1")


def test_leaderboard_without_parts_of_a_store(tmp_path: Path, mlflow_uri: str, at: list[str]) -> None:
    smoke_matrix(tmp_path, mlflow_uri, "methods=[grpo]", "seeds=[0]").send_all()
    (plan,) = (tmp_path / "mlartifacts").rglob("matrix.json")
    whole = plan.read_text()
    for wrong in (whole.replace('"ks"', '"new"'), whole.replace('"eval_tasks"', '"new"')):
        plan.write_text(wrong)
        said = show_table("--experiment", "made", *at)
        assert said.endswith("was written by another version of entrobench; `entrobench sync` replaces it\n")
    plan.unlink()
    assert "holds no table" in show_table("--experiment", "made", *at)
    with store.store(mlflow_uri, write=True) as client, reader(mlflow_uri) as source:
        everything = Experiment(source, "made", mlflow_uri)
        for run in [*everything.runs, *everything.summaries]:
            client.delete_run(run.id)
    assert "holds no table" in show_table("--experiment", "made", *at)


def test_board_as_json_without_password(tmp_path: Path) -> None:
    made = smoke_matrix(tmp_path, "https://example.org")
    made.config.tracking.uri = "https://me:secret@example.org"
    assert "secret" not in board.Board.of_config(made.config, made.cells).as_json()


def test_columns_help() -> None:
    lines = show_table("--columns", "help").splitlines()
    names = {field.name for field in dataclasses.fields(LeaderboardRow)}
    assert {line.split()[0] for line in lines} <= names
    assert "delta_pass_at_k    Pass@K - baseline" in lines
    assert not any(sign in line for line in lines for sign in "{}")
