"""The sections of a configuration as dataclasses: every default of the harness, in the only place; no torch.

The docstring under a field is its meaning in docs/configuration.md, which `make docs` writes.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from pathlib import Path
from typing import Any, ClassVar

from harness.base.errors import UserError, nearest, short
from harness.base.schema import TEMPERATURES, choice, fraction, number, numbers, typed
from harness.base.shape import LINEAR
from harness.base.units import exact, plural

BY_TASK = ("problems", "samples", "k", "temperature")  # the settings that eval.by_task may set for a single task
PUBLISHED, TUNED = "published", "tuned"  # rulesets
OWN, TRL = "own", "trl"  # trainers of a cell
ADAMW, ADAMW8BIT = "adamw", "adamw8bit"  # optimizers
SHUFFLED, GIVEN = "shuffled", "given"  # orders of the problems
MINI_BATCH, MICRO_BATCH = "mini-batch", "micro-batch"  # the tokens over which the loss is a mean
MOST_CANDIDATES = 6  # of a method
LOOK_PROBLEMS, LOOK_SAMPLES = 24, 8  # of a look at a model: problems, and responses to each


def plain_settings(section: Any, *later: str) -> dict[str, Any]:
    """Return the settings of a section, but those of later versions only where they are set.

    Identities, protocols and parameters from before there was a choice stay as they are.
    """
    settings = dataclasses.asdict(section)
    unset = {name for name in later if settings[name] == getattr(type(section), name)}
    return {name: value for name, value in settings.items() if name not in unset}


@dataclass
class Filter:
    """Difficulty filter: keeps problems that the model solves sometimes, by its pass rate before any training."""

    n: int = number(16, least=1)
    """Responses sampled for each problem to measure its pass rate."""
    low: float = number(1 / 16, least=0, most=1)
    """Problems with this pass rate or a lower one are too hard and left out."""
    high: float = number(15 / 16, least=0, most=1)
    """Problems with this pass rate or a higher one are too easy and left out."""

    def bounds(self) -> tuple[int, int]:
        """Return the fewest and the most right responses of n whose share lies strictly between low and high."""
        return floor(exact(self.low) * self.n) + 1, ceil(exact(self.high) * self.n) - 1


@dataclass
class Resample:
    """Dynamic sampling (DAPO): groups of equal rewards are set aside, and others drawn until a step has enough."""

    multiplier: float = number(1.0, least=1, most=1000)
    """Problems drawn at once, as a multiple of `train.prompts`."""
    max_batches: int = number(10, least=1)
    """Draws of one step, at most; then groups without signal fill it up."""

    def candidates(self, prompts: int) -> Fraction:
        """Return the number of problems drawn at once; not whole if the multiplier does not fit."""
        return prompts * exact(self.multiplier)

    def superset(self, prompts: int) -> int:
        """Return the largest number of problems that a step may draw."""
        return int(self.candidates(prompts)) * self.max_batches


@dataclass
class Lora:
    """LoRA: the model is frozen, and adapters of its linear layers are trained, each of which adds alpha/rank B A x."""

    rank: int = number(16, least=1)
    """Rows of A and columns of B; at most the inputs and the outputs of each adapted layer."""
    alpha: int = number(32, least=1)
    """The adapters' output is multiplied by alpha / rank."""
    targets: list[str] = field(default_factory=lambda: list(LINEAR))
    """Linear layers with an adapter, by their names in transformers."""


@dataclass
class Train:
    """The training loop and its optimizer."""

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
    lr: float = number(1e-6, above=0, most=1)
    """Learning rate of the policy, unless its objective sets one, as in `grpo(lr=3e-4)`; a critic's is
    `critic_lr` of its objective."""
    warmup_steps: int = number(0, least=0)
    """Steps over which the learning rate rises linearly to its value."""
    optimizer: str = choice(ADAMW, (ADAMW, ADAMW8BIT))
    """adamw8bit: AdamW with moments of 8 bits, which torchao has to be installed for (docs/gpu.md)."""
    betas: list[float] = numbers([0.9, 0.999], length=2, least=0, below=1)
    """Decay rates of AdamW's two moments."""
    weight_decay: float = number(0.0, least=0)
    """Weight decay of AdamW."""
    grad_clip: float = number(1.0, above=0)
    """Largest norm of the gradient of one update; a larger gradient is scaled down to it."""
    filter: Filter | None = None
    """Difficulty filter of the problems; null: every problem is trained on."""
    resample: Resample | None = None
    """Dynamic sampling; null: a step trains on its first `train.prompts` groups, with or without signal."""
    lora: Lora | None = None
    """Adapters, which peft has to be installed for (docs/gpu.md); null: all weights are trained."""
    dtype: str = choice("auto", ("auto", "float32", "bfloat16"))
    """Type of the computation; trained weights are float32. auto: bfloat16 on cuda, and on a CPU
    that multiplies in it at least 1.5 times as fast, which is measured once; there, models of a hidden size of up to
    512 stay in float32."""
    backend: str = choice(OWN, (OWN, TRL))
    """Trainer of the cells. trl: GRPOTrainer with our methods, which has to be installed (docs/elsewhere.md)."""
    order: str = choice(SHUFFLED, (SHUFFLED, GIVEN))
    """Order of the problems. shuffled: by the seed, another one in each pass; given: the task's own, in every pass."""
    loss_scale: str = choice(MINI_BATCH, (MINI_BATCH, MICRO_BATCH))
    """Tokens over which the loss of an update is a mean. micro-batch: those of one forward pass, which then counts by
    its number of responses; `hardware.micro_tokens` and the ranks change results (docs/paper.md)."""

    def plain(self) -> dict[str, Any]:
        return plain_settings(self, "lora", "backend", "order", "loss_scale", "optimizer")

    @property
    def short_warmup(self) -> str:
        """How far the learning rate rises before a cell ends, as people read it; empty if it reaches its value."""
        if self.warmup_steps <= self.steps:
            return ""
        return (
            f"the learning rate rises to {self.steps / self.warmup_steps:.2g} of its value: train.warmup_steps is "
            f"{self.warmup_steps}, and train.steps {self.steps}"
        )


@dataclass
class RolloutConfig:
    """Sampling of the responses that are trained on."""

    # Users often look for these keys. A truncated sampler would be wrong here: training uses the log-probabilities of
    # the whole softmax.
    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("top_p", "top_k", "min_p"),
        "training samples by temperature alone (allowed: rollout.temperature), since a truncated sampler is another "
        "policy than the one that is trained",
    )

    engine: str = choice("auto", ("auto", "embedded", "vllm"))
    """Engine that samples. auto: vLLM where it is installed and the model is large enough to gain, else embedded."""
    temperature: float = number(1.0, **TEMPERATURES)
    """Sampling temperature, also of the trainer's softmax."""
    max_new_tokens: int = number(7168, least=1)
    """Most tokens of a response, in training and in evaluation."""
    lag: int = number(0, least=0)
    """Steps between sampling a response and training on it; less than `train.steps`."""
    max_prompt_tokens: int | None = number(None, least=1)
    """Problems with longer prompts are not trained on; null: no limit."""


@dataclass
class Correction:
    """Importance correction of the gradient for the mismatch of trainer and engine (docs/rollouts.md)."""

    kind: str = choice("off", ("off", "truncated", "masked"))
    """truncated: a ratio above `high` counts as `high`; masked: a ratio outside `low` to `high` counts as 0."""
    level: str = choice("token", ("token", "sequence"))
    """The ratio that is bounded: of each token, or of the whole response."""
    low: float = number(0.0, least=0, most=1)
    """Lower bound of the ratio, with `kind=masked` only."""
    high: float = number(2.0, least=1)
    """Upper bound of the ratio."""


@dataclass
class Bounds:
    """Bounds on the size of the trainer's minus the engine's log-probability, over sampled tokens."""

    mean: float | None = number(None, least=0)
    """Bound on the mean; null: none."""
    p99: float | None = number(None, least=0)
    """Bound on the 99th percentile; null: none."""
    max: float | None = number(None, least=0)
    """Bound on the largest value; null: none."""


@dataclass
class Mismatch:
    """Largest allowed mismatch of trainer and engine, by the type of the computation; a cell beyond it stops."""

    # In float32 p99 is about 1e-6, so 0.01 cannot be rounding (measured: docs/rollouts.md).
    float32: Bounds = field(default_factory=lambda: Bounds(p99=0.01, max=0.1))
    # In bfloat16 rare tokens differ by any amount, and the more so the less entropy is left; the mean is at most 0.034.
    bfloat16: Bounds = field(default_factory=lambda: Bounds(mean=0.1))


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
    temperature: float = number(0.7, also=0, **TEMPERATURES)
    """Sampling temperature; 0: greedy."""
    every: int = number(0, least=0)
    """Steps between further evaluations; 0: only before training and at the end."""
    beyond_context: bool = False
    """Allow prompts and responses beyond the model's max_position_embeddings; false: that is an error."""
    by_task: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Values of `problems`, `samples`, `k` and `temperature` for single tasks: `{aime24: {samples: 64}}`."""

    def of(self, task: str) -> Eval:
        """Return the settings for one evaluation task, by its name."""
        own_values, where = self.by_task.get(task, {}), f"eval.by_task.{task}."
        for key in own_values:
            if key not in BY_TASK:
                raise UserError(f"unknown key {short(f'{where}{key}')}; {nearest(str(key), BY_TASK)}")
        checked = typed(Eval, own_values, where) if own_values else self
        return dataclasses.replace(self, by_task={}, **{key: getattr(checked, key) for key in own_values})


@dataclass
class Stop:
    """Early end of a cell, before `train.steps`."""

    entropy_below: float | None = number(None, above=0)
    """A cell ends after the first step with a lower `entropy/mean`, and that step is its result; null: never."""
    tokens: int | None = number(None, least=1)
    """A cell ends after the first step with which it has sampled this many tokens in training; null: never."""
    without_signal: int | None = number(None, least=1)
    """A cell ends after this many steps in a row without a signal, in each group of which all rewards were equal; null:
    never, so that all cells of a comparison have all of their steps."""

    def plain(self) -> dict[str, Any]:
        return plain_settings(self, "tokens", "without_signal")

    @property
    def rule(self) -> str:
        """When a cell ends early, as people read it; empty if it never does."""
        reasons = []
        if self.entropy_below is not None:
            reasons.append(f"after a step with an entropy below {self.entropy_below:g}")
        if self.without_signal is not None:
            reasons.append(f"after {plural(self.without_signal, 'step')} in a row without a signal")
        if self.tokens is not None:
            reasons.append(f"with {self.tokens:,} sampled tokens")
        return f"a cell ends early {', or '.join(reasons)} (stop)" if reasons else ""


@dataclass
class Verify:
    """The verifier, which judges answers."""

    limit_s: float = number(5.0, above=0)
    """Seconds for one answer; a longer judgment is a timeout and not a right answer."""
    workers: int = number(2, least=1, most=1024)
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
    keep: int = number(2, least=1)
    """Checkpoints kept while a cell trains; with 1, a cell whose newest one is damaged starts over."""
    keep_last: bool = False
    """Keep the last checkpoint of a cell that is done, from which a damaged model is made again without training."""
    save_model: bool = True
    """Keep the trained model in the cell's folder, in the format of Hugging Face."""


@dataclass
class Hardware:
    """Devices, processes and memory of one cell."""

    device: str = choice("auto", ("auto", "cpu", "cuda"))
    """Device of a cell. auto: cuda if there is one."""
    threads: int = number(1, least=1, most=4096)
    """CPU threads of each process."""
    ranks: int = number(1, least=1)
    """Processes of a cell on one machine, each with its own device; the model's weights are divided among them."""
    nodes: int = number(1, least=1)
    """Machines of a cell, found by `--launcher ray` or `slurm`, or by torchrun."""
    share: float = number(1.0, above=0, most=1)
    """Share of a GPU that a cell of one rank takes; other cells take the rest."""
    micro_tokens: int = number(16384, least=1)
    """Tokens of one forward pass, padding included."""
    recompute: float = fraction(0.0)
    """Share of the layers whose activations are computed again in the backward pass instead of kept; true: all."""
    compile: bool = False
    """Compile the norms and the MLP of each layer (torch.compile), which takes a while in the first step."""
    offload: bool = False
    """Keep AdamW's moments and a copy of the weights in the machine's memory instead of the device's."""
    cache_gib: float | None = number(None, least=0.001, most=100_000)
    """Memory of the engine's keys and values, in GiB, which bounds how many responses it samples at once. null: for 512
    of them (embedded); 1 on a CPU, and on a GPU half of its memory with the weights (vllm)."""
    timeout_minutes: float | None = number(None, above=0)
    """A cell that takes longer is stopped and counted as failed; null: no limit."""
    stall_minutes: float | None = number(60.0, above=0)
    """A cell without progress on any rank for this long, not even one response, fails; null: no limit."""

    @property
    def world(self) -> int:
        """The number of ranks on all machines."""
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


@dataclass
class Tune:
    """The candidates of each method, among which `entrobench tune` chooses by one rule (docs/tune.md)."""

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
    """tuned: the choice of `entrobench tune` replaces the methods, in the matrix `NAME-tuned`; tables never mix the
    two."""
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

    def plain(self) -> dict[str, Any]:
        """Return the configuration as plain values, in the form of identities and stored records."""
        settings = dataclasses.asdict(self)
        settings["train"], settings["stop"] = self.train.plain(), self.stop.plain()
        return settings

    @property
    def setting(self) -> dict[str, Any]:
        """The value of each axis in this configuration."""
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


def value_at(settings: Any, key: str) -> Any:
    """Return the value under a key such as train.lr."""
    return functools.reduce(getattr, key.split("."), settings)
