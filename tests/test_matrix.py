"""Identities of cells: device and compute type belong to them, and are resolved before a cell has a key."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import refusal

import baselines
from harness import config, matrix
from harness.base import devices, registry
from harness.base.errors import UserError
from harness.matrix import Cell, cells
from harness.methods.verbs import Control
from harness.table.board import Board


def cell(*overrides: str) -> Cell:
    return cells(config.load_config("smoke", overrides))[0]


def test_identity_has_device_and_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "resolve_device", lambda wanted: "cpu" if wanted == "auto" else wanted)
    cpu, float32, bfloat16 = cell(), cell("train.dtype=float32"), cell("train.dtype=bfloat16")
    cuda, exact = cell("hardware.device=cuda"), cell("hardware.device=cuda", "train.dtype=float32")
    assert cpu.id == float32.id == cell("hardware.device=cpu").id
    assert cpu.identity["train"]["dtype"] == "auto", "whose key is that of all cells before there was a GPU"
    assert "device" not in cpu.identity
    assert cuda.id == cell("hardware.device=cuda", "train.dtype=bfloat16").id
    assert len({each.id for each in (cpu, bfloat16, cuda, exact)}) == 4
    for each, device, dtype in ((cpu, "cpu", "float32"), (cuda, "cuda", "bfloat16"), (exact, "cuda", "float32")):
        assert each.settled.hardware.device == each.spec.settings["hardware"]["device"] == device
        assert each.settled.train.dtype == each.spec.settings["train"]["dtype"] == dtype
    # The same configuration on a machine with a GPU.
    monkeypatch.setattr(devices, "resolve_device", lambda wanted: "cuda" if wanted == "auto" else wanted)
    assert (cell().id, cell("hardware.device=cpu").id) == (cuda.id, cpu.id)
    assert cell().folder != cpu.folder


def test_cells_of_further_axes() -> None:
    axes = ("axes.train.lr=[1e-3, 2e-3]", "axes.correction.kind=[off, truncated]", "seeds=[0, 1]")
    planned = cells(config.load_config("smoke", axes))
    assert [(c.seed, c.config.setting["train.lr"], c.config.setting["correction.kind"], c.method) for c in planned] == [
        (seed, lr, kind, method)
        for seed in (0, 1)
        for lr in (1e-3, 2e-3)
        for kind in ("off", "truncated")
        for method in ("grpo", "clip_b")
    ]
    assert len({c.id for c in planned}) == len({c.label for c in planned}) == 16
    assert planned[3].label == "clip_b train.lr=0.001, correction.kind=truncated seed 0"
    assert [c.label for c in cells(config.load_config("smoke", ["axes.stop.tokens=[null, 9]", "methods=[grpo]"]))] == [
        "grpo stop.tokens=null seed 0",
        "grpo stop.tokens=9 seed 0",
    ]
    assert planned[3].spec.config == planned[3].settled
    alone = cells(config.load_config("smoke", ["train.lr=2e-3", "correction.kind=truncated", "seeds=[1]"]))
    assert [c.folder for c in alone] == [c.folder for c in planned[14:]], "who a cell is does not depend on its company"


@pytest.mark.parametrize(
    "axes", ["{train: {updates: [1, 2], lr: [1e-3]}}", "{train: {updates: [1, 2]}, train.lr: [1e-3]}"]
)
def test_an_axis_replaces_that_of_the_base_in_any_spelling(axes: str, tmp_path: Path) -> None:
    base, above = tmp_path / "base.yaml", tmp_path / "above.yaml"
    base.write_text(f"base: smoke\naxes: {axes}\n")
    above.write_text("base: base.yaml\naxes: {train.lr: [2e-3]}\n")
    with contextlib.chdir(tmp_path):
        assert config.load_config("above.yaml").axes == {"train.updates": [1, 2], "train.lr": [2e-3]}
        overridden = config.load_config("above.yaml", ["axes.train.lr=[3e-3, 4e-3]"])
    assert overridden.axes == {"train.updates": [1, 2], "train.lr": [3e-3, 4e-3]}


@pytest.mark.parametrize(
    ("base", "above", "overrides"),
    [
        ("base: smoke", "base: base.yaml", ["axes.train.lr=[1e-3, 2e-3]", "train={lr: 3e-3}"]),
        ("base: smoke", "base: base.yaml", ["train.lr=3e-3", "axes={train: {lr: [1e-3, 2e-3]}}"]),
        ("base: smoke\naxes: {train.lr: [1e-3]}", "base: base.yaml\ntrain: {lr: 3e-3}", []),
        ("base: smoke", "base: base.yaml\ntrain: {lr: 3e-3}\naxes: {train.lr: [1e-3]}", []),
    ],
)
def test_a_value_that_an_axis_would_hide_is_refused(
    base: str, above: str, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(base)
    Path("above.yaml").write_text(above)
    sentence = r"train.lr=0.003 changes nothing, since axes varies train.lr; write 'axes.train.lr=\[0.003\]'"
    with pytest.raises(UserError, match=f"^{sentence}$"):
        config.load_config("above.yaml", overrides)


def test_an_axis_replaces_a_value_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text("base: smoke\ntrain: {lr: 3e-3}")
    assert config.load_config("base.yaml", ["axes.train.lr=[1e-3]"]).axes == {"train.lr": [1e-3]}


def test_cells_build_shared_parts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    build, built = registry.build, list[str]()

    def counted(kind: str, table: Any, spec: str, *shared: Any) -> Any:
        built.append(spec)
        return build(kind, table, spec, *shared)

    monkeypatch.setattr(registry, "build", counted)

    def count_built(*overrides: str) -> tuple[int, list[str]]:
        built.clear()
        settings = config.load_config("smoke", overrides)
        matrix = cells(settings)
        Board.of_config(settings, matrix)
        assert all(each.spec.made_of is None and each.sources for each in matrix)
        return len(matrix), sorted(built)

    number, few = count_built()
    assert number == 2
    assert count_built("seeds=[0, 1, 2, 3]", "axes.train.lr=[1e-3, 2e-3]") == (16, few)


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ("{train.lrr: [1]}", "axes names 'train.lrr', which is not a value that results depend on; .*mean 'train.lr'"),
        ("{train.betas: [1]}", "axes names 'train.betas', which is not a value that results depend on"),
        ("{train: {}}", "axes.train is {}; it must be a list of values"),
        ("{train: [1]}", "axes names 'train', which is not a value that results depend on"),
        ("{train.filter: [null]}", "axes names 'train.filter', which is not a value that results depend on"),
        ("{train.lora.rank: [4, 8]}", r"axes varies .*, but train.lora is null; set it, for example train.lora=\{\}$"),
        ("{hardware.threads: [1, 2]}", "axes names 'hardware.threads', which is not a value that results depend on"),
        ("{seeds: [1]}", "axes names 'seeds', which is not a value that results depend on"),
        ("{train.lr: 3}", r"axes.train.lr is 3; it must be a list of values, for example \[1, 2\]"),
        ("{train.lr: []}", r"axes.train.lr is \[\]; it must be a list of values"),
        ("{train.lr: [0.1, 0.1]}", "axes.train.lr names 0.1 twice"),
        ("{train.lr: [a]}", "train.lr is 'a'; it must be a number"),
        ("{train.lr: [-1]}", "train.lr is -1.0; allowed: more than 0"),
        ("{train.updates: [1, 5]}", r"train.updates is 5; it must divide train.prompts \(32\)"),
        ("{train.group: [4, 1]}", "train.group is 1, but method 'grpo' compares the responses to one prompt"),
        ("{verify.workers: [1, 2]}", "axes names 'verify.workers', which is not a value that results depend on"),
        ("{eval.k: [1, 2]}", "axes names 'eval.k', which is not a value that results depend on"),
        ("{mismatch.float32.max: [1, 2]}", "axes names '.*', which is not a value that results depend on"),
        ("{correction.high: [2, 3]}", "axes 'correction.high=2.0' and 'correction.high=3.0' are the same; name one of"),
        ("3", "axes is 3; it must be a mapping of keys"),
    ],
)
def test_cells_refuse_axes(axes: str, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}"):
        cells(config.load_config("smoke", [f"axes={axes}"]))


DAPO = "grpo(clip_high=0.28, dual_clip=10)+overlong"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["methods=[grpo, gmpo]", "correction.kind=truncated"],
            "correction.kind=truncated weighs single tokens, and objective gmpo takes a response as one product of "
            "them all; allowed with gmpo: correction.level=sequence",
        ),
        (
            ["methods=[grpo, gmpo]", "axes.correction.kind=[off, masked]"],
            "correction.kind=masked weighs single tokens, and objective gmpo",
        ),
        (["methods=[grpo, gspo(dual_clip=0.5)]"], "gspo.dual_clip is 0.5; allowed: 1 and more"),
        (["methods=[grpo, passk(k=17)]"], r"train.group is 16, but method 'passk\(k=17\)' compares .*\(allowed: 18"),
        (
            ["methods=[grpo, gspo]", "train.loss_scale=micro-batch"],
            r"train.loss_scale is micro-batch, but the loss of method 'gspo' is not a mean over tokens "
            r"\(normalise=sequence\); allowed: methods with normalise=token",
        ),
        ([f"methods=[grpo, dapo, '{DAPO}']"], r"methods 'dapo' and 'grpo\(.*\)\+overlong' are the same; name one of"),
        (["method_options.dapo.clip_high=0.3"], r"method_options names 'dapo', which is short for grpo\(.*; allowed"),
        (
            ["method_options.clip_bb.share=0.3"],
            "method_options names 'clip_bb', which is neither objective nor control; allowed: .*; .* 'clip_b'",
        ),
    ],
)
def test_cells_refuse_methods(overrides: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}"):
        cells(config.load_config("smoke", overrides))


def test_cells_with_a_correction_of_whole_responses() -> None:
    overrides = ["methods=gmpo", "baseline=gmpo", "correction.kind=masked", "correction.level=sequence"]
    [one] = cells(config.load_config("smoke", overrides))
    assert one.identity["correction"]["level"] == "sequence"


COMPARING = {"unlikeliness", "ucpo", "outcome_exploration"}  # of the controls
ALONE = {"ppo", "a2po", "w_reinforce", "w_reinforce_ppo", "nsr", "psr", "topr"}  # of all others


@pytest.mark.parametrize("name", baselines.METHODS)
def test_cells_with_groups_of_one(name: str) -> None:
    """The control is added to an objective that accepts groups of one response."""
    entry = baselines.METHODS[name]
    control = isinstance(entry, type) and issubclass(entry, Control)
    method = f"ppo+{name}" if control else name
    overrides = [f"methods=['{method}']", f"baseline='{method}'", "train.group=1", "train.filter.n=8"]
    if name in ALONE or (control and name not in COMPARING):
        assert cells(config.load_config("smoke", overrides))
    else:
        with pytest.raises(UserError, match=r"train.group is 1, but method .* compares the responses to one prompt"):
            cells(config.load_config("smoke", overrides))


@pytest.mark.parametrize("twice", ["countdown, countdown", "countdown, countdown(count=3)"])
def test_cells_refuse_evaluations_of_one_name(twice: str) -> None:
    with pytest.raises(UserError, match=r"eval.tasks 'countdown' and 'countdown.*' are both 'countdown', and one"):
        cells(config.load_config("smoke", [f"eval.tasks={[*twice.split(', ')]}"]))


def test_evaluation_names() -> None:
    given = ["eval.tasks=[countdown, 'countdown(count=4)']", "eval.by_task={'countdown(count=4)': {k: 2}}"]
    settings = config.load_config("smoke", given)
    matrix = cells(settings)
    board = Board.of_config(settings, matrix)
    assert board.expected[0].eval_tasks == ["countdown", "countdown(count=4)"]
    assert board.ks == {"countdown": settings.eval.k, "countdown(count=4)": 2}
    identities = matrix[0].identity["evaluation_tasks"]
    assert [each.get("name") for each in identities] == [None, "countdown(count=4)"]
    with pytest.raises(
        UserError, match=r"eval.by_task names 'countdown\(count=5\)', which is not evaluated; allowed: "
    ):
        cells(config.load_config("smoke", [given[0], "eval.by_task={'countdown(count=5)': {k: 2}}"]))


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("eval.problems=337", r"eval.problems is 337, but countdown has 336 problems in its test split \(allowed: up"),
        ("axes={eval.problems: [2, 400]}", "eval.problems is 400, but countdown has 336"),
        ("eval.by_task={countdown: {problems: 337}}", "eval.by_task.countdown.problems is 337, but countdown has 336"),
    ],
)
def test_cells_refuse_more_problems_than_there_are(command: str, override: str, sentence: str, tmp_path: Path) -> None:
    assert re.match(rf"entrobench: {sentence}", refusal(command, "smoke", f"results={tmp_path / 'r'}", override))
    assert not (tmp_path / "r").exists()


def test_readable_name() -> None:
    """File systems count bytes, of which many letters have three."""
    name = matrix.readable_name(f"clip_b(note={'語' * 200})", "countdown", "tiny")
    assert len(name.encode()) <= matrix.LONGEST_NAME
    assert name.startswith("clip_b_note_語")
    assert matrix.readable_name("grpo", "countdown", "models/tiny") == "grpo-countdown-tiny"


def test_claim_with_a_half_written_marker(tmp_path: Path) -> None:
    """Another runner writes it now, or was killed while it did."""
    settings = config.load_config("smoke", [f"results={tmp_path}"])
    settings.folder.mkdir()
    (settings.folder / ".matrix.json.4567").write_text("{")
    for other_command in ("report", "dynamics", "choice.yaml", "candidates.md"):  # written before the first cell
        (settings.folder / other_command).touch()
    matrix.claim(settings)
    assert json.loads((settings.folder / "matrix.json").read_text()) == {"matrix": "smoke"}
    (settings.folder / "matrix.json").unlink()
    (settings.folder / "matrix.json.4567").write_text("somebody's")
    with pytest.raises(UserError, match="holds files that entrobench did not make"):
        matrix.claim(settings)


def test_check_owner_while_a_marker_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with all that belongs to it right after the look for it."""
    settings = config.load_config("smoke", [f"results={tmp_path}"])
    settings.folder.mkdir()
    exists = Path.exists

    def then_begin(path: Path) -> bool:
        answer = exists(path)
        if path == settings.folder / "matrix.json":
            monkeypatch.setattr(Path, "exists", exists)
            matrix.claim(settings)
            (settings.folder / "a cell").mkdir()
        return answer

    monkeypatch.setattr(Path, "exists", then_begin)
    matrix.check_owner(settings)
    assert (settings.folder / "a cell").is_dir()
