"""Identities: plain values that define a component, a model or a cell, and the hash of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any


def component_identity(component: Any) -> dict[str, Any]:
    """Return the name of a component's class, and its options."""
    return {"component": type(component).__name__, **dataclasses.asdict(component)}


def hash_of(identity: Any) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def key(identity: Any) -> str:
    """Return the short hash of an identity, for ids and names of folders."""
    return hash_of(identity)[:12]
