"""A package that is not installed."""

from __future__ import annotations

from importlib import metadata

import pytest


def hide_package(patch: pytest.MonkeyPatch, hidden: str) -> None:
    """Let a package have no version, as one that is not installed."""
    installed = metadata.version

    def version(name: str) -> str:
        if name == hidden:
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    patch.setattr(metadata, "version", version)
