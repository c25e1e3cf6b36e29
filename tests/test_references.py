"""The reference pages equal what the code generates, and the table of metrics equals what real steps log."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
from places import REPOSITORY
from trainers import trained

import baselines
from docs import generate
from harness import cli, config
from harness.base.task import Verdict
from harness.methods.composition import overrides
from harness.methods.verbs import Composition, Control
from harness.tokens import dynamics, logged
from harness.tokens.logged import LoggedMetric

METRICS = [metric for section in logged.SECTIONS for metric in section.metrics]


def test_outdated_pages() -> None:
    outdated = [str(path.relative_to(REPOSITORY)) for path in generate.outdated_pages()]
    assert not outdated, f"run `{generate.COMMAND}`, and look at the difference"


@pytest.mark.parametrize("text", ["", "<!-- end -->", generate.BEGIN])
def test_with_part_refuses_a_page_without_marks(text: str) -> None:
    with pytest.raises(ValueError, match=r"docs/methods\.md lacks the line"):
        generate.with_part("methods.md", text, "part")


# Commands


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_examples_of_commands(name: str) -> None:
    examples = importlib.import_module(f"harness.commands.{name}").EXAMPLES
    used: set[str] = set()
    for example in examples:
        program, command, *words = shlex.split(example)
        assert (program, command) == ("entrobench", name)
        arguments = cli.parse_command([command, *words])
        if "demo" in words:
            assert vars(arguments).get("seed") in (None, *config.load_config("demo").seeds)
        used.update(word for word in words if word.startswith("--"))
    assert options(generate.subparsers(cli.parser())[name]) == used


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a command and of the commands inside it."""
    names = {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}
    return names.union(*map(options, generate.subparsers(parser).values()))


# Methods


@pytest.mark.parametrize("name", baselines.METHODS)
def test_docstrings_of_methods_in_order(name: str) -> None:
    entry = baselines.METHODS[name]
    clause, *paragraphs = generate.text_of(entry)
    assert "\n" not in clause
    labels = [label[1] for paragraph in paragraphs if (label := generate.LABEL.match(paragraph))]
    assert labels == [label for label in ("Defaults", "Differs", "Logs") if label in labels]
    assert len(paragraphs) == len(labels) or not generate.LABEL.match(paragraphs[0])
    assert not any(generate.LABEL.match(paragraph) for paragraph in paragraphs[: -len(labels) or None])
    logs = not isinstance(entry, Composition) and logs_numbers(entry())
    assert ("Logs" in labels) == logs, "what `metrics` and `remembered` return is part of the docstring"


def logs_numbers(component: object) -> bool:
    assert isinstance(component, generate.Component)
    return overrides(component, "metrics") or (isinstance(component, Control) and overrides(component, "remembered"))


# Metrics

# Methods, with what they need to log all of their numbers, and settings that log more.
EVERY_NUMBER = "clip_servo+clip_predict(target=1)+siren+stare+entropic+repo_r(target=1)+adaptive_entropy"
RUNS = {
    EVERY_NUMBER: ["dynamics.every=1"],
    "ppo+clip_b+erc": ["rollout.lag=1", "train.resample.multiplier=1.5"],
}
STEPS = ["train.steps=2", "checkpoint.every=2"]
# Of the conditions in the table, those under which the runs above log nothing.
NOT_MET = (
    "components with `update_metrics`",
    "methods with `base_term`",
    "with `rollout.max_prompt_tokens`",
    "with `train.filter`",
    logged.MLFLOW,
)
NAMES: dict[str, Iterable[str]] = {
    "component": baselines.METHODS,
    "control": baselines.METHODS,
    "task": ["countdown"],
    "verdict": list(Verdict),
    "level": ["token", "sequence"],
    "sign": ["positive", "negative"],
    "quadrant": ["positive_above", "positive_below", "negative_above", "negative_below"],
    "statistic": ["mean", "std", *dynamics.QUANTILES],
}
PATTERNS = {"number": r"\w+", "k": r"\d+", "n": r"\d+"}


def pattern_of(metric: LoggedMetric) -> re.Pattern[str]:
    """Return the keys that an entry of the table covers."""
    parts = re.split(r"\{(\w+)\}", metric.key)
    for place in range(1, len(parts), 2):
        name = parts[place]
        parts[place] = f"({'|'.join(NAMES[name]) if name in NAMES else PATTERNS[name]})"
    parts[::2] = map(re.escape, parts[::2])
    return re.compile("".join(parts))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The keys that each run has logged, by its method."""
    by_method = {}
    for spec, overridden in RUNS.items():
        trainer = trained(tmp_path_factory.mktemp("cell"), spec, *STEPS, *overridden)
        by_method[spec] = {key for line in trainer.log.read() for key in line["metrics"]}
    return by_method


@pytest.mark.slow
def test_table_of_metrics_is_logged(keys: dict[str, set[str]]) -> None:
    logged_keys = set.union(*keys.values())
    patterns = {metric: pattern_of(metric) for metric in METRICS}
    unknown = [key for key in logged_keys if not any(pattern.fullmatch(key) for pattern in patterns.values())]
    assert not unknown, "add them to harness/tokens/logged.py"
    unseen = [metric for metric, pattern in patterns.items() if not any(map(pattern.fullmatch, logged_keys))]
    unexplained = [metric.key for metric in unseen if not metric.condition.endswith(NOT_MET)]
    assert not unexplained, "no longer logged, or under a condition that the table does not name"


@pytest.mark.slow
def test_metrics_of_every_step(keys: dict[str, set[str]]) -> None:
    for metric in METRICS:
        if not metric.condition:
            for logged_keys in keys.values():
                assert metric.key.format(level="token", sign="positive") in logged_keys


@pytest.mark.slow
@pytest.mark.parametrize("name", [part.partition("(")[0] for part in EVERY_NUMBER.split("+")])
def test_docstrings_of_methods_name_metrics(name: str, keys: dict[str, set[str]]) -> None:
    (paragraph,) = (text for text in generate.text_of(baselines.METHODS[name]) if text.startswith("Logs: "))
    named = set(re.findall(rf"`((?:state/)?{name}/\w+)`", paragraph))
    assert named == {key for key in keys[EVERY_NUMBER] if re.match(rf"(state/)?{name}/", key)}


def test_placeholders_are_explained() -> None:
    used = {name for metric in METRICS for name in re.findall(r"\{(\w+)\}", metric.key)}
    assert used == logged.PLACEHOLDERS.keys() == NAMES.keys() | PATTERNS.keys()


def test_keys_are_listed_once() -> None:
    names = [metric.key for metric in METRICS]
    assert len(set(names)) == len(names)


def test_pages_are_replaced_where_they_are_outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "methods").mkdir()
    for page, title in (("methods.md", "Methods"), ("diagnose.md", "Diagnose"), ("packs.md", "Packs")):
        (tmp_path / page).write_text(f"# {title}\n{generate.BEGIN}\n{generate.END}\nThe rest.\n")
    (tmp_path / "methods" / "gone.md").write_text("of a kind that is no longer there")
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    generate.main()
    assert (tmp_path / "methods.md").read_text().endswith("\nThe rest.\n")
    assert generate.outdated_pages() == [tmp_path / "methods" / "gone.md"]
    (tmp_path / "methods" / "gone.md").unlink()
    (tmp_path / "metrics.md").write_text("edited")
    assert generate.outdated_pages() == [tmp_path / "metrics.md"]
