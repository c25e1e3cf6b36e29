"""Cells that TRL trains: their identity, their refusals, and their records, which are those of our own trainer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trainers
import trl_cells
from absent import hide_package
from cells import write_cell
from commands import Commands, refusal, run_command
from launched import lines
from patience import HANG, wait_until
from places import REPOSITORY
from trl_cells import CLOCK, METHOD, built, kill_after, same_weights, without_clock

from harness import config, matrix
from harness.base.errors import UserError
from harness.base.task import Judged
from harness.cells.checksums import CHECKPOINTS
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.matrix import Cell
from harness.methods.batch import Rollout
from harness.packs.protocol import protocol_of
from harness.plan import doctor
from harness.table.board import expected_cell
from harness.table.columns import method_text
from harness.table.frames import key_columns
from harness.tracking.sync import params_of

HERE = ["hardware.device=cpu", "rollout.engine=embedded"]
SMALL = ["train.steps=2", "train.prompts=4", "train.group=4", "train.updates=2", "eval.problems=6", "eval.samples=4"]
SMALL += ["eval.k=2", "rollout.max_new_tokens=12"]


def planned(name: str, *overrides: str) -> list[Cell]:
    return matrix.cells(config.load_config(name, [*HERE, *overrides]))


# Identity


@pytest.mark.parametrize("name", ["smoke", "paper"])
def test_cell_id_of_our_own_trainer(name: str) -> None:
    cells, named = planned(name), planned(name, "train.backend=own")
    assert [cell.id for cell in cells] == [cell.id for cell in named]
    for cell in cells[:2]:
        assert "backend" not in cell.identity["train"]
        assert "backend" not in cell.spec.settings["train"]
        assert "train.backend" not in params_of(cell.spec)
    protocol = protocol_of(cells[0].spec.settings, [cell.spec for cell in cells])
    assert "backend" not in protocol.definition["train"]


def test_cell_id_of_trl() -> None:
    ours, theirs = planned("smoke"), planned("smoke", "train.backend=trl")
    assert not {cell.id for cell in ours} & {cell.id for cell in theirs}
    assert theirs[0].identity["train"]["backend"] == "trl"
    assert params_of(theirs[0].spec)["train.backend"] == "trl"
    of_ours, of_theirs = (
        protocol_of(cells[0].spec.settings, [cell.spec for cell in cells]) for cells in (ours, theirs)
    )
    assert of_ours.differences(of_theirs) == ["train.backend ('trl', not null)"]


def test_cells_with_the_trainer_as_an_axis() -> None:
    cells = planned("smoke", "methods=[grpo]", "axes={train.backend: [own, trl]}")
    assert [cell.key.setting for cell in cells] == [(("train.backend", "own"),), (("train.backend", "trl"),)]
    assert cells[0].id == planned("smoke")[0].id
    assert cells[1].id == planned("smoke", "train.backend=trl")[0].id
    assert [params_of(cell.spec)["train.backend"] for cell in cells] == ["own", "trl"]


def test_key_columns_trainer() -> None:
    for overrides, trainer, name in (([], "", "grpo"), (["train.backend=trl"], "trl", "grpo (trained by trl)")):
        columns = key_columns(expected_cell(planned("smoke", *overrides)[0]))
        assert columns["trainer"] == trainer
        assert method_text(columns["method"], [], columns["trainer"]) == name


def test_cells_settle_the_engine() -> None:
    [first, *_] = planned("smoke", "train.backend=trl", "rollout.engine=auto")
    assert first.settled.rollout.engine == "embedded"


# Refusals

CANNOT = {
    "methods=[grpo,ppo]": "method 'ppo' needs a critic, which GRPOTrainer lacks; allowed: `entrobench list methods",
    "methods=[grpo,grpo(lr=1e-4)]": "sets the learning rate 0.0001",
    "methods=[grpo,outcome_exploration]": "compares the answers of a group",
    "hardware.compile=true": "hardware.compile is true, which train.backend=trl cannot do; allowed: false",
    "hardware.ranks=2": "hardware.ranks is 2, which train.backend=trl cannot do; allowed: 1",
    "hardware.nodes=2": "hardware.nodes is 2, which train.backend=trl cannot do; allowed: 1",
    "hardware.offload=true": "hardware.offload is true, which train.backend=trl cannot do; allowed: false",
    "rollout.engine=vllm": "rollout.engine is vllm, which train.backend=trl cannot do; allowed: auto or embedded",
    "rollout.lag=1": "rollout.lag is 1, which train.backend=trl cannot do; allowed: 0",
    "correction.kind=truncated": "correction.kind is truncated, which train.backend=trl cannot do; allowed: off",
    "train.resample={}": "train.resample is set, which train.backend=trl cannot do; allowed: null",
    "train.group=1": "train.group is 1, which train.backend=trl cannot do; allowed: 2 and more",
    "train.loss_scale=micro-batch": (
        "train.loss_scale is micro-batch, which train.backend=trl cannot do; allowed: mini-batch"
    ),
    "train.backend=verl": "train.backend is 'verl'; allowed: own, trl",
}


@pytest.mark.parametrize("override", CANNOT)
def test_plan_and_run_refuse_settings(override: str, tmp_path: Path) -> None:
    for command in ("plan", "run"):
        assert CANNOT[override] in refusal(
            command, "smoke", "train.backend=trl", override, f"results={tmp_path}/results"
        )
    assert not (tmp_path / "results").exists()


def test_cells_refuse_one_setting_of_an_axis() -> None:
    with pytest.raises(UserError, match=r"rollout.lag is 1, which train.backend=trl cannot do"):
        planned("smoke", "rollout.lag=1", "axes={train.backend: [own, trl]}")
    planned("smoke", "rollout.lag=1")


def test_plan_and_run_without_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_package(monkeypatch, "trl")
    sentence = "train.backend is 'trl', but trl is not installed here; pip install -e '.[trl]'"
    for command, code in (("plan", 0), ("run", 2)):
        output = run_command(command, "smoke", "train.backend=trl", f"results={tmp_path}/results", code=code)
        assert sentence in " ".join(output.split())
    finding = doctor.find_package("trainer trl")
    assert (finding.state, finding.remedy) == (
        doctor.MISSING,
        "pip install -e '.[trl]'; only train.backend=trl needs it",
    )


def test_plan_of_trl_cells(tmp_path: Path) -> None:
    output = run_command("plan", "smoke", "train.backend=trl", *HERE, f"results={tmp_path}/results")
    assert "memory: not estimated, since TRL trains these cells" in " ".join(output.split())


# Settings


@pytest.mark.parametrize(("micro_tokens", "size"), [(10**6, 24), (300, 12), (99, 3), (10, 1)])
def test_grpo_arguments(micro_tokens: int, size: int) -> None:
    overrides = ["train.prompts=6", "train.group=8", "train.updates=2", "train.epochs=3", "train.steps=5"]
    overrides += [f"hardware.micro_tokens={micro_tokens}", "rollout.max_new_tokens=20", "rollout.temperature=0.9"]
    settled = planned("demo", "methods=[grpo]", "train.backend=trl", *overrides)[0].settled
    given = trl_cells.cell_trainer().grpo_arguments(settled, seed=7, longest_prompt=5)
    assert given["per_device_train_batch_size"] == size  # of the 24 responses of an update
    assert given["gradient_accumulation_steps"] == 24 // size
    assert given["steps_per_generation"] == 48 // size
    assert (given["num_iterations"], given["max_steps"], given["num_generations"]) == (3, 30, 8)
    assert (given["temperature"], given["max_completion_length"], given["seed"]) == (0.9, 20, 7)
    assert (given["adam_beta1"], given["adam_beta2"], given["learning_rate"]) == (0.9, 0.99, 7e-4)


# Training


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "least"),
    [
        (METHOD, 0.0),
        ("w_reinforce", 0.25),  # a wrong response to a graded problem may have a reward above 0
        pytest.param("gspo+clip_v(share=0.05)+entropy_bonus", 0.0, marks=pytest.mark.long),
        pytest.param("grpo(kl_coef=0.1)+erc", 0.0, marks=pytest.mark.long),
    ],
)
def test_run_as_by_our_trainer(method: str, least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one update in a pass: TRL draws the responses of several mini-batches in an order of its own."""
    monkeypatch.setattr(Judged, "reward", property(lambda judged: max(judged.verdict.reward, least)))
    settings = ["train.updates=1", "train.epochs=2", "train.warmup_steps=3", "dynamics.every=2"]
    settings += ["hardware.micro_tokens=600"]  # so that an update has four micro-batches
    ours = trainers.build(tmp_path / "ours", method, *settings)
    sampled: list[list[list[Rollout]]] = []
    collect = ours.collector.collect

    def kept(*arguments: Any) -> Any:
        collected = collect(*arguments)
        sampled.append(collected.groups)
        return collected

    monkeypatch.setattr(ours.collector, "collect", kept)
    ours.run(lambda step: None)
    theirs = built(tmp_path / "theirs", *settings, method=method)
    from harness.elsewhere.trl.cell import RecordedTrainer

    def same(trainer: Any, prompts: list[list[int]], *_: Any) -> Any:
        rollouts = [rollout for group in sampled[trainer.step - 1] for rollout in group]
        assert [rollout.prompt for rollout in rollouts] == prompts
        return [rollout.response for rollout in rollouts], None

    monkeypatch.setattr(RecordedTrainer, "_generate_single_turn", same)
    theirs.run(lambda step: None)
    mine, their_lines = without_clock(tmp_path / "ours"), without_clock(tmp_path / "theirs")
    assert mine[0] == their_lines[0]  # the evaluation before training
    missing = ("mismatch/", "dynamics/", "peaks/", "valleys/")
    for own, other in zip(mine[1:], their_lines[1:], strict=True):
        assert all(key.startswith(missing) for key in own.keys() - other.keys())
        assert all(key.startswith("trl/") for key in other.keys() - own.keys())
        for key in own.keys() & other.keys():
            if not key.startswith("eval/"):
                assert other[key] == pytest.approx(own[key], rel=1e-4, abs=1e-6, nan_ok=True), (own["step"], key)


@pytest.mark.slow
def test_run_samples_from_the_whole_distribution(tmp_path: Path) -> None:
    """The settings of the model's generation_config.json are for other uses of the model."""
    plain = built(tmp_path / "plain", "train.steps=1")
    plain.run(lambda step: None)
    greedy = built(tmp_path / "greedy", "train.steps=1")
    own = greedy.policy.module.generation_config
    own.do_sample, own.min_p = True, 1.0
    greedy.run(lambda step: None)
    assert without_clock(tmp_path / "greedy") == without_clock(tmp_path / "plain")
    assert greedy.policy.module.generation_config is own


@pytest.mark.long
def test_run_resumed(tmp_path: Path) -> None:
    settings = ["train.steps=5", "train.epochs=2", "eval.every=3"]
    whole = built(tmp_path / "whole", *settings)
    whole.run(lambda step: None)

    for steps in (1, 3):
        kill_after(steps, tmp_path / "cut", *settings)
    stopped = built(tmp_path / "cut", *settings)
    durable: list[int] = []
    stopped.run(durable.append, lambda: stopped.done_steps == 3)
    assert durable == [2, 3]
    last = built(tmp_path / "cut", *settings)
    last.run(durable.append)
    assert durable == [2, 3, 3, 4, 5]
    assert without_clock(tmp_path / "cut") == without_clock(tmp_path / "whole")
    assert same_weights(last, whole)
    assert [path.name for path in (tmp_path / "cut" / CHECKPOINTS).iterdir()] == ["step-000005"]
    again = built(tmp_path / "cut", *settings)  # killed before it saved the model
    again.run(lambda step: None)
    assert without_clock(tmp_path / "cut") == without_clock(tmp_path / "whole")
    assert same_weights(again, whole)


@pytest.mark.slow
def test_run_ends_at_a_collapse(tmp_path: Path) -> None:
    training = built(tmp_path / "cell", "stop.entropy_below=9")
    training.run(lambda step: None)
    assert (training.ending.step, training.done_steps, training.last_step) == (1, 1, 1)
    last = MetricsLog(tmp_path / "cell").read()[-1]
    assert last["step"] == 1
    assert "eval/countdown/avg" in last["metrics"]


@pytest.mark.long
@pytest.mark.processes
def test_run_a_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("trl", reason="trl is not installed; the extra trl has it")
    hidden = [path for path in sys.path if not (Path(path) / "vllm").is_dir()]  # trl would take tests/vllm for it
    monkeypatch.setattr(sys, "path", hidden)  # which cells inherit
    small = [*SMALL, "train.backend=trl", "methods=[grpo]", "results=results"]
    place = Commands(tmp_path, monkeypatch, capsys)
    table = place.entrobench("run", "smoke", *small)
    for row in ("base model", "grpo (trained by trl)", "with train.backend=trl"):
        assert row in table
    compared = place.entrobench("leaderboard", "smoke", "--compare", *small)
    assert "grpo (trained by trl)" in compared
    settings = config.load_config("smoke", small)
    for cell in matrix.cells(settings):
        assert (State.read(cell.folder).state, State.read(cell.folder).durable_step) == ("done", 2)
        made = Made.read(cell.folder)
        assert made is not None
        assert {"trl", "accelerate"} <= made.versions.keys()
        assert CellSpec.read(cell.folder).identity["train"]["backend"] == "trl"
        assert (cell.folder / "model" / "model.safetensors").is_file()
        assert sorted(lines(cell.folder)) == [0, 1, 2]
    assert "1 done before, 0 to run" in place.entrobench("run", "smoke", *small)
    place.entrobench("report", "smoke", *small)


@pytest.mark.long
@pytest.mark.processes
def test_run_resumed_after_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="trl is not installed; the extra trl has it")
    overrides = [*SMALL, "train.steps=6", "checkpoint.every=2", "train.backend=trl", "methods=[grpo]"]
    command = [sys.executable, "-m", "harness.launch.cell"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}

    def prepared(name: str) -> Path:
        [cell] = matrix.cells(config.load_config("smoke", [*overrides, f"results={tmp_path / name}"]))
        return write_cell(cell.folder, cell.spec, "running", made=None)

    whole, cut = prepared("whole"), prepared("cut")
    subprocess.run([*command, str(whole)], env=environment, cwd=tmp_path, check=True, timeout=HANG)
    process = subprocess.Popen([*command, str(cut)], env=environment, cwd=tmp_path)
    log = cut / "metrics.jsonl"
    wait_until(lambda: process.poll() is not None or (log.exists() and max(lines(cut), default=0) >= 3), pause=0.01)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run([*command, str(cut)], env=environment, cwd=tmp_path, check=True, timeout=HANG)
    assert State.read(cut).state == "done"
    ours, theirs = lines(cut), lines(whole)
    for step, metrics in theirs.items():
        own, other = ({key: x for key, x in each.items() if key not in CLOCK} for each in (ours[step], metrics))
        assert own == other
