"""The file of hardware.accelerate, which shards cells that TRL trains, as `accelerate config` writes it; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.base import safe_yaml
from harness.base.errors import UserError, nearest, one_of, short, shown
from harness.config import OWN, TRL, Config

FSDP, DEEPSPEED = "FSDP", "DEEPSPEED"
UNSHARDED = ("NO", "MULTI_CPU", "MULTI_GPU")  # every rank has all weights, as without a file
KEY = "hardware.accelerate"
# Keys of the sections with the settings of each way to shard.
SECTIONS = {FSDP: "fsdp_config", DEEPSPEED: "deepspeed_config"}
READ = ("distributed_type", "mixed_precision", "num_processes", *SECTIONS.values())
# Keys that say where and how `accelerate launch` starts processes. Here a launcher of ours does, by other sections of
# the configuration.
STARTING = (
    *("compute_environment", "debug", "downcast_bf16", "enable_cpu_affinity", "gpu_ids", "machine_rank"),
    *("main_process_ip", "main_process_port", "main_training_function", "num_machines", "rdzv_backend"),
    *("same_network", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "use_cpu"),
)
# Keys of deepspeed_config whose values follow from the configuration.
DECIDED = {"gradient_clipping": "train.grad_clip", "gradient_accumulation_steps": "hardware.micro_tokens"}
PRECISIONS = {"float32": ("no",), "bfloat16": ("no", "bf16")}  # mixed_precision, by train.dtype


def check_used(settings: Sequence[Config]) -> None:
    """Refuse the file if no cell is trained by TRL, since our own trainer would ignore it."""
    path, backends = settings[0].hardware.accelerate, {setting.train.backend for setting in settings}
    if path is not None and TRL not in backends:
        raise UserError(f"{KEY} is {shown(path)}, but train.backend is {OWN}; allowed: null, or train.backend={TRL}")


def sharding_settings(config: Config) -> dict[str, Any]:
    """Return the settings of the file of hardware.accelerate; empty without a file, or if it shards nothing.

    They are part of a cell's identity: types of reductions, offloaded optimizers and the like may change results, and
    no list could say which of them do. Keys that start processes are left out, and so are names of files.
    """
    if config.hardware.accelerate is None:
        return {}
    path = Path(config.hardware.accelerate)
    where = f"{KEY} {short(str(path))}"
    if not path.is_file():
        raise UserError(f"{where} does not exist; allowed: a YAML file as `accelerate config --config_file` writes it")
    content = safe_yaml.load_yaml(path)
    if not isinstance(content, dict) or "distributed_type" not in content:
        raise UserError(f"{where} has no distributed_type; allowed: a YAML file as `accelerate config` writes it")
    for key in content:
        if key not in READ and key not in STARTING:
            raise UserError(f"{where}: unknown key {shown(key)}; {nearest(str(key), (*READ, *STARTING))}")
    one_of(f"{where}: distributed_type", content["distributed_type"], (*UNSHARDED, *SECTIONS))
    check_agreement(content, config, where)
    if content["distributed_type"] in UNSHARDED:
        return {}
    section = SECTIONS[content["distributed_type"]]
    settings = content.get(section)
    if not isinstance(settings, dict):
        raise UserError(f"{where}: {section} is {shown(settings)}; it must be a mapping of keys")
    check_sharding(content["distributed_type"], settings, config, where)
    return {"distributed_type": content["distributed_type"], section: settings}


def check_agreement(content: Mapping[str, Any], config: Config, where: str) -> None:
    """Refuse values of the file that contradict the configuration."""
    world = config.hardware.world
    if content.get("num_processes", world) not in (world, -1):  # accelerate's own default is -1
        raise UserError(
            f"{where}: num_processes is {shown(content['num_processes'])}, but hardware.nodes x hardware.ranks is "
            f"{world}; make them equal, or leave num_processes out"
        )
    precision = content.get("mixed_precision")
    if precision is False:  # YAML reads `no` without quotes as a boolean
        precision = "no"
    allowed = PRECISIONS[config.train.dtype]
    if precision is not None and precision not in allowed:
        raise UserError(
            f"{where}: mixed_precision is {shown(precision)}, but train.dtype is {config.train.dtype}; allowed: "
            f"{' or '.join(allowed)}"
        )


def check_sharding(kind: str, settings: Mapping[str, Any], config: Config, where: str) -> None:
    """Refuse a sharding that accelerate would ignore here, or that the trainer cannot work with."""
    if config.hardware.world < 2:
        raise UserError(
            f"{where}: distributed_type is {kind}, but hardware.nodes x hardware.ranks is 1; allowed: 2 and more, "
            "among which it divides the model"
        )
    if config.hardware.device != "cuda":
        raise UserError(
            f"{where}: distributed_type is {kind}, which accelerate ignores where hardware.device is "
            f"{config.hardware.device}; allowed: {', '.join(UNSHARDED)}, or hardware.device=cuda"
        )
    if kind == FSDP and settings.get("fsdp_version", 1) != 2:
        raise UserError(
            f"{where}: fsdp_version is {shown(settings.get('fsdp_version', 1))}; allowed: 2, whose weights can be "
            "gathered one by one for evaluations"
        )
    if kind == DEEPSPEED:
        check_deepspeed(settings, where)


def check_deepspeed(settings: Mapping[str, Any], where: str) -> None:
    stage = settings.get("zero_stage", 2)
    if stage not in (1, 2):
        raise UserError(
            f"{where}: zero_stage is {shown(stage)}; allowed: 1 or 2, since ZeRO-3 releases the weights of the head "
            "before the backward pass, which reads them"
        )
    if "deepspeed_config_file" in settings:
        raise UserError(
            f"{where}: deepspeed_config_file names a second file; allowed: its settings in deepspeed_config itself, as "
            "zero_stage and offload_optimizer_device"
        )
    for key, decided_by in DECIDED.items():
        if settings.get(key, "auto") != "auto":
            raise UserError(f"{where}: {key} is {shown(settings[key])}, which {decided_by} decides; allowed: auto")
