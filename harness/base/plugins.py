"""Methods and tasks of other modules, from entry points of installed packages and from --plugin modules."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from harness.base.errors import UserError, short, shown

T = TypeVar("T")
OFFERS = {"METHODS": "entrobench.methods", "TASKS": "entrobench.tasks"}  # tables of a module, groups of entry points
JUDGES = "JUDGES"  # a table of a module alone: the functions that may judge problems of one's own, by name
NAME = re.compile(r"[A-Za-z_][\w-]{0,99}")  # as it is written in a configuration file
OURS = ("baselines", "configs", "entrobench", "harness", "tasks")  # packages that a plugin of that name would hide


def extend_table(
    kind: str,
    ours: Mapping[str, T],
    offer: str,
    plugins: Iterable[str],
    check: Callable[[str, Any, str], None],
    refused: dict[str, UserError] | None = None,
) -> dict[str, T]:
    """Return our table extended by the entries of plugins.

    `check` raises UserError for an invalid entry. With `refused`, the error is stored there by the entry's name, and
    the other entries are still returned.
    """
    table = dict(ours)
    for name, cls, plugin in plugin_entries(offer, plugins):
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise UserError(f"plugin {plugin} names a {kind} {shown(name)}; allowed: letters, digits, _ and -")
        try:
            check(name, cls, plugin)
        except UserError as error:
            if refused is None:
                raise
            refused[name] = error
            continue
        # The same class may come twice, from an entry point and from --plugin.
        if table.setdefault(name, cls) is not cls:
            where = table[name].__module__
            raise UserError(f"{kind} {name!r} of plugin {plugin} has the name of one in {where}; choose another")
    return table


def plugin_entries(offer: str, plugins: Iterable[str]) -> Iterator[tuple[str, Any, str]]:
    """Yield the entries of plugins as (name, class, module)."""
    # Without folders that hold no packages, such as the current one, for which a search would begin again.
    places = tuple(place for place in sys.path if any(distributions(path=[place])))
    for point in installed_entry_points(OFFERS[offer], places):
        module = import_plugin(point.module)
        if not hasattr(module, point.attr):
            raise UserError(f"plugin {point.module} has no {point.attr}; it was read from {module_origin(module)}")
        yield point.name, getattr(module, point.attr), point.module
    for plugin in [plugins] if isinstance(plugins, str) else plugins:
        if plugin in OURS:
            raise UserError(f"plugin {plugin} has the name of a package of entrobench; give the file another name")
        module = import_plugin(plugin)
        tables = (*OFFERS, JUDGES)
        if not any(hasattr(module, name) for name in tables):
            raise UserError(
                f"plugin {plugin} has neither {' nor '.join(tables)}; it was read from {module_origin(module)}"
            )
        entries = getattr(module, offer, {})
        if not isinstance(entries, Mapping):
            raise UserError(f"{offer} of plugin {plugin} is {shown(entries)}; it must be a dict of names and classes")
        for name, cls in entries.items():
            yield name, cls, plugin


@cache
def installed_entry_points(group: str, path: tuple[str, ...]) -> list[EntryPoint]:
    """Return the entry points of the packages on a path; cached, since the search dominates the time of a table."""
    return list(entry_points(group=group))


def import_plugin(plugin: str) -> ModuleType:
    if plugin.endswith(".py") or not all(part.isidentifier() for part in plugin.split(".")):
        raise UserError(
            f"plugin {shown(plugin)} is not the name of a module; write it as in an import statement, for example "
            f"{Path(plugin).stem if plugin.endswith('.py') else 'my_methods'}"
        )
    try:
        return importlib.import_module(plugin)
    except ImportError as error:
        raise UserError(f"plugin {short(plugin)} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # the plugin's own code may raise any type
        reason = type(error).__name__
        if str(error):
            reason += f": {short(str(error))}"
        raise UserError(f"plugin {short(plugin)} raises an error when it is imported ({reason})") from error


def module_origin(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "Python itself"
