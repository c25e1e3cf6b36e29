"""The bytecode of installed packages, which Python writes at their first import unless the installer did."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# Packages of hundreds of modules, which cells or MLflow's store load. pip compiles all that it installs, uv only with
# --compile-bytecode.
LARGE = ("torch", "transformers", "mlflow", "pandas", "scipy")


def uncompiled_packages() -> list[str]:
    """Return the large packages that are installed without bytecode; none is imported."""
    if sys.dont_write_bytecode:  # the first import is then as slow as any other
        return []
    names = []
    for name in LARGE:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.cached is None:
            continue
        if not Path(spec.cached).exists():
            names.append(name)
    return names


def announce_compilation() -> None:
    """Say that imports take long this once, if Python has yet to compile large packages."""
    names = uncompiled_packages()
    if not names:
        return
    whose = "its" if len(names) == 1 else "their"
    text = f"first use of {', '.join(names)}: Python compiles {whose} files, once, which takes about a minute"
    print(text, file=sys.stderr, flush=True)  # not among the output, which may be for another program
