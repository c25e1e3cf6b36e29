"""The environment variables of `accelerate launch`, for ranks that another launcher has started."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any

from harness.base.errors import UserError, nearest
from harness.config import Hardware
from harness.config.accelerate_file import DECIDED, DEEPSPEED, FSDP, KEY, SECTIONS

OF_ACCELERATE = ("ACCELERATE_", "FSDP_")  # how the names of its variables begin


def export_variables(sharding: Mapping[str, Any], hardware: Hardware) -> None:
    """Set the variables that accelerate and transformers read in this process."""
    # Without it, accelerate sets the threads of torch to all cores where a cell has several ranks.
    os.environ.setdefault("OMP_NUM_THREADS", str(hardware.threads))
    if sharding:
        os.environ.update(accelerate_variables(sharding, hardware.world))


def accelerate_variables(settings: Mapping[str, Any], world: int) -> dict[str, str]:
    """Return the variables by which accelerate shards, for the settings that `sharding_settings` has returned.

    The functions are those of `accelerate launch`, without its start of processes.
    """
    # Here, since one of them is private: another version of accelerate may lack it, and few cells need it.
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    kind = settings["distributed_type"]
    section = dict(settings[SECTIONS[kind]])
    if kind == DEEPSPEED:
        section |= dict.fromkeys(DECIDED, "auto")  # filled by transformers with the trainer's arguments
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"distributed_type": kind, SECTIONS[kind]: section}, file)
        file.flush()
        options = [f"--config_file={file.name}", f"--num_processes={world}", "--num_machines=1"]
        options.append("--main_process_port=0")  # any free one: the ranks have met elsewhere
        arguments = launch_command_parser().parse_args([*options, "program"])
        check_known(kind, section, vars(arguments))
        arguments, _, _ = _validate_launch_command(arguments)
    if kind == DEEPSPEED:
        arguments.deepspeed_fields_from_accelerate_config = ",".join(section)  # as `accelerate launch` sets it
        _, variables = prepare_deepspeed_cmd_env(arguments)
    else:
        variables = prepare_multi_gpu_env(arguments)
    return {name: value for name, value in variables.items() if name.startswith(OF_ACCELERATE)}


def check_known(kind: str, section: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse a key that accelerate would ignore."""
    prefix = "fsdp_" if kind == FSDP else ""  # which accelerate adds where it is missing
    for key in section:
        name = key if key.startswith(prefix) else f"{prefix}{key}"
        if name not in known:
            allowed = [option for option in known if option.startswith(prefix)]
            raise UserError(f"{KEY}: unknown key {key!r} in {SECTIONS[kind]}; {nearest(key, allowed)}")
