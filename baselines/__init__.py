"""The methods: one file each, and one explicit table."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any

from baselines.adaptive_entropy import AdaptiveEntropy
from baselines.ce_gppo import CeGppo
from baselines.clip_b import ClipB
from baselines.clip_v import ClipV
from baselines.entropy_bonus import EntropyBonus
from baselines.grpo import Grpo
from baselines.ppo import Ppo
from harness.base.errors import UserError
from harness.method import Component, Control, Objective

METHODS: dict[str, type[Component]] = {
    "grpo": Grpo,
    "ppo": Ppo,
    "ce_gppo": CeGppo,
    "clip_b": ClipB,
    "clip_v": ClipV,
    "entropy_bonus": EntropyBonus,
    "adaptive_entropy": AdaptiveEntropy,
}
OURS = ("baselines", "configs", "entrobench", "harness", "tasks")  # packages, which a plugin beside them cannot replace


def table(plugins: Iterable[str] = ()) -> dict[str, type[Component]]:
    """All methods by name: METHODS, those of installed packages (entry points), and those of plugin modules."""
    methods = dict(METHODS)
    for point in entry_points(group="entrobench.methods"):
        add(methods, point.name, attribute(point.module, point.attr), point.module)
    for plugin in plugins:
        if plugin in OURS:
            raise UserError(f"plugin {plugin} has the name of a package of entrobench; give the file another name")
        offered = attribute(plugin, "METHODS")
        if not isinstance(offered, Mapping):
            raise UserError(f"METHODS of plugin {plugin} is {offered!r}; it must be a dict of names and classes")
        for name, cls in offered.items():
            add(methods, name, cls, plugin)
    return methods


def attribute(plugin: str, name: str) -> Any:
    if not all(part.isidentifier() for part in plugin.split(".")):
        raise UserError(f"plugin {plugin!r} is no name of a module; write it as in an import, for example my_methods")
    try:
        module = importlib.import_module(plugin)
    except ImportError as error:
        raise UserError(f"plugin {plugin} cannot be imported: {error}") from error
    if not hasattr(module, name):
        raise UserError(
            f"plugin {plugin} has no {name}; it was read from {getattr(module, '__file__', 'Python itself')}"
        )
    return getattr(module, name)


def add(methods: dict[str, type[Component]], name: str, cls: Any, plugin: str) -> None:
    if not (isinstance(cls, type) and issubclass(cls, Objective | Control)):
        raise UserError(f"method {name!r} of plugin {plugin} is {cls!r}; it must be a subclass of Objective or Control")
    if methods.setdefault(name, cls) is not cls:
        raise UserError(
            f"method {name!r} of plugin {plugin} has the name of one in {methods[name].__module__}; choose another"
        )
