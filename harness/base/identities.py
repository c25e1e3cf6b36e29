"""Who something is: all that defines it as plain values, and the hash of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any


def component_identity(component: Any) -> dict[str, Any]:
    """Returns the name of a dataclass with its fields."""
    return {"component": type(component).__name__, **dataclasses.asdict(component)}


def hash_of(identity: Any) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def key(identity: Any) -> str:
    """Returns the short form, for names of folders."""
    return hash_of(identity)[:12]
