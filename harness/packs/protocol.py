"""The protocol of a matrix: its tasks, budgets, K, seeds and rules, by whose hash results are comparable or not.

Methods, models and machines are not part of it: these are what a table compares, or names by its marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from harness.base import identities
from harness.base.errors import UserError, shown
from harness.cells.spec import CellSpec
from harness.config import flat, without_k

VERSION = "v1"
RULES = 1  # of judging answers and of estimating scores; raised when one changes, so that old rows differ
SECTIONS = ("train", "rollout", "correction", "eval", "stop", "verify")
# Keys of these sections that the machine decides, or that the definition has in another form.
ELSEWHERE = {"train": ("dtype",), "rollout": ("engine",), "eval": ("tasks",), "verify": ("workers",)}
PARTS = ("rules", "ruleset", "tasks", "evaluations", "seeds", "axes", *SECTIONS)  # of each definition
LISTED = 3  # words in a sentence, at most
LONGEST_VALUE = 20  # characters of a value in it


@dataclass(frozen=True)
class Protocol:
    """The definition of a protocol as plain values."""

    definition: dict[str, Any]

    @cached_property
    def digest(self) -> str:
        return identities.key(self.definition)

    @property
    def name(self) -> str:
        """The version and the hash, as people read them."""
        return f"{VERSION} {self.digest}"

    def differences(self, other: Protocol) -> list[str]:
        """Return the keys in which another protocol differs, each with both values."""
        ours, theirs = dict(flat(self.definition)), dict(flat(other.definition))
        lines = []
        for key in {**ours, **theirs}:  # a dict keeps their order, which a set does not
            our_value, their_value = ours.get(key), theirs.get(key)
            if our_value == their_value:
                continue
            if max(len(str(our_value)), len(str(their_value))) <= LONGEST_VALUE:
                lines.append(f"{key} ({shown(their_value)}, not {shown(our_value)})")
            else:
                lines.append(key)
        return lines


def listed(words: Sequence[str]) -> str:
    """Return the first of these words and the number of the others, as a sentence lists them."""
    first, more = ", ".join(words[:LISTED]), len(words) - LISTED
    return f"{first} and {more} more" if more > 0 else first


def protocol_of(settings: Mapping[str, Any], specs: Sequence[CellSpec]) -> Protocol:
    """Return the protocol of a matrix; `settings`: its configuration, `specs`: all of its cells."""
    evaluated = [task for spec in specs for task in spec.identity["evaluation_tasks"]]
    return Protocol(
        {
            "rules": RULES,
            "ruleset": settings.get("ruleset", "published"),
            **tuning_of(settings),
            "tasks": distinct([spec.identity["task"] for spec in specs]),
            "evaluations": distinct(evaluated),
            "seeds": sorted(settings["seeds"]),
            "axes": settings.get("axes", {}),
            **protocol_sections(settings),
        }
    )


def tuning_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rules by which options were chosen; nothing of the ruleset `published`.

    The candidates are printed with the choice. Only their number is part of the protocol, since each matrix has
    methods of its own.
    """
    if settings.get("ruleset", "published") == "published":
        return {}
    tune = settings["tune"]
    number = max(map(len, tune["candidates"].values()), default=0)
    return {"tune": {"candidates": number, "seeds": tune["seeds"], "slack": tune["slack"]}}


def protocol_sections(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sections of a configuration that are part of a protocol."""
    sections = {}
    for name in SECTIONS:
        left_out = ELSEWHERE.get(name, ())
        section = settings.get(name, {})  # an earlier version may have no such section
        sections[name] = {key: value for key, value in section.items() if key not in left_out}
    return sections


def distinct(values: Sequence[Any]) -> list[Any]:
    """Return each value once, in an order that does not depend on that of the cells."""
    by_hash = {identities.hash_of(value): value for value in values}
    return [by_hash[digest] for digest in sorted(by_hash)]


def departures(protocol: Protocol, spec: CellSpec) -> list[str]:
    """Return how the record of a cell departs from a protocol, as sentences."""
    definition, settings = protocol.definition, spec.settings
    sentences = []
    if spec.identity["task"] not in definition["tasks"]:
        sentences.append("it was trained on another task")
    if any(task not in definition["evaluations"] for task in spec.identity["evaluation_tasks"]):
        sentences.append("it was evaluated on another task")
    if spec.key.seed not in definition["seeds"]:
        sentences.append(f"its seed is {spec.key.seed}")
    if settings.get("ruleset", "published") != definition["ruleset"]:
        sentences.append(f"its ruleset is {settings.get('ruleset', 'published')}")
    ours, expected = values_of_cells(protocol_sections(settings)), values_of_cells(definition)
    axes = definition["axes"]
    for key in expected | ours:  # either may have a key that the other leaves out at its default
        of_axis = not axes.keys().isdisjoint(accumulate(key.split("."), "{}.{}".format))
        if not of_axis and ours.get(key) != expected.get(key):
            sentences.append(f"its {key} is {shown(ours.get(key))}")
    for section in ("train", "rollout", "eval", "stop"):
        own_values = values_of_cells({section: settings[section]})
        for key, value in values_of_cells({section: spec.identity[section]}).items():
            own = own_values.get(key)
            if value != own and key != "train.dtype":  # in identities float32 has the name auto
                sentences.append(f"its identity has {key}={shown(value)}, and its settings {shown(own)}")
    return sentences


def values_of_cells(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of these sections that cells have in their ids, by their full keys: not K, nor `verify`."""
    kept = {name: section for name, section in sections.items() if name in SECTIONS and name != "verify"}
    if "eval" in kept:
        kept["eval"] = without_k(kept["eval"])
    return dict(flat(kept))


def check_same_protocol(ours: tuple[str, Protocol], theirs: tuple[str, Protocol]) -> None:
    """Refuse to put rows of two protocols into one table; each is given with the name of its pack."""
    (our_name, our_protocol), (their_name, their_protocol) = ours, theirs
    if our_protocol.digest == their_protocol.digest:
        return
    differences = our_protocol.differences(their_protocol)
    raise UserError(
        f"{their_name} is of protocol {their_protocol.name} and {our_name} of {our_protocol.name}; rows of another "
        f"protocol do not enter a table (different: {listed(differences)})"
    )
