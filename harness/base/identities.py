"""Identities: plain values that define a component, a model or a cell, and the hash of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Identifying(Protocol):
    """A component whose options do not identify it, such as the path of a file."""

    def identifying(self) -> dict[str, Any]:
        """Return the values that identify it, in place of its options."""
        ...


def component_identity(component: Any) -> dict[str, Any]:
    """Return the name of a component's class, and its options."""
    options = component.identifying() if isinstance(component, Identifying) else dataclasses.asdict(component)
    return {"component": type(component).__name__, **options}


def hash_of(identity: Any) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def key(identity: Any) -> str:
    """Return the short hash of an identity, for ids and names of folders."""
    return hash_of(identity)[:12]
