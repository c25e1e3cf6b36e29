"""Tuning: as many candidates of each method, one rule, and a choice that `ruleset: tuned` runs."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from boards import MadeUpMatrix
from commands import run_command

import baselines
from harness import cli, runs
from harness import config as configs
from harness.base.errors import UserError
from harness.cells.spec import training_key
from harness.commands.common import config_of_arguments
from harness.config import Config
from harness.matrix import cells
from harness.methods.composition import Method
from harness.runs import tune
from harness.runs.tune import Candidate, check_candidates, chosen_candidates, run_tuning, tuning_matrix
from harness.table.publish import publish

CANDIDATES = "tune.candidates={grpo: [grpo, grpo(clip_high=0.28)], clip_b: [clip_b(share=0.01), clip_b(share=0.05)]}"
GIVEN = ["methods=[grpo,clip_b]", "seeds=[0,1]", "tune.seeds=[5]", CANDIDATES]


def loaded(tmp_path: Path, *overrides: str, with_choice: bool = False) -> Config:
    given = [*GIVEN, f"results={tmp_path}", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db", *overrides]
    return configs.load_config("smoke", given, with_choice=with_choice)


def candidate(spec: str, avg: float, pass_at_k: float) -> Candidate:
    return Candidate(spec.partition("(")[0], spec, avg, pass_at_k)


# The rule


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ({"a(x=1)": (0.30, 0.5), "a(x=2)": (0.29, 0.6), "a(x=3)": (0.27, 0.9)}, "a(x=2)"),  # the third is too low
        ({"a(x=1)": (0.30, 0.5), "a(x=2)": (0.28, 0.6)}, "a(x=2)"),  # the slack itself is allowed
        ({"a(x=1)": (0.20, 0.9), "a(x=2)": (0.25, 0.1)}, "a(x=2)"),  # none is near: the highest Avg@K
        ({"a(x=1)": (0.30, 0.5), "a(x=2)": (0.40, 0.5)}, "a(x=1)"),  # the first of equal ones
    ],
)
def test_chosen_candidates(scores: dict[str, tuple[float, float]], chosen: str) -> None:
    candidates = [candidate(spec, *pair) for spec, pair in scores.items()]
    assert chosen_candidates(candidates, baseline_avg=0.30, slack=0.02 + 1e-12)["a"].spec == chosen


def test_chosen_candidates_by_brute_force() -> None:
    levels = (0.1, 0.2, 0.3)
    for pairs in itertools.product(itertools.product(levels, levels), repeat=3):
        candidates = [candidate(f"a(x={i})", *pair) for i, pair in enumerate(pairs)]
        near = [pair for pair in pairs if pair[0] >= 0.15]
        best = max(near, key=lambda pair: pair[1]) if near else max(pairs, key=lambda pair: pair[0])
        chosen = chosen_candidates(candidates, baseline_avg=0.2, slack=0.05)["a"]
        assert (chosen.avg_at_k, chosen.pass_at_k)[bool(near)] == best[bool(near)]
        assert chosen.avg_at_k >= 0.15 or not near


# Bad input


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("methods=[grpo,clip_b,ppo]", "tune.candidates has none of 'ppo'"),
        ("tune.candidates={grpo: [grpo], clip_b: []}", "tune.candidates has none of 'clip_b'"),
        ("tune.candidates={grpo: [grpo], clip_b: [clip_b], clip_bb: [clip_bb]}", "unknown method 'clip_bb'"),
        (
            "tune.candidates={grpo: [grpo], clip_b: [clip_b, clip_b(share=0.1)]}",
            "tune.candidates has 1 of grpo, 2 of clip_b; each method needs as many as the others",
        ),
        ("tune.candidates={grpo: [grpo], clip_b: [clip_v]}", "clip_b has 'clip_v'; allowed: clip_b with options, as"),
        ("tune.candidates={grpo: [grpo], clip_b: [ppo+clip_b]}", "has 'ppo+clip_b'; allowed: clip_b with options, as"),
        (
            "tune.candidates={grpo: [grpo], clip_b: [clip_b(lr=1e-4)]}",
            "clip_b.lr is 0.0001, but the learning rate is an option of the ob",
        ),
        ("tune.candidates={grpo: [grpo, grpo(lr=1)], clip_b: [clip_b, clip_b]}", "names 'clip_b' twice"),
        ("tune.candidates={grpo: [grpo], clip_b: [a, b, c, d, e, f, g]}", "has 7; allowed: up to 6"),
        ("tune.seeds=[1,5]", "tune.seeds and seeds both have 1"),
        ("tune.seeds=[]", "tune.seeds is []; allowed: one and more, each once"),
        ("tune.seeds=[5,5]", "tune.seeds is [5, 5]; allowed: one and more, each once"),
        ("eval.tasks=[aime24]", "validation"),
        ("axes={eval.split: [test]}", "axes names eval.split, but candidates are compared on validation problems"),
        ("axes={eval.every: [1, 2]}", "axes names eval.every, but"),
    ],
)
def test_check_candidates_refuses_unfair_searches(tmp_path: Path, override: str, sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        check_candidates(loaded(tmp_path, override))


def test_load_config_tuned_without_choice(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the choice .*choice\.yaml is missing; `entrobench tune` makes it"):
        loaded(tmp_path, "ruleset=tuned", with_choice=True)


def write_choice_by_hand(tmp_path: Path, methods: dict[str, str], *overrides: str) -> None:
    """Write a choice that fits the candidates of a configuration, with the table that it seems to follow from."""
    config = loaded(tmp_path, *overrides)
    record = {"methods": methods, **configs.tuning_rules(config)}
    path = configs.choice_path(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(record))
    rows = "".join(f"| {spec} | {method} | 0.5 | 0.5 | chosen |\n" for method, spec in methods.items())
    path.with_name("candidates.md").write_text(rows)


@pytest.mark.parametrize(
    ("chosen", "override", "sentence"),
    [
        ("clip_b(share=0.09)", "", "names 'clip_b(share=0.09)' for 'clip_b', which is none of its candidates"),
        ("clip_b(share=0.01)", "tune.seeds=[1,5]", "tune.seeds and seeds both have 1"),
    ],
)
def test_load_config_tuned_refuses_unfair_choices(tmp_path: Path, chosen: str, override: str, sentence: str) -> None:
    overrides = [override] if override else []
    write_choice_by_hand(tmp_path, {"grpo": "grpo", "clip_b": chosen}, *overrides)
    with pytest.raises(UserError, match=re.escape(sentence)):
        loaded(tmp_path, "ruleset=tuned", *overrides, with_choice=True)


def test_load_config_tuned_refuses_unmarked_choices(tmp_path: Path) -> None:
    write_choice_by_hand(tmp_path, {"grpo": "grpo", "clip_b": "clip_b(share=0.01)"})
    path = configs.choice_path(loaded(tmp_path))
    path.write_text(path.read_text().replace("clip_b: clip_b(share=0.01)", "clip_b: clip_b(share=0.05)"))
    edited = r"names 'clip_b\(share=0.05\)' for 'clip_b', but by .* the rule chose 'clip_b\(share=0.01\)'; `entrobench"
    with pytest.raises(UserError, match=edited):
        loaded(tmp_path, "ruleset=tuned", with_choice=True)
    path.with_name("candidates.md").unlink()
    with pytest.raises(UserError, match=r"candidates\.md is missing, by which a choice"):
        loaded(tmp_path, "ruleset=tuned", with_choice=True)


def test_load_config_tuned_with_some_methods(tmp_path: Path) -> None:
    write_choice_by_hand(tmp_path, {"grpo": "grpo(clip_high=0.28)", "clip_b": "clip_b(share=0.05)"})
    assert loaded(tmp_path, "ruleset=tuned", "methods=[grpo]", with_choice=True).methods == ["grpo(clip_high=0.28)"]


# The matrix of the candidates


def test_tuning_matrix_of_learning_rates(tmp_path: Path) -> None:
    candidates = "{grpo: [grpo, grpo(lr=3e-4)], clip_b: [clip_b, grpo(lr=3e-4)+clip_b(share=0.01)]}"
    matrix = tuning_matrix(loaded(tmp_path, f"tune.candidates={candidates}"))
    assert matrix.methods == ["grpo", "grpo(lr=3e-4)", "clip_b", "grpo(lr=3e-4)+clip_b(share=0.01)"]
    assert len({cell.id for cell in cells(matrix)}) == 4


@pytest.mark.slow
def test_run_tuning_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(matrix: Config, *_: object) -> int:
        end_cells(matrix, broken=("clip_b(share=0.05)",))
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "run_matrix", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_tuning(loaded(tmp_path))
    assert not (tmp_path / "smoke-tune" / "choice.yaml").exists()


def test_tuning_matrix_of_the_demo(tmp_path: Path) -> None:
    matrix = tuning_matrix(configs.load_config("demo-tuned", [f"results={tmp_path}", "tune.seeds=[102,103]"]))
    assert matrix.name == "demo-tuned-tune"
    assert matrix.eval.split == "validation"
    by_hand = configs.load_config(
        "demo-tuned",
        [
            *("name=demo-tuned-tune", "seeds=[102,103]", f"results={tmp_path}"),
            *("eval.split=validation", "eval.every=0"),
            f"methods={[f'{spec}' for spec in matrix.methods]}".replace("'", '"'),
        ],
    )
    assert [cell.id for cell in cells(matrix)] == [cell.id for cell in cells(by_hand)]
    keys = {training_key(cell.identity)[:12] for cell in cells(matrix)}
    # As they were run in the round of results/reference/demo-tune: grpo, and clip_b(share=0.02), each with seed 102.
    assert {"6ba8afee5bec", "f7d82a560182"} <= keys


def test_tuning_matrix_of_some_methods() -> None:
    config = configs.load_config("demo-tuned", ["methods=[grpo,clip_b]"])
    candidates = config.tune.candidates
    assert set(candidates) > {"grpo", "clip_b"}
    assert tuning_matrix(config).methods == list(dict.fromkeys(["grpo", *candidates["grpo"], *candidates["clip_b"]]))
    assert set(configs.tuning_rules(config)["candidates"]) == {"grpo", "clip_b"}


def test_demo_searches_the_same_grid_for_each_method() -> None:
    """Three learning rates times two strengths, with seeds of which no result was seen."""
    demo = configs.load_config("demo-tuned")
    matrix = tuning_matrix(demo)
    assert not {*demo.tune.seeds} & {*demo.seeds, 100, 101, 102, 103}
    assert demo.baseline in demo.tune.candidates[demo.baseline]
    assert len(cells(matrix)) == 7 * 6 * len(demo.tune.seeds)
    for method, specs in demo.tune.candidates.items():
        rates_by_strength: dict[str, list[float]] = {}
        for spec in specs:
            composed = Method.of(spec, baselines.table(), demo.method_options)
            strength = json.dumps(composed.identity(composed.objective.lr))
            rates_by_strength.setdefault(strength, []).append(composed.learning_rate(demo.train.lr))
        assert [sorted(rates) for rates in rates_by_strength.values()] == [[3.5e-4, 7e-4, 1.4e-3]] * 2, method


# The command


def end_cells(matrix: Config, broken: tuple[str, ...] = ()) -> int:
    """Stand in for `run`: leave made-up results, in which some candidates failed."""
    made = MadeUpMatrix(matrix, cells(matrix))
    for cell in made.cells:
        made.send(cell, state="failed" if cell.method in broken else "done")
    publish(matrix, made.cells)
    return 1 if broken else 0


@pytest.mark.slow
@pytest.mark.usefixtures("mlflow_uri")
def test_run_tuning_writes_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "run_matrix", lambda matrix, *_: end_cells(matrix))
    config = loaded(tmp_path)
    for _ in range(2):  # the same run replaces its own choice and table
        assert run_tuning(config) == 0
    choice = configs.choice_path(config)
    assert choice == tmp_path / "smoke-tune" / "choice.yaml"
    text = choice.with_name("candidates.md").read_text()
    assert text.count("| chosen |") == 2
    tuned = loaded(tmp_path, "ruleset=tuned", with_choice=True)
    assert [method.partition("(")[0] for method in tuned.methods] == ["grpo", "clip_b"]
    assert tuned.baseline == tuned.methods[0]
    assert all(spec in text for spec in tuned.methods)
    assert {cell.spec.settings["ruleset"] for cell in cells(tuned)} == {"tuned"}
    assert tuned.name == "smoke-tuned", "cells of two rulesets are never in one folder"
    with pytest.raises(UserError, match=r"was chosen by other tune\.slack"):
        loaded(tmp_path, "ruleset=tuned", "tune.slack=0.5", with_choice=True)


def test_run_tuning_replaces_only_choices(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: smoke\n")
    for name, sentence in (
        ("mine.yaml", "is not a choice of `entrobench tune`"),
        (".", "is not a file"),
        ("mine.yaml/choice.yaml", r"choice\.yaml cannot be written: .*mine\.yaml is not a folder"),
    ):
        with pytest.raises(UserError, match=sentence):
            run_tuning(loaded(tmp_path, f"tune.file={tmp_path / name}"))
    assert (tmp_path / "mine.yaml").read_text() == "base: smoke\n"


@pytest.mark.parametrize(
    "texts",
    [
        {"candidates.md": "my notes", "mine.yaml": "methods: {}"},
        {"candidates.md": "**Candidates of smoke-long, validation problems, seeds 5**", "mine.yaml": "methods: {}"},
        {"candidates.md": "**Candidates of smoke, validation problems, seeds 5**"},  # the table of a choice elsewhere
        {"mine.yaml": "methods: {}"},  # perhaps of another matrix
    ],
)
def test_run_tuning_replaces_only_its_own_choice(texts: dict[str, str], tmp_path: Path) -> None:
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(
        UserError, match=r"candidates\.md is (not the table of|missing, so) .*mine\.yaml.*; move it, or"
    ):
        tune.check_choice_place(loaded(tmp_path, f"tune.file={tmp_path / 'mine.yaml'}"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == texts


def test_tune_prints_the_command_that_runs_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "run_tuning", lambda *_: 0)
    methods, file = {"grpo": "grpo", "clip_b": "clip_b(share=0.05)"}, f"tune.file={tmp_path}/my choice.yaml"
    write_choice_by_hand(tmp_path, methods, file)
    said = run_command("tune", "smoke", *GIVEN, f"results={tmp_path}", file, "--plugin", "registered")
    _, command, _ = said.split("`")
    arguments = cli.parse_command(shlex.split(command)[1:])
    assert config_of_arguments(arguments).methods == list(methods.values())


@pytest.mark.slow
@pytest.mark.usefixtures("mlflow_uri")
def test_run_tuning_with_a_broken_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "run_matrix", lambda matrix, *_: end_cells(matrix, broken=("clip_b(share=0.05)",)))
    config = loaded(tmp_path)
    assert run_tuning(config) == 1
    text = (tmp_path / "smoke-tune" / "candidates.md").read_text()
    assert "| clip_b(share=0.05) | clip_b |  |  | not done |" in text
    assert "| chosen |" in next(line for line in text.splitlines() if "clip_b(share=0.01)" in line)


@pytest.mark.slow
@pytest.mark.usefixtures("mlflow_uri")
@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (("clip_b(share=0.05)", "clip_b(share=0.01)"), "no candidate of clip_b is done"),
        (("grpo",), "the baseline grpo is not done on the validation problems"),
    ],
)
def test_run_tuning_without_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.setattr(runs, "run_matrix", lambda matrix, *_: end_cells(matrix, broken=broken))
    with pytest.raises(UserError, match=sentence):
        run_tuning(loaded(tmp_path))
    assert not (tmp_path / "smoke-tune" / "choice.yaml").exists()
