"""Settings as dataclasses: names and types are checked, defaults filled in; imports no torch."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.base.errors import UserError, nearest

# Asked for often, and wrong here: the log-probabilities that are trained are those of the untruncated softmax.
TRUNCATED_SAMPLING = ("top_p", "top_k", "min_p")


def section(schema: Any, key: str) -> Any:
    """The dataclass under a key, with its defaults where the schema has none yet; None under any other key."""
    hint = get_type_hints(schema if isinstance(schema, type) else type(schema))[key]
    kinds = (kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and dataclasses.is_dataclass(kind))
    return next((kind() for kind in kinds), None)


def refuse_unknown_keys(given: Any, schema: Any, prefix: str = "") -> None:
    known = {f.name: f for f in dataclasses.fields(schema)}
    for key, value in given.items():
        if prefix == "rollout." and key in TRUNCATED_SAMPLING:
            raise UserError(
                f"rollout.{key} is {value!r}, but training samples by temperature alone (allowed: "
                "rollout.temperature), since a truncated sampler is another policy than the one that is trained"
            )
        if key not in known:
            raise UserError(f"unknown key {prefix}{key}; {nearest(str(key), known)}")
        child = section(schema, str(key))
        if child is not None and (value is not None or getattr(schema, str(key)) is not None):
            if not isinstance(value, dict):
                raise UserError(f"{prefix}{key} is {value!r}; it must be a mapping of keys")
            refuse_unknown_keys(value, child, f"{prefix}{key}.")


def typed(schema: Any, given: dict[str, Any], where: str) -> Any:
    """`given` laid over the defaults of the dataclass `schema` (or its class), with names and types checked."""
    refuse_unknown_keys(given, schema, where)
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), given))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or ""
        raise UserError(f"{where}{key}: {str(error).splitlines()[0]}") from error
