"""The typed configuration: every default of the harness, in the only place; no torch.

The docstring under a field is its meaning in docs/configuration.md, which `make docs` writes.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor, prod
from pathlib import Path
from typing import Any, ClassVar, cast, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from harness.base import safe_yaml
from harness.base.addresses import may_be_written
from harness.base.errors import UserError, nearest, short, shown
from harness.base.schema import choice, number, numbers, section, typed

CONFIGS = Path(__file__).parent.parent / "configs"
MOST_CELLS = 5_000  # of a matrix
LONGEST_SPEC = 2_000  # characters of a method or a task with its options
NAME = re.compile(r"\w[\w .,+=@()-]{0,99}")  # of a matrix: of its folder, and of its experiment in MLflow
# What the results folder holds beside matrices: evaluations, and the store with its files, locks and journals.
KEPT = re.compile(r"eval|mlartifacts|mlflow\.db.*", re.IGNORECASE)
KEY = re.compile(r"[^\W\d][\w-]*(\.[^\W\d][\w-]*)*")  # of an override


@dataclass
class Filter:
    """Trains only on problems that the model solves sometimes, by its pass rate before any training."""

    n: int = number(16, least=1)
    """Responses sampled for each problem to measure its pass rate."""
    low: float = number(1 / 16, least=0, most=1)
    """Problems with this pass rate or a lower one are too hard and left out."""
    high: float = number(15 / 16, least=0, most=1)
    """Problems with this pass rate or a higher one are too easy and left out."""

    def bounds(self) -> tuple[int, int]:
        """The fewest and the most right responses of n that lie strictly between low and high.

        By the decimals that were written: 0.9 as a float is a little more than 9/10.
        """
        low, high = (Fraction(str(rate)) * self.n for rate in (self.low, self.high))
        return floor(low) + 1, ceil(high) - 1


@dataclass
class Resample:
    """Dynamic sampling (DAPO): sets groups of equal rewards aside and draws others until a step has enough."""

    multiplier: float = number(1.0, least=1)
    """Problems drawn at once, as a multiple of `train.prompts`."""
    max_batches: int = number(10, least=1)
    """Draws of one step, at most; then groups without signal fill it up."""

    def candidates(self, prompts: int) -> Fraction:
        """Returns how many problems are drawn at once; by the decimal that was written, as 1.1 as a float is more."""
        return prompts * Fraction(str(self.multiplier))

    def superset(self, prompts: int) -> int:
        """Returns how many problems a step may draw."""
        return int(self.candidates(prompts)) * self.max_batches


@dataclass
class Train:
    """The training loop and its optimizer, AdamW."""

    steps: int = number(300, least=1)
    """Training steps; each samples one rollout batch and trains on it."""
    prompts: int = number(64, least=1)
    """Prompts of one step; a multiple of `train.updates` times the ranks of a cell."""
    group: int = number(16, least=1)
    """Responses sampled for each prompt."""
    updates: int = number(2, least=1)
    """Optimizer steps in one pass over a rollout batch, each on a mini-batch of whole groups."""
    epochs: int = number(1, least=1)
    """Passes over a rollout batch."""
    lr: float = number(1e-6, above=0)
    """Learning rate of the policy; a critic has its own, the option `critic_lr` of its objective."""
    warmup_steps: int = number(0, least=0)
    """Steps over which the learning rate rises linearly to its value."""
    betas: list[float] = numbers([0.9, 0.999], length=2, least=0, below=1)
    """Decay rates of AdamW's two moments."""
    weight_decay: float = number(0.0, least=0)
    """Weight decay of AdamW."""
    grad_clip: float = number(1.0, above=0)
    """Largest norm of the gradient of one update; a larger gradient is scaled down to it."""
    filter: Filter | None = None
    """Difficulty filter of the problems; null: every problem is trained on."""
    resample: Resample | None = None
    """Dynamic sampling; null: a step trains on its first `train.prompts` groups, whatever they earn."""
    dtype: str = choice("auto", ("auto", "float32", "bfloat16"))
    """Type of the computation; master weights are float32. auto: bfloat16 on cuda, float32 on a CPU."""


@dataclass
class RolloutConfig:
    """Sampling of the responses that are trained on."""

    # Users often ask for these, and they would be wrong here: training uses the log-probabilities of the untruncated
    # softmax.
    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("top_p", "top_k", "min_p"),
        "training samples by temperature alone (allowed: rollout.temperature), since a truncated sampler is another "
        "policy than the one that is trained",
    )

    engine: str = choice("auto", ("auto", "embedded", "vllm"))
    """Engine that samples. auto: vLLM where it is installed and the model is large enough to gain, else embedded."""
    temperature: float = number(1.0, above=0)
    """Sampling temperature, also of the trainer's softmax."""
    max_new_tokens: int = number(7168, least=1)
    """Most tokens of a response, in training and in evaluation."""
    lag: int = number(0, least=0)
    """Training uses responses that the policy of this many steps before has sampled; less than `train.steps`."""
    max_prompt_tokens: int | None = number(None, least=1)
    """Problems with longer prompts are not trained on; null: no limit."""


@dataclass
class Correction:
    """Importance correction of the gradient for the mismatch of trainer and engine (docs/mismatch.md)."""

    kind: str = choice("off", ("off", "truncated", "masked"))
    """truncated: a ratio above `high` counts as `high`; masked: a ratio outside of `low` to `high` counts as 0."""
    level: str = choice("token", ("token", "sequence"))
    """Which ratio: that of each token, or that of the whole response."""
    low: float = number(0.0, least=0, most=1)
    """Lower bound of the ratio, with `kind=masked` only."""
    high: float = number(2.0, least=1)
    """Upper bound of the ratio."""


@dataclass
class Bounds:
    """Bounds on the size of the trainer's minus the engine's log-probability, over sampled tokens."""

    p99: float | None = number(None, least=0)
    """Bound on the 99th percentile; null: none."""
    max: float | None = number(None, least=0)
    """Bound on the largest value; null: none."""


@dataclass
class Mismatch:
    """Largest allowed mismatch of trainer and engine, by the type of the computation; a cell beyond it stops."""

    # In float32 p99 is about 1e-6; a thousand times that cannot be rounding.
    float32: Bounds = field(default_factory=lambda: Bounds(p99=0.01, max=0.1))
    # In bfloat16 a few tokens may be off by any amount, so a bound on the maximum would mean nothing.
    bfloat16: Bounds = field(default_factory=lambda: Bounds(p99=0.5))


@dataclass
class Eval:
    """Evaluation of a cell, before training and at the end."""

    tasks: list[str] = field(default_factory=list)
    """Evaluation tasks; empty: the task that is trained on."""
    split: str = "test"
    """Split of each task to evaluate on."""
    problems: int | None = number(None, least=1)
    """Number of problems, from the start of the split; null: all."""
    samples: int = number(32, least=1)
    """Responses to each problem, the n of Pass@k."""
    k: int = number(16, least=1)
    """The K of the headline Pass@K; at most `eval.samples`."""
    temperature: float = number(0.7, least=0)
    """Sampling temperature; 0: greedy."""
    every: int = number(0, least=0)
    """Steps between further evaluations; 0: only before training and at the end."""
    beyond_context: bool = False
    """Evaluate even if prompt and response exceed the model's max_position_embeddings; false: that is an error."""
    by_task: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Own values of `problems`, `samples`, `k` and `temperature` for single tasks: `{aime24: {samples: 64}}`."""

    def of(self, task: str) -> Eval:
        """The settings that hold for one evaluation task, by its name."""
        given, where = self.by_task.get(task, {}), f"eval.by_task.{task}."
        for key in given:
            if key not in BY_TASK:
                raise UserError(f"unknown key {short(f'{where}{key}')}; {nearest(str(key), BY_TASK)}")
        settings: Eval = dataclasses.replace(self, by_task={})
        return typed(settings, given, where) if given else settings


@dataclass
class Stop:
    """Early end of a cell, before `train.steps`."""

    entropy_below: float | None = number(None, above=0)
    """A cell ends after the first step with a lower `entropy/mean`, and that step is its result; null: never."""


@dataclass
class Verify:
    """The verifier, which judges answers."""

    limit_s: float = number(5.0, above=0)
    """Seconds for one answer; a longer judgment is a timeout and not a right answer."""
    workers: int = number(2, least=1)
    """Processes that judge answers other than integers."""
    max_failures: float = number(0.05, least=0, most=1)
    """Share of timeouts and errors in a step or an evaluation above which the cell stops."""


@dataclass
class Dynamics:
    """The instrument that predicts and measures changes of the entropy (docs/dynamics.md)."""

    every: int = number(10, least=0)
    """Steps between measured changes of the entropy; 0: the instrument is off."""


@dataclass
class Checkpoint:
    """Checkpoints, from which an interrupted cell continues."""

    every: int = number(20, least=1)
    """Steps between checkpoints."""
    save_model: bool = True
    """Keep the trained model in the cell's folder, in the format of Hugging Face."""


@dataclass
class Hardware:
    """Devices, processes and memory of one cell."""

    device: str = choice("auto", ("auto", "cpu", "cuda"))
    """Device of a cell. auto: cuda if there is one."""
    threads: int = number(1, least=1)
    """CPU threads of each process."""
    ranks: int = number(1, least=1)
    """Processes of a cell on one machine, each with its own device; the model's weights are divided among them."""
    nodes: int = number(1, least=1)
    """Machines of a cell, found by `--launcher ray` or `slurm`, or by torchrun."""
    share: float = number(1.0, above=0, most=1)
    """Share of a GPU that a cell of one rank takes; other cells take the rest."""
    micro_tokens: int = number(16384, least=1)
    """Tokens of one forward pass, padding included."""
    recompute: bool = False
    """Compute the activations of a layer again in the backward pass instead of keeping them."""
    offload: bool = False
    """Keep AdamW's moments and a copy of the weights in the machine's memory instead of the device's."""
    cache_gib: float | None = number(None, above=0)
    """Memory of vLLM's keys and values, in GiB; null: 1 on a CPU; on a GPU they and the weights take half of it."""
    timeout_minutes: float | None = number(None, above=0)
    """A cell that takes longer is stopped and counted as failed; null: no limit."""
    stall_minutes: float | None = number(60.0, above=0)
    """A cell without progress on any rank for this long, not even one response, fails; null: no limit."""

    @property
    def world(self) -> int:
        """Returns the number of ranks on all machines."""
        return self.nodes * self.ranks


@dataclass
class Slurm:
    """Options of `run --launcher slurm`; the machines are those of `hardware`."""

    partition: str | None = None
    """Partition; null: the cluster's default."""
    account: str | None = None
    """Account to charge; null: the cluster's default."""
    minutes: int = number(240, least=1)
    """Time limit of one job of a cell; a cell that needs longer is queued again and continues from a checkpoint."""
    notice_minutes: int = number(5, least=1)
    """Notice before the end of that time; a step and a checkpoint must fit into it."""
    setup: list[str] = field(default_factory=list)
    """Lines of bash to run before Python starts."""
    container: str | None = None
    """Command in front of Python, which is then the container's own: `apptainer exec --nv image.sif`."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further options of sbatch, such as `{qos: high}`."""


@dataclass
class Launch:
    """Options of the launchers."""

    slurm: Slurm = field(default_factory=Slurm)


@dataclass
class Tracking:
    """The MLflow store."""

    uri: str | None = None
    """Address of the store; null: the variable MLFLOW_TRACKING_URI, or else SQLite in the results folder."""
    patience_minutes: float = number(10.0, above=0)
    """Longest wait for MLflow at the end of a run; `entrobench sync` does the rest later."""


PUBLISHED, TUNED = "published", "tuned"  # rulesets
MOST_CANDIDATES = 6  # of a method


@dataclass
class Tune:
    """The candidates of each method, among which `entrobench tune` chooses by one rule (docs/fair.md)."""

    candidates: dict[str, list[str]] = field(default_factory=dict)
    """Candidates of each method, as specs: `{clip_b: [clip_b(share=0.01), clip_b(share=0.02)]}`; at most six."""
    seeds: list[int] = numbers([100, 101], least=0)
    """Seeds of the candidates; none of them may be among `seeds`."""
    slack: float = number(0.02, least=0, most=1)
    """The choice has the highest Pass@K of the candidates whose Avg@K is at most this much below the baseline's."""
    file: str = ""
    """File of the choice; empty: where `entrobench tune` writes it, `results/NAME-tune/choice.yaml`."""


@dataclass
class Config:
    """The matrix, and where its results go."""

    name: str = ""
    """Name of the matrix: its folder and its experiment in MLflow; empty: the name of the file."""
    methods: list[str] = field(default_factory=lambda: ["grpo"])
    """Methods, as specs: an objective and controls joined by `+`, such as `ppo+clip_b(share=0.02)`."""
    method_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of an objective or a control wherever a spec names it: `{clip_b: {share: 0.02}}`."""
    tasks: list[str] = field(default_factory=lambda: ["countdown"])
    """Tasks to train on."""
    models: list[str] = field(default_factory=lambda: ["countdown-tiny"])
    """Base models: names of `entrobench list models`, folders, or names on the Hugging Face Hub."""
    seeds: list[int] = numbers([0], least=0)
    """Seeds; all methods share initial weights, prompts and sampling seeds within one seed."""
    axes: dict[str, Any] = field(default_factory=dict)
    """Further axes of the matrix: lists of values of any scalar key below, such as `{train.lr: [1e-6, 3e-6]}`."""
    baseline: str = "grpo"
    """Method that the others are compared with."""
    ruleset: str = choice(PUBLISHED, (PUBLISHED, TUNED))
    """tuned: `method_options` are completed by the choice of `entrobench tune`; tables never mix the two."""
    tune: Tune = field(default_factory=Tune)
    train: Train = field(default_factory=Train)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    correction: Correction = field(default_factory=Correction)
    mismatch: Mismatch = field(default_factory=Mismatch)
    eval: Eval = field(default_factory=Eval)
    stop: Stop = field(default_factory=Stop)
    verify: Verify = field(default_factory=Verify)
    dynamics: Dynamics = field(default_factory=Dynamics)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    hardware: Hardware = field(default_factory=Hardware)
    launch: Launch = field(default_factory=Launch)
    tracking: Tracking = field(default_factory=Tracking)
    plugins: list[str] = field(default_factory=list)
    """Python modules that offer further methods and tasks."""
    results: str = "results"
    """Folder of all results."""

    @property
    def setting(self) -> dict[str, Any]:
        """Returns the value at each axis here."""
        return {key: value_at(self, key) for key in self.axes}

    @property
    def folder(self) -> Path:
        return Path(self.results) / self.name

    @property
    def tracking_uri(self) -> str:
        return (
            self.tracking.uri
            or os.environ.get("MLFLOW_TRACKING_URI")
            or f"sqlite:///{Path(self.results) / 'mlflow.db'}"
        )


BY_TASK = ("problems", "samples", "k", "temperature")  # what an evaluation task may have of its own


def find(name: str, folder: Path = CONFIGS) -> Path:
    """Return the path of a configuration: the path as it is, or the file of that name in configs/."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    shipped = {p.stem: p for p in folder.glob("*.yaml")}
    if name not in shipped:
        raise UserError(
            f"no configuration is called {shown(name)}; {nearest(name, shipped)}, or the path of a YAML file"
        )
    return shipped[name]


def with_base(path: Path, above: tuple[Path, ...] = ()) -> list[dict[str, Any]]:
    """Return the layers of a configuration: the file that its key `base` names, and the file itself."""
    if path in above:
        raise UserError(f"{short(str(path))} is its own base, by way of {short(str(above[-1]))}; remove one of them")
    text, where = safe_yaml.read(path), short(str(path))
    try:
        layer = OmegaConf.load(io.StringIO(text))
    except Exception as error:  # YAML's and OmegaConf's parsers share no base class
        raise UserError(f"{where} cannot be read as a configuration: {safe_yaml.reason(error)}") from error
    if not isinstance(layer, DictConfig):
        raise UserError(f"{where} is not a mapping of keys")
    given = cast(dict[str, Any], OmegaConf.to_container(layer))
    base = given.pop("base", None)
    if not isinstance(base, str | None):
        raise UserError(f"base of {where} is {shown(base)}; it must be the name or the path of a configuration")
    return [*(with_base(find(base), (*above, path)) if base else []), given]


def load(name: str, overrides: Iterable[str] = (), *, with_choice: bool = True) -> Config:
    """Return the configuration in a file, with `key=value` overrides on top.

    `with_choice`: under the ruleset `tuned`, methods are replaced by the choice of `entrobench tune`.
    """
    path = find(name)
    given = functools.reduce(merged, [*with_base(path), *map(override, overrides)])
    check_names_of_elsewhere(given, Config)
    hardware = given.get("hardware")
    if isinstance(hardware, Mapping) and hardware.get("device") == "gpu":  # the usual word for it
        given = merged(given, {"hardware": {"device": "cuda"}})
    config: Config = typed(Config(), safe_yaml.filled(given, given), "")
    config.name = config.name or path.stem
    config.axes = dict(flat(config.axes))
    check_names(config)
    if config.ruleset == TUNED and with_choice:
        include_choice(config)
    check_number(config)
    settings = variants(config)
    config.axes = {key: list(dict.fromkeys(each.setting[key] for each in settings)) for key in config.axes}
    validate(config)
    return config


TUNE_SUFFIX = "-tune"  # of the matrix of the candidates
CHOICE = "choice.yaml"


def choice_path(config: Config) -> Path:
    """Return the file with the choice of `entrobench tune`."""
    own = Path(config.results) / f"{config.name}{TUNE_SUFFIX}" / CHOICE
    return Path(config.tune.file) if config.tune.file else own


def tuning_rules(config: Config) -> dict[str, Any]:
    """Return the candidates and the rule that a choice follows from, as its file has them."""
    return {
        "candidates": {method: list(specs) for method, specs in config.tune.candidates.items()},
        "seeds": list(config.tune.seeds),
        "slack": config.tune.slack,
    }


def include_choice(config: Config) -> None:
    """Replace the methods of a configuration by the choice of `entrobench tune`."""
    path = choice_path(config)
    if not path.is_file():
        raise UserError(
            f"ruleset is 'tuned', but the choice {short(str(path))} is missing; `entrobench tune` makes it, or "
            "tune.file names another"
        )
    record = safe_yaml.load(path)
    chosen = record.get("methods") if isinstance(record, dict) else None
    if not isinstance(chosen, dict) or not all(isinstance(spec, str) for spec in chosen.values()):
        raise UserError(f"{short(str(path))} is not a choice of `entrobench tune`: it must name methods")
    for key, value in tuning_rules(config).items():
        if record.get(key) != value:
            raise UserError(f"{short(str(path))} was chosen by other tune.{key}; `entrobench tune` chooses again")
    for method in (*config.methods, config.baseline):
        if method not in chosen:
            raise UserError(f"{short(str(path))} has no choice for {shown(method)}; {nearest(method, chosen)}")
    config.methods = [chosen[method] for method in config.methods]
    config.baseline = chosen[config.baseline]


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge one layer of a configuration over another: sections key by key, all other values as a whole."""
    sections = [key for key in above if isinstance(below.get(key), dict) and isinstance(above[key], dict)]
    return {**below, **above, **{key: merged(below[key], above[key]) for key in sections}}


def override(given: str) -> dict[str, Any]:
    """Return the setting that `key=value` names, in its sections."""
    key, equals, value = given.partition("=")
    if not (key and equals):
        raise UserError(f"{shown(given)} is not an override; write key=value, for example train.steps=10")
    if not KEY.fullmatch(key):
        raise UserError(f"{shown(key)} is not a key; write train.steps=10, and a list as a whole, such as seeds=[0,1]")
    safe_yaml.check(value, f"the override {shown(given)}")
    try:
        found = OmegaConf.from_dotlist([given])
    except Exception as error:  # YAML's and OmegaConf's parsers share no base class
        raise UserError(f"the override {shown(given)} cannot be read: {safe_yaml.reason(error)}") from error
    if is_list(key) and isinstance(value := OmegaConf.select(found, key), str | int | float) and value != "":
        OmegaConf.update(found, key, [value])  # seeds=0 is seeds=[0]
    return cast(dict[str, Any], OmegaConf.to_container(found))


# What other libraries call a setting, with the last part of its key here.
SYNONYMS = {
    "learning_rate": "lr",
    "max_steps": "steps",
    "num_steps": "steps",
    "batch_size": "prompts",
    "group_size": "group",
    "num_generations": "group",
    "num_epochs": "epochs",
    "max_grad_norm": "grad_clip",
    "max_tokens": "max_new_tokens",
    "max_completion_length": "max_new_tokens",
    "seed": "seeds",
    "method": "methods",
    "task": "tasks",
    "model": "models",
    "gpus": "ranks",
}


def check_names_of_elsewhere(given: Mapping[str, Any], schema: Any, where: str = "") -> None:
    """Refuse an unknown key whose name is that of a setting in another section or in another library."""
    sections = section_types(schema)
    for name, value in given.items():
        if name in sections:
            inner = sections[name]
            if inner is not None and isinstance(value, Mapping):
                check_names_of_elsewhere(value, inner, f"{where}{name}.")
            continue
        wanted = SYNONYMS.get(name, name)
        keys = [key for key in all_keys(Config) if key.rpartition(".")[2] == wanted]
        if f"{where}{wanted}" in keys:  # the key of this section, not those of others with its name
            keys = [f"{where}{wanted}"]
        if keys and name not in getattr(schema, "refused", ()):
            raise UserError(f"unknown key {short(f'{where}{name}')}; did you mean {' or '.join(map(repr, keys))}?")


def section_types(schema: Any) -> dict[str, Any]:
    """Return the fields of a section with the dataclass of each; None for a field that is no section."""
    hints = get_type_hints(schema)
    return {each.name: section(hints[each.name]) for each in dataclasses.fields(schema)}


def all_keys(schema: Any, where: str = "") -> list[str]:
    """Return the keys of all values in a section and in the sections in it."""
    keys = []
    for name, inner in section_types(schema).items():
        keys += [f"{where}{name}"] if inner is None else all_keys(inner, f"{where}{name}.")
    return keys


def is_list(key: str) -> bool:
    """Return whether the value of a key such as eval.tasks is a list."""
    hint: Any = Config
    for name in key.split("."):
        hint = get_type_hints(schema).get(name) if (schema := section(hint)) else None
    return get_origin(hint) is list


def check_names(config: Config) -> None:
    """Refuse names that leave the results folder or break an address of MLflow, and passwords in a file."""
    if not NAME.fullmatch(config.name):
        raise UserError(
            f"name is {shown(config.name)}; allowed: up to 100 letters, digits, blanks and _ . , + = @ ( ) -, "
            "the first of them a letter, a digit or _"
        )
    store_file = Path(config.tracking_uri.removeprefix("sqlite:///").partition("?")[0])
    in_results = store_file.absolute().parent == Path(config.results).absolute()
    if KEPT.fullmatch(config.name) or (in_results and config.name.startswith(store_file.name)):
        raise UserError(
            f"name is {shown(config.name)}, which the results folder needs for itself; allowed: every name but eval, "
            f"mlartifacts, and those that begin with mlflow.db or {shown(store_file.name)}"
        )
    if found := re.search(r"[?#%]", config.results):
        raise UserError(f"results is {shown(config.results)}; an address of MLflow is made of it, without {found[0]}")
    if config.tracking.uri and not may_be_written(config.tracking.uri):
        raise UserError(
            "tracking.uri may hold a user, a password or a token, and configurations are written down (allowed: "
            "scheme, host, port, path); for a server set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, for a "
            "database the whole address as MLFLOW_TRACKING_URI"
        )


def check_number(config: Config) -> None:
    """Refuse a matrix, or a specification in it, that is too large to be meant."""
    axes = (config.methods, config.tasks, config.models, config.seeds, *config.axes.values())
    number = prod(len(values) for values in axes if isinstance(values, list))
    if number > MOST_CELLS:
        raise UserError(f"the matrix has {number} cells; allowed: {MOST_CELLS}, so divide it into several")
    for spec in (*config.methods, *config.tasks, *config.eval.tasks, config.baseline):
        if len(spec) > LONGEST_SPEC:
            raise UserError(f"{shown(spec)} has {len(spec)} characters; allowed: {LONGEST_SPEC}")


def validate(config: Config) -> None:
    """Refuse values that are allowed one by one, but not together."""
    train, evaluation = config.train, config.eval
    for axis in ("methods", "tasks", "models", "seeds"):
        values = getattr(config, axis)
        if not values:
            raise UserError(f"{axis} is empty; a matrix needs at least one")
        if len(set(values)) < len(values):
            repeated = next(value for value in values if values.count(value) > 1)
            raise UserError(f"{axis} names {shown(repeated)} twice")
    if train.prompts % train.updates:
        raise UserError(f"train.updates is {train.updates}; it must divide train.prompts ({train.prompts})")
    hardware = config.hardware
    if train.prompts % (train.updates * hardware.world):
        ranks = " x ".join(f"hardware.{name}" for name in ("nodes", "ranks")[hardware.nodes == 1 :])
        raise UserError(
            f"{ranks} is {hardware.world}; train.prompts ({train.prompts}) must be a multiple of "
            f"train.updates x {ranks} ({train.updates} x {hardware.world})"
        )
    if hardware.share < 1 and hardware.world > 1:
        raise UserError(
            f"hardware.share is {hardware.share:g}, but a cell of {hardware.world} ranks has whole GPUs; allowed: 1"
        )
    if train.filter is not None:
        validate_filter(train.filter)
    if train.resample is not None:
        validate_resample(train.resample, config)
    if config.rollout.lag >= train.steps:
        raise UserError(
            f"rollout.lag is {config.rollout.lag}, but train.steps is {train.steps}, and no step comes "
            f"{config.rollout.lag} after the first; allowed: 0 to {train.steps - 1}"
        )
    if config.correction.low and config.correction.kind != "masked":
        raise UserError(
            f"correction.low is {config.correction.low}, but kind={config.correction.kind} has no lower bound; "
            "allowed: 0"
        )
    validate_evaluation(evaluation, "eval.")
    for task in evaluation.by_task:
        validate_evaluation(evaluation.of(task), f"eval.by_task.{task}.")


def told(setting: Mapping[str, Any]) -> str:
    """Return the values of axes as people read them."""
    return ", ".join(f"{key}={value}" for key, value in setting.items())


def flat(given: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield values with their full keys: train.lr for {train: {lr: ...}} and for {train.lr: ...}."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{where}{name}.")
        else:
            yield f"{where}{name}", value


def variants(config: Config) -> list[Config]:
    """Return the configuration at each combination of its axes' values; without axes, itself."""
    found = [config]
    for key, values in config.axes.items():
        check_axis(config, key, values)
        where, _, name = key.rpartition(".")
        inner = value_at(config, where)
        allowed = [getattr(typed(inner, {name: value}, f"{where}."), name) for value in values]
        found = [replaced(each, key, value) for each in found for value in allowed]
    if config.axes:
        for each in found:
            validate(each)
    return found


def value_at(settings: Any, key: str) -> Any:
    """Return the value under a key such as train.lr."""
    return functools.reduce(getattr, key.split("."), settings)


def replaced(settings: Any, key: str, value: Any) -> Any:
    """Return settings with another value under a key."""
    name, _, rest = key.partition(".")
    return dataclasses.replace(settings, **{name: replaced(getattr(settings, name), rest, value) if rest else value})


def check_axis(config: Config, key: str, values: Any) -> None:
    """Refuse an axis that is not a scalar of the configuration, or that does not vary."""
    if not isinstance(values, list) or not values:
        raise UserError(f"axes.{short(key)} is {shown(values)}; it must be a list of values, for example [1, 2]")
    repeated = [value for value in values if values.count(value) > 1]
    if repeated:
        raise UserError(f"axes.{short(key)} names {shown(repeated[0])} twice")
    known = scalars(config)
    if key not in known:
        raise UserError(f"axes names {shown(key)}, which is not a value that results depend on; {nearest(key, known)}")


NO_AXES = (
    *("name", "results", "baseline", "ruleset", "tune"),
    *("tracking", "launch", "hardware", "checkpoint"),
)


def scalars(settings: Any, where: str = "") -> list[str]:
    """Return the keys that may be axes: scalars on which results depend."""
    found = []
    for each in dataclasses.fields(settings):
        value, key = getattr(settings, each.name), f"{where}{each.name}"
        if key in NO_AXES:
            continue
        if dataclasses.is_dataclass(value):
            found += scalars(value, f"{key}.")
        elif not isinstance(value, list | dict) and section(get_type_hints(type(settings))[each.name]) is None:
            found.append(key)
    return found


def validate_filter(given: Filter) -> None:
    if given.low >= given.high:
        raise UserError(
            f"train.filter keeps pass rates between low ({given.low}) and high ({given.high}); allowed: low < high"
        )
    fewest, most = given.bounds()
    if fewest > most:
        raise UserError(
            f"train.filter.n is {given.n}, and no share of {given.n} lies strictly between low ({given.low}) and high "
            f"({given.high}); allowed: more responses, or a wider range"
        )


def validate_resample(given: Resample, config: Config) -> None:
    train, ranks = config.train, config.hardware.world
    if train.group == 1:
        raise UserError("train.group is 1, so no response can earn more than another; train.resample needs 2 and more")
    if given.candidates(train.prompts) % ranks:
        raise UserError(
            f"train.resample.multiplier is {given.multiplier:g}; train.prompts x multiplier "
            f"({float(given.candidates(train.prompts)):g}) must be a whole number"
            + (f" and a multiple of hardware.ranks ({ranks})" if ranks > 1 else "")
        )


def validate_evaluation(settings: Eval, where: str) -> None:
    if settings.k > settings.samples:
        raise UserError(f"{where}k is {settings.k}, more than {where}samples ({settings.samples}); allowed: up to that")
