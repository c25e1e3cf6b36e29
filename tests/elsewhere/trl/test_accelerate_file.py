"""The file of hardware.accelerate: its part in a cell's identity, its variables, and the sentences that refuse it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import cli, config, matrix
from harness.base.errors import UserError
from harness.config.accelerate_file import sharding_settings
from harness.methods.refusals import backend_obstacle

# As `accelerate config` writes it.
STARTING: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "downcast_bf16": "no",
    "enable_cpu_affinity": False,
    "machine_rank": 0,
    "main_training_function": "main",
    "mixed_precision": "bf16",
    "num_machines": 1,
    "num_processes": 2,
    "rdzv_backend": "static",
    "same_network": True,
    "tpu_env": [],
    "tpu_use_cluster": False,
    "tpu_use_sudo": False,
    "use_cpu": False,
}
SHARDS = {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_offload_params": False}
FSDP = {**STARTING, "distributed_type": "FSDP", "fsdp_config": SHARDS}
STAGES = {"zero_stage": 2, "offload_optimizer_device": "none", "zero3_init_flag": False}
DEEPSPEED = {**STARTING, "distributed_type": "DEEPSPEED", "deepspeed_config": STAGES}
ON_GPUS = ["train.backend=trl", "methods=[grpo]", "hardware.ranks=2", "hardware.device=cuda"]


def written(folder: Path, content: Any) -> str:
    path = folder / "accelerate.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return f"hardware.accelerate={path}"


def cell_of(*overrides: str) -> matrix.Cell:
    return matrix.cells(config.load_config("smoke", [*ON_GPUS, *overrides]))[0]


def test_the_settings_of_the_file_are_part_of_the_identity(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    plain, sharded = cell_of(), cell_of(written(tmp_path, FSDP))
    assert "accelerate" not in plain.identity
    assert sharded.identity["accelerate"] == {"distributed_type": "FSDP", "fsdp_config": SHARDS}
    without_starting = {"distributed_type": "FSDP", "fsdp_config": SHARDS}
    assert cell_of(written(tmp_path / "other", without_starting)).id == sharded.id != plain.id
    unsharded = cell_of(written(tmp_path, {**STARTING, "distributed_type": "MULTI_GPU"}))
    assert unsharded.id == plain.id


def test_the_number_of_ranks_is_part_of_the_identity_with_trl_alone() -> None:
    one, two = cell_of("hardware.ranks=1"), cell_of()
    assert "ranks" not in one.identity
    assert two.identity["ranks"] == 2
    assert cell_of("train.backend=own").id == cell_of("train.backend=own", "hardware.ranks=1").id


REFUSED: dict[str, tuple[Any, str]] = {
    "distributed": (
        {"num_processes": 2},
        "has no distributed_type; allowed: a YAML file as `accelerate config` writes",
    ),
    "list": ("- FSDP\n", "has no distributed_type"),
    "yaml": ("distributed_type: [FSDP\n", "cannot be read"),
    "key": ({**FSDP, "fsdp_conf": {}}, "unknown key 'fsdp_conf'; .*did you mean 'fsdp_config'"),
    "type": ({**FSDP, "distributed_type": "TPU"}, "distributed_type is 'TPU'; allowed: DEEPSPEED, FSDP, MULTI_CPU"),
    "processes": ({**FSDP, "num_processes": 8}, "num_processes is 8, but hardware.nodes x hardware.ranks is 2; make"),
    "precision": ({**FSDP, "mixed_precision": "fp16"}, "is 'fp16', but train.dtype is bfloat16; allowed: no or bf16"),
    "section": ({**FSDP, "fsdp_config": None}, "fsdp_config is null; it must be a mapping of keys"),
    "version": ({**FSDP, "fsdp_config": {"fsdp_version": 1}}, "fsdp_version is 1; allowed: 2"),
    "stage": ({**DEEPSPEED, "deepspeed_config": {"zero_stage": 3}}, "zero_stage is 3; allowed: 1 or 2, since"),
    "file": (
        {**DEEPSPEED, "deepspeed_config": {"deepspeed_config_file": "ds.json"}},
        "deepspeed_config_file names a second file; allowed: its settings in deepspeed_config itself",
    ),
    "decided": (
        {**DEEPSPEED, "deepspeed_config": {**STAGES, "gradient_clipping": 0.5}},
        "gradient_clipping is 0.5, which train.grad_clip decides; allowed: auto",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_hold_is_refused(case: str, tmp_path: Path) -> None:
    content, sentence = REFUSED[case]
    with pytest.raises(UserError, match=sentence) as refusal:
        cell_of(written(tmp_path, content))
    assert "accelerate.yaml" in str(refusal.value)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "hardware.device=cpu",
            r"accelerate ignores where hardware.device is cpu; allowed: .*, or hardware.device=cuda",
        ),
        ("hardware.ranks=1", "but hardware.nodes x hardware.ranks is 1; allowed: 2 and more"),
        (
            "train.backend=own",
            r"^hardware.accelerate is '.*', but train.backend is own; allowed: null, or train.backend",
        ),
    ],
)
def test_a_configuration_that_cannot_use_the_file_is_refused(override: str, sentence: str, tmp_path: Path) -> None:
    content = {key: value for key, value in FSDP.items() if key not in ("num_processes", "mixed_precision")}
    with pytest.raises(UserError, match=sentence):
        cell_of(written(tmp_path, content), override)


def test_a_missing_file_ends_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("plan", "run"):
        with pytest.raises(SystemExit) as end:
            cli.main([command, "smoke", *ON_GPUS, "hardware.accelerate=missing.yaml", f"results={tmp_path}/results"])
        assert end.value.code == 2
        output = " ".join(capsys.readouterr().err.split())
        assert "hardware.accelerate missing.yaml does not exist; allowed: a YAML file as `accelerate config" in output


def test_a_missing_deepspeed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.methods.refusals.find_spec", lambda name: None)
    settled = cell_of(written(tmp_path, DEEPSPEED)).settled
    sentence = "hardware.accelerate asks for DeepSpeed, but deepspeed is not installed here; pip install deepspeed"
    assert backend_obstacle(settled) == sentence
    monkeypatch.setattr("harness.methods.refusals.find_spec", lambda name: object())
    assert backend_obstacle(settled) is None


# The variables of `accelerate launch`


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "vllm", None)  # trl would take the folder tests/vllm for it
    pytest.importorskip("accelerate", reason="accelerate is not installed; the extra trl has it")
    from harness.elsewhere.trl.accelerate_variables import accelerate_variables

    return accelerate_variables


def test_the_variables_are_those_of_accelerate_launch(tmp_path: Path, variables: Any) -> None:
    settled = cell_of(written(tmp_path, FSDP)).settled
    of_fsdp = variables(sharding_settings(settled), world=2)
    assert (of_fsdp["ACCELERATE_USE_FSDP"], of_fsdp["FSDP_VERSION"]) == ("true", "2")
    assert of_fsdp["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"
    assert all(name.startswith(("ACCELERATE_", "FSDP_")) for name in of_fsdp)
    settled = cell_of(written(tmp_path, DEEPSPEED)).settled
    of_deepspeed = variables(sharding_settings(settled), world=2)
    assert (of_deepspeed["ACCELERATE_USE_DEEPSPEED"], of_deepspeed["ACCELERATE_DEEPSPEED_ZERO_STAGE"]) == ("true", "2")
    for name in ("GRADIENT_CLIPPING", "GRADIENT_ACCUMULATION_STEPS"):  # transformers fills them
        assert of_deepspeed[f"ACCELERATE_{name}"] == "auto"


def test_a_key_that_accelerate_would_ignore_is_refused(variables: Any) -> None:
    settings = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_offload_parameters": True}}
    with pytest.raises(UserError, match=r"unknown key 'fsdp_offload_parameters' in fsdp_config; .*fsdp_offload_params"):
        variables(settings, world=2)
