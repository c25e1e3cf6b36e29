"""Load a configuration: files and their bases, overrides on top, and the settings of its axes; no torch."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast, get_origin

from omegaconf import DictConfig, OmegaConf

from harness.base import safe_yaml
from harness.base.errors import UserError, nearest, short, shown
from harness.base.registry import split
from harness.base.schema import keys_with_types, section, typed
from harness.config.checks import (
    check_adapters_fit,
    check_candidate_counts,
    check_misplaced_keys,
    check_names,
    check_number,
    validate,
)
from harness.config.sections import (
    ADAMW,
    ADAMW8BIT,
    GIVEN,
    MICRO_BATCH,
    MINI_BATCH,
    OWN,
    PUBLISHED,
    TRL,
    TUNED,
    Checkpoint,
    Config,
    Correction,
    Dynamics,
    Eval,
    Filter,
    Hardware,
    Lora,
    Mismatch,
    RolloutConfig,
    Slurm,
    Stop,
    Tracking,
    Train,
    Tune,
    Verify,
    value_at,
)

CONFIGS = Path(__file__).parents[2] / "configs"
STUDIES = CONFIGS.parent / "studies"  # a folder for each question, with its configurations
KEY = re.compile(r"[^\W\d][\w-]*(\.[^\W\d][\w-]*)*")  # the part of an override before the =
TUNE_SUFFIX = "-tune"  # of the matrix of the candidates
# Of the matrix of the chosen methods. It has a folder of its own, since a chosen method may be the published one: its
# cell would be shared, and belong to two rulesets.
TUNED_SUFFIX = "-tuned"
CHOICE = "choice.yaml"
CANDIDATES = "candidates.md"  # next to it: the table of the candidates, in which the chosen ones have a mark
CHOSEN = "chosen"
YAML = {"None": "null", "True": "true", "False": "false"}  # by the texts of values in Python
# Keys that are never axes: no cell's id has them, or (ruleset, tune) only by way of the methods.
NO_AXES = (
    *("name", "results", "baseline", "ruleset", "tune", "tracking", "launch", "hardware", "checkpoint"),
    *("mismatch", "verify", "dynamics", "eval.k"),
)


def shipped_configs() -> dict[str, Path]:
    """Return the configurations in configs/ by name, in the order of their names."""
    return {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}


def study_configs() -> dict[str, Path]:
    """Return the configurations of the studies by name, in the order of their names."""
    return {path.stem: path for path in sorted(STUDIES.glob("*/*.yaml"), key=lambda path: path.stem)}


def find(name: str) -> Path:
    """Return the path of a configuration: the path as it is, or the shipped file of that name."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    shipped = shipped_configs() | study_configs()
    if name not in shipped:
        raise UserError(
            f"no configuration is called {shown(name)}; {nearest(name, shipped)}, or the path of a YAML file"
        )
    return shipped[name]


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of one file, with its keys `base` and `rounds`."""
    text, where = safe_yaml.read_yaml_text(path), short(str(path))
    try:
        layer = OmegaConf.load(io.StringIO(text))
    except Exception as error:  # YAML's and OmegaConf's parsers share no base class
        raise UserError(f"{where} cannot be read as a configuration: {safe_yaml.reason(error)}") from error
    if not isinstance(layer, DictConfig):
        raise UserError(f"{where} is not a mapping of keys")
    settings = cast(dict[str, Any], OmegaConf.to_container(layer))
    if not settings:  # the defaults are the paper's
        raise UserError(f"{where} is empty; write at least the configuration that it begins from, such as base: smoke")
    rounds = settings.get("rounds", {})
    if not isinstance(rounds, dict) or not all(isinstance(changes, dict) for changes in rounds.values()):
        raise UserError(f"rounds of {where} is {shown(rounds)}; it must be a mapping of names to the keys that change")
    if renamed := [name for name in rounds if type(name) not in (str, int)]:  # 5 remains 5, but 1.10 does not
        raise UserError(f"{where} has a round {shown(renamed[0])}; write on, off, yes, no and 1.0 in quotes")
    settings["rounds"] = {str(name): changes for name, changes in rounds.items()}
    for name in settings["rounds"]:
        if f"-{name}" in (TUNE_SUFFIX, TUNED_SUFFIX):
            raise UserError(
                f"{where} has a round {shown(name)}, whose results `entrobench tune` uses; name it otherwise"
            )
    for layer in (settings, *rounds.values()):
        if not isinstance(base := layer.get("base"), str | None):
            raise UserError(f"base of {where} is {shown(base)}; it must be the name or the path of a configuration")
    return settings


def with_base(path: Path, above: tuple[Path, ...] = (), round_name: str | None = None) -> list[dict[str, Any]]:
    """Return the layers of a configuration: the file that its key `base` names, the file itself, and one round."""
    if path in above:
        raise UserError(f"{short(str(path))} is its own base, by way of {short(str(above[-1]))}; remove one of them")
    settings = read_settings(path)
    base, rounds = settings.pop("base", None), settings.pop("rounds")
    below = with_base(Path(os.path.normpath(path.parent / find(base))), (*above, path)) if base else []
    return [*below, settings, *round_layers(rounds, round_name, short(str(path)))]


def round_layers(rounds: Mapping[str, Any], name: str | None, where: str) -> list[dict[str, Any]]:
    """Return the layers of a round: the earlier round of the file that its key `base` names, and the round itself."""
    if name is None:
        return []
    if name not in rounds:
        raise UserError(f"{where} has no round {shown(name)}; {nearest(name, rounds) if rounds else 'it has none'}")
    earlier = dict(itertools.takewhile(lambda item: item[0] != name, rounds.items()))
    changes = dict(rounds[name])
    return [*round_layers(earlier, changes.pop("base", None), f"{where}, above {name},"), changes]


def load_config(name: str, overrides: Iterable[str] = (), *, with_choice: bool = True) -> Config:
    """Return the configuration in a file, with `key=value` overrides on top; `round=NAME` is a round of the file.

    `with_choice`: under the ruleset `tuned`, methods are replaced by the choice of `entrobench tune`.
    """
    path = find(name)
    round_name = None
    given: list[dict[str, Any]] = []
    for text in overrides:
        if not isinstance(text, str):
            raise UserError(f"{shown(text)} is not an override; write each as a text, for example 'train.steps=10'")
        if text.startswith("round="):  # a name as it is written: YAML would read 1.10 as a number, and on as true
            earlier, round_name = round_name, text.removeprefix("round=")
            if earlier is not None:
                raise UserError(f"round is given twice: {shown(earlier)} and {shown(round_name)}; write one")
        else:
            given.append(override(text))
    files = list(map(with_flat_axes, with_base(path, round_name=round_name)))
    given = list(map(with_flat_axes, given))
    config = config_of_layers([*files, *given])
    check_varied_keys(config, [*files, functools.reduce(merged, given, {})])
    config.name = config.name or path.stem
    if round_name is not None:
        config.name += f"-{round_name}"
    check_names(config)
    if config.ruleset == TUNED and with_choice:
        include_choice(config)
    check_number(config)  # before `variants`, which builds a configuration for each combination
    # Axes get the values that their cells have. In YAML's own, 1 for a number is not yet 1.0, nor `off` a name.
    settings = [variant.setting for variant in variants(config)]
    for key in config.axes:
        config.axes[key] = list(dict.fromkeys(setting[key] for setting in settings))  # in their order, each once
    validate(config)
    return config


def config_of_layers(layers: Iterable[dict[str, Any]]) -> Config:
    """Return the defaults under layers, the last of them on top, with names, types and bounds checked."""
    values: dict[str, Any] = functools.reduce(merged, layers, {})
    # Before `typed`, which knows the keys of one section only, and cannot say that a key belongs to another.
    check_misplaced_keys(values, Config)
    config: Config = typed(Config, values, "")
    return config


def check_varied_keys(config: Config, layers: Iterable[dict[str, Any]]) -> None:
    """Refuse a value of a key that its layer, or one below, varies."""
    varied: set[str] = set()
    for layer in layers:
        if isinstance(axes := layer.get("axes"), dict):
            varied |= axes.keys() & config.axes.keys()
        for key, value in flat(layer):
            if key in varied:
                raise UserError(
                    f"{key}={short(str(value))} changes nothing, since axes varies {key}; write "
                    f"'axes.{key}=[{short(str(value))}]'"
                )


def choice_path(config: Config) -> Path:
    """Return the file with the choice of `entrobench tune`."""
    if config.tune.file:
        path = Path(config.tune.file)
        shipped = CONFIGS.parent / path  # our own configurations name choices of our repository
        return shipped if shipped.is_file() and not path.exists() else path
    return Path(config.results) / f"{config.name}{TUNE_SUFFIX}" / CHOICE


def tuning_rules(config: Config) -> dict[str, Any]:
    """Return the candidates of the methods, and the rule, that a choice follows from, as its file has them."""
    candidates = {method: list(config.tune.candidates.get(method, [])) for method in config.methods}
    return {"candidates": candidates, "seeds": list(config.tune.seeds), "slack": config.tune.slack}


def read_choice(path: Path) -> dict[str, Any]:
    """Return a choice of `entrobench tune`, of which only the specs of the methods are checked."""
    record = safe_yaml.load_yaml(path)
    chosen = record.get("methods") if isinstance(record, dict) else None
    if not isinstance(chosen, dict) or not all(isinstance(spec, str) for spec in chosen.values()):
        raise UserError(f"{short(str(path))} is not a choice of `entrobench tune`: it must name methods")
    return record


def include_choice(config: Config) -> None:
    """Replace the methods of a configuration by the choice of `entrobench tune`, as a matrix of their own."""
    path = choice_path(config)
    if not path.is_file():
        raise UserError(
            f"ruleset is 'tuned', but the choice {short(str(path))} is missing; `entrobench tune` makes it, or "
            "tune.file names another"
        )
    record = read_choice(path)
    chosen = record["methods"]
    check_candidate_counts(config)
    for key, value in tuning_rules(config).items():
        recorded = record.get(key)
        if isinstance(recorded, dict):  # of all methods that were tuned; some of them may be run alone
            recorded = {name: recorded.get(name) for name in value}
        if recorded != value:
            raise UserError(f"{short(str(path))} was chosen by other tune.{key}; `entrobench tune` chooses again")
    marked = marked_candidates(path.with_name(CANDIDATES))
    for method in (*config.methods, config.baseline):
        if method not in chosen:
            raise UserError(f"{short(str(path))} has no choice for {shown(method)}; {nearest(method, chosen)}")
        candidates = config.tune.candidates.get(method, [])
        if chosen[method] not in candidates:
            raise UserError(
                f"{short(str(path))} names {shown(chosen[method])} for {shown(method)}, which is none of its "
                f"candidates; {nearest(chosen[method], candidates)}"
            )
        if marked.get(method) != chosen[method]:
            raise UserError(
                f"{short(str(path))} names {shown(chosen[method])} for {shown(method)}, but by the scores in "
                f"{CANDIDATES} next to it the rule chose {shown(marked.get(method, 'none'))}; `entrobench tune` writes "
                "both"
            )
    config.methods = [chosen[method] for method in config.methods]
    config.baseline = chosen[config.baseline]
    config.name += TUNED_SUFFIX
    check_names(config)  # again: the suffix may make the name too long


def marked_candidates(table: Path) -> dict[str, str]:
    """Return the candidates that a table marks as chosen, by method."""
    if not table.is_file():
        raise UserError(
            f"{short(str(table))} is missing, by which a choice of `entrobench tune` is checked; keep both files"
        )
    marked = {}
    for line in table.read_text("utf-8").splitlines():
        cells = [re.sub(r"\\(.)", r"\1", cell.strip()) for cell in line.strip("|").split(" | ")]
        if len(cells) > 2 and cells[-1] == CHOSEN:
            marked[cells[1]] = cells[0]
    return marked


def with_flat_axes(layer: dict[str, Any]) -> dict[str, Any]:
    """Return a layer whose axes have one spelling, train.lr, so that one of a layer above replaces it."""
    axes = layer.get("axes")
    return {**layer, "axes": dict(flat(axes))} if isinstance(axes, dict) else layer


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge one layer of a configuration over another: sections key by key, all other values as a whole.

    An empty section empties the one below, for example `method_options: {}`.
    """
    result = {**below, **above}
    for key, value in above.items():
        if value and isinstance(below.get(key), dict) and isinstance(value, dict):
            result[key] = merged(below[key], value)
    return result


def override(text: str) -> dict[str, Any]:
    """Parse `key=value` into a layer of a configuration."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UserError(f"{shown(text)} is not an override; write key=value, for example train.steps=10")
    if not KEY.fullmatch(key):
        raise UserError(f"{shown(key)} is not a key; write train.steps=10, and a list as a whole, such as seeds=[0,1]")
    safe_yaml.check_yaml_text(value, f"the override {shown(text)}")
    try:
        layer = OmegaConf.from_dotlist([text])
    except Exception as error:  # YAML's and OmegaConf's parsers share no base class
        raise UserError(f"the override {shown(text)} cannot be read: {safe_yaml.reason(error)}") from error
    if get_origin(dict(keys_with_types(Config)).get(key)) is list:
        parsed = OmegaConf.select(layer, key)
        if isinstance(parsed, str) and len(split(parsed, ",")) > 1:
            raise UserError(f"{key} is {shown(parsed)}; write several in brackets: '{key}=[{parsed}]'")
        if isinstance(parsed, str | int | float) and parsed != "":
            OmegaConf.update(layer, key, [parsed])  # seeds=0 is seeds=[0]
    return cast(dict[str, Any], OmegaConf.to_container(layer))


def setting_label(setting: Mapping[str, Any]) -> str:
    """Return the values of axes in one line, as YAML has them; they may be texts of MLflow."""
    parts = [f"{key}={YAML.get(str(value), value)}" for key, value in setting.items()]
    return ", ".join(parts)


def flat(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield values with their full keys: train.lr for {train: {lr: ...}} and for {train.lr: ...}."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{where}{name}.")
        else:
            yield f"{where}{name}", value


def without_k(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an evaluation that decide which answers it has; K only reads them."""
    kept = {key: value for key, value in evaluation.items() if key != "k"}
    if "by_task" in kept:  # which an earlier version may not have
        own_values = {task: own for task, own in kept["by_task"].items() if own.keys() != {"k"}}
        kept["by_task"] = {task: without_k(own) for task, own in own_values.items()}
    return kept


def variants(config: Config) -> list[Config]:
    """Return the configuration at each combination of its axes' values; without axes, itself."""
    combinations = [config]
    for key, values in config.axes.items():
        check_axis(config, key, values)
        where, _, name = key.rpartition(".")
        inner = value_at(config, where)
        checked = [getattr(typed(inner, {name: value}, f"{where}."), name) for value in values]
        combinations = [replaced(combination, key, value) for combination in combinations for value in checked]
    if config.axes:  # values that are allowed on their own may contradict each other in a combination
        for combination in combinations:
            validate(combination)
    return combinations


def replaced(settings: Any, key: str, value: Any) -> Any:
    """Return settings with another value under a key."""
    name, _, rest = key.partition(".")
    if rest:
        value = replaced(getattr(settings, name), rest, value)
    return dataclasses.replace(settings, **{name: value})


def check_axis(config: Config, key: str, values: Any) -> None:
    """Refuse an axis that is not a scalar of the configuration, or that does not vary."""
    if not isinstance(values, list) or not values:
        raise UserError(f"axes.{short(key)} is {shown(values)}; it must be a list of values, for example [1, 2]")
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"axes.{short(key)} names {shown(value)} twice")
    known = scalars()
    if key not in known:
        raise UserError(f"axes names {shown(key)}, which is not a value that results depend on; {nearest(key, known)}")
    where = key.rpartition(".")[0]
    if value_at(config, where) is None:
        raise UserError(f"axes varies {key}, but {where} is null; set it, for example {where}={{}}")


def scalars() -> list[str]:
    """Return the keys that may be axes: scalars on which results depend, also those of sections that are null."""
    keys = []
    for key, hint in keys_with_types(Config):
        is_scalar = section(hint) is None and get_origin(hint) not in (list, dict)
        if is_scalar and not {key, key.partition(".")[0]}.intersection(NO_AXES):
            keys.append(key)
    return keys
