"""The experiments on the theory: exact where theory is exact, repeatable, complete on disk, and stated in docs."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from known import known
from torch import Tensor

from harness import cli, config
from harness.base.errors import UserError
from harness.commands import dynamics as command
from harness.methods.batch import TokenBatch
from harness.theory import theory
from harness.theory.explain import batch_of, build_trainer, copy_from
from harness.tokens import dynamics
from harness.tokens.metrics import Stopwatch
from harness.train.trainer import Trainer
from harness.verify.pool import VerifierPool
from studies import pages
from studies.checks import Page, section
from studies.laptop import tokens

SMALL = ["train.prompts=8", "train.group=8", "train.updates=2", "train.lr=1e-3", "train.warmup_steps=0", "seeds=[0]"]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    torch.set_num_threads(1)
    folder = str(tmp_path_factory.mktemp("cell"))
    return build_trainer(config.load_config("demo", SMALL), "grpo", folder, VerifierPool())


def test_predictions_of_logit_steps_are_exact_in_the_limit_and_second_order_carries_further(trainer: Trainer) -> None:
    rows = theory.logit_steps(trainer, batch_of(trainer, 1))
    assert rows[0]["alpha"] == 1e-3
    assert rows[0]["slope"] == pytest.approx(1, abs=2e-3)
    assert rows[0]["correlation"] > 0.99999
    for row in rows[:3]:
        assert row["error_second"] < row["error_first"]
    # The errors are of second and of third order: ten times the step gives ten and a hundred times the relative error.
    assert rows[1]["error_first"] / rows[0]["error_first"] == pytest.approx(10, rel=0.1)
    assert rows[1]["error_second"] / rows[0]["error_second"] == pytest.approx(100, rel=0.1)


def test_optimiser_steps_derivative(trainer: Trainer) -> None:
    weights = {name: x.clone() for name, x in trainer.policy.module.state_dict().items()}
    lr = trainer.policy.lr
    rows = theory.optimiser_steps(trainer, batch_of(trainer, 1))
    assert rows[0]["lr"] == 1e-5
    # Two steps tell how steep it is before the first one, as their errors are of second order.
    (near, first), (far, second) = ((row["lr"], row["measured"] / row["lr"]) for row in rows[:2])
    slope = (first * far - second * near) / (far - near)
    assert slope == pytest.approx(rows[0]["derivative"] / near, rel=0.1)
    errors = [abs(row["measured"] / row["derivative"] - 1) for row in rows]
    assert errors[-1] > 10 * errors[0]
    assert trainer.policy.lr == lr
    assert all(torch.equal(x, weights[name]) for name, x in trainer.policy.module.state_dict().items())


def test_optimiser_steps_from_the_same_weights(tmp_path: Path, trainer: Trainer) -> None:
    settings = config.load_config("demo", [*SMALL, "hardware.offload=true"])
    offloading = build_trainer(settings, "grpo", str(tmp_path), VerifierPool())
    assert offloading.policy.masters is not offloading.policy.weights
    rows = theory.optimiser_steps(offloading, batch_of(offloading, 1))
    expected = theory.optimiser_steps(trainer, batch_of(trainer, 1))
    assert [row["measured"] for row in rows] == pytest.approx([row["measured"] for row in expected], rel=1e-4)


@pytest.mark.slow
def test_dynamics_writes_its_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = []
    for _ in range(2):
        assert command.call(cli.parse_command(["dynamics", "demo", *SMALL, "--steps", "2"])) == 0
        result = json.loads((tmp_path / "results/demo/dynamics/dynamics.json").read_text())
        runs.append(result)
    assert runs[0] == runs[1]
    kept = {(row["keep"], row["step"]) for row in result["masks"]}
    assert kept == {(keep, step) for keep in ("all", *theory.QUADRANTS) for step in (1, 2)}
    assert len({row["entropy"] for row in result["masks"] if row["step"] == 1}) == 1  # one model, one batch
    on, off, corrected = (row["mean"] for row in result["corollaries"][1:])
    assert max(abs(on), abs(corrected)) < abs(off)


def test_dynamics_of_groups_of_one() -> None:
    with pytest.raises(UserError, match=r"train\.group is 1"):
        command.call(cli.parse_command(["dynamics", "demo", "train.group=1"]))


# The study of which tokens move the entropy: the updates of training, without some tokens' signal


def entropy(trainer: Trainer, batch: TokenBatch) -> Tensor:
    return known(trainer.policy.stats(batch).entropy).double()


def test_measure_batch(tmp_path: Path) -> None:
    """In the second step, with moments: nothing left out is training itself; left-out tokens are those of a control."""
    trainer = build_trainer(config.load_config("demo", SMALL), "grpo", str(tmp_path), VerifierPool())
    trainer.train_step(1, Stopwatch())
    batch = batch_of(trainer, 2)
    start = {name: x.clone() for name, x in trainer.policy.state().items()}
    measured = tokens.measure_batch(trainer, 2, batch, torch.Generator().manual_seed(0))
    state = trainer.policy.state()
    assert state.keys() == start.keys()
    assert all(torch.equal(x, start[name]) for name, x in state.items())
    assert measured["clip_b"]["share"] == pytest.approx(tokens.SHARE, abs=1 / len(batch.index_T))
    for name in (tokens.NEGATIVE, tokens.ANY):
        assert measured[name]["share"] == measured["clip_b"]["share"]

    for name, spec in {"clip_b": "grpo+clip_b(share=0.02)", tokens.NOTHING: "grpo"}.items():
        other = build_trainer(config.load_config("demo", SMALL), spec, str(tmp_path), VerifierPool())
        other.policy.load_state(start, partial(copy_from, start))
        other.synchronise(1)
        before_T = entropy(other, batch)
        other.train_step(2, Stopwatch())
        change_T = entropy(other, batch) - before_T
        assert measured[name]["without"] == pytest.approx(change_T.mean().item(), abs=1e-6)

    signal = trainer.method.signal(trainer.stats_before(batch, dynamics.NEEDS), batch, list(batch.split(2)))
    for name, draws in tokens.sets_of_tokens(signal, batch, torch.Generator().manual_seed(0)).items():
        there = [change for mask_T in draws for change in change_T[mask_T].tolist()]  # of GRPO, the last of the two
        assert measured[name]["there"] == pytest.approx(sum(there) / len(draws) / len(change_T), abs=1e-6)


def test_sets_of_tokens(tmp_path: Path) -> None:
    trainer = build_trainer(config.load_config("demo", SMALL), "grpo", str(tmp_path), VerifierPool())
    batch = batch_of(trainer, 1)
    signal = trainer.method.signal(trainer.stats_before(batch, dynamics.NEEDS), batch, list(batch.split(2)))
    sets = tokens.sets_of_tokens(signal, batch, torch.Generator().manual_seed(0))
    (dropped_T,) = sets["clip_b"]
    assert (signal.advantages_T[dropped_T] < 0).all()
    for name, allowed_T in {tokens.NEGATIVE: signal.advantages_T < 0, tokens.ANY: signal.advantages_T != 0}.items():
        assert len({tuple(mask_T.tolist()) for mask_T in sets[name]}) == tokens.DRAWS
        for mask_T in sets[name]:
            assert mask_T.sum() == dropped_T.sum()
            assert not (mask_T & ~allowed_T).any()


# The tables and the words of docs/dynamics.md equal results/reference/dynamics

PAGE = Page("docs/dynamics.md")
MEASURED, LENS = (
    json.loads((pages.REFERENCE / f"dynamics/{name}.json").read_text()) for name in ("dynamics", "explain")
)
CHANGES = theory.entropy_changes(MEASURED["masks"])


def shown_rows(title: str) -> list[list[str]]:
    """Return the cells in each row of the tables of a section, without headings."""
    without_headings = re.sub(r"^\|.*\|\n\| ---.*\n", "", section(PAGE.path.read_text(), title), flags=re.MULTILINE)
    return [line.strip("| ").split(" | ") for line in without_headings.splitlines() if line.startswith("|")]


def test_tables_of_the_theorems() -> None:
    tables = {**MEASURED, "masks": CHANGES}
    expected = [[theory.cell_text(x) for x in row.values()] for rows in tables.values() for row in rows]
    assert shown_rows("The theorems, measured") == expected


def test_words_on_masks_of_one_quadrant() -> None:
    last = max(row["step"] for row in MEASURED["masks"])
    assert len({row["seed"] for row in MEASURED["masks"]}) == 3
    PAGE.states(f"{last} steps")
    lowering, raising = theory.QUADRANTS[::3], theory.QUADRANTS[1:3]
    assert {row["keep"] for row in CHANGES if row["highest"] < 0} == {"all", *lowering}
    assert {row["keep"] for row in CHANGES if row["lowest"] > 0} == {*raising}
    ends = [row["entropy"] for row in MEASURED["masks"] if row["step"] == last and row["keep"] in lowering]
    assert all(round(entropy, 1) == 0.1 for entropy in ends)


def test_words_on_steps_of_the_logits() -> None:
    by_alpha = {row["alpha"]: row for row in MEASURED["logit_steps"]}
    PAGE.states(f"to {100 * by_alpha[0.1]['error_first']:.0f} % up to steps of 0.1")
    assert by_alpha[1.0]["error_first"] > 1
    assert by_alpha[1.0]["error_second"] > 0.5


def test_words_on_steps_of_the_optimizer() -> None:
    off = {row["lr"]: abs(row["derivative"] / row["measured"] - 1) for row in MEASURED["optimiser_steps"]}
    PAGE.states(f"within {100 * max(off[lr] for lr in off if lr <= 3e-4):.0f} %")
    assert round(off[1e-3], 1) == 0.2
    assert round(off[3e-3] + 1) == 6
    train = config.load_config("demo").train
    assert (train.lr, train.updates, train.epochs) == (7e-4, 3, 1)


def test_words_on_corollaries() -> None:
    means = [row for row in MEASURED["corollaries"] if "contexts" not in row["what"]]
    on_policy, elsewhere, corrected = (row["mean"] / row["standard_error"] for row in means)
    assert abs(on_policy) < 1
    assert abs(corrected) < 1
    PAGE.states(f"{abs(elsewhere):.0f} standard errors")


MOMENTS = list(dict.fromkeys(row["moment"] for row in LENS))
METHODS = list(dict.fromkeys(row["method"] for row in LENS))
LENS_ROWS = {(row["moment"], row["method"], row["quadrant"]): row for row in LENS}


def test_table_of_methods_at_the_start() -> None:
    expected = []
    for method in METHODS:
        below = LENS_ROWS[MOMENTS[0], method, "negative_below"]
        cells = [method, f"{below['dropped']:.1%} x{below['size'] / below['plain_size']:.2f}"]
        for moment in MOMENTS:
            whole = LENS_ROWS[moment, method, "all"]
            cells += [f"{whole['predicted']:.5f}", f"{whole['predicted'] - whole['plain_predicted']:+.5f}"]
        expected.append(cells)
    assert shown_rows("The demo's methods at the start of training") == expected


def test_words_on_methods_at_the_start() -> None:
    first = MOMENTS[0]
    for quadrant in (*theory.QUADRANTS, "rest"):
        PAGE.states(f"{LENS_ROWS[first, 'grpo', quadrant]['share']:.1%}")

    clip_b, clip_v = (
        {x: LENS_ROWS[first, clip, x]["dropped"] for x in theory.QUADRANTS} for clip in ("clip_b", "clip_v")
    )
    assert not any(clip[quadrant] for clip in (clip_b, clip_v) for quadrant in theory.QUADRANTS[:3])
    dropped = [f"{100 * clip['negative_below']:.0f} %" for clip in (clip_b, clip_v)]
    whole = {method: [LENS_ROWS[moment, method, "all"] for moment in MOMENTS] for method in METHODS}
    starts = [whole[clip][0] for clip in ("clip_b", "clip_v")]
    saved = [f"{100 * (1 - start['predicted'] / start['plain_predicted']):.0f} %" for start in starts]
    PAGE.states(f"{dropped[0]} and {dropped[1]} of the tokens", f"removes {saved[0]} and {saved[1]} of GRPO's")
    assert whole["ce_gppo"][0]["predicted"] == whole["grpo"][0]["predicted"]
    assert whole["ce_gppo"][1]["predicted"] < whole["grpo"][1]["predicted"]
