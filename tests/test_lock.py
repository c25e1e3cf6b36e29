"""requirements.lock satisfies pyproject.toml, and can be installed anywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
LOCK = (REPOSITORY / "requirements.lock").read_text().replace("\\\n", " ")
LOCKED = [line.split() for line in LOCK.splitlines() if line and not line.startswith("#")]


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


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_the_lock_has_all_that_is_asked_for(python: str) -> None:
    here = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    versions = {}
    for words in LOCKED:
        locked = Requirement(" ".join(word for word in words if not word.startswith("--hash=")))
        if locked.marker is None or locked.marker.evaluate(here):
            (pin,) = locked.specifier
            assert pin.operator == "=="
            assert canonicalize_name(locked.name) not in versions
            versions[canonicalize_name(locked.name)] = pin.version
    wanted = [*asked_for(), *asked_for("dev")]
    assert {requirement.name for requirement in wanted} >= {"torch", "pytest", "ruff"}
    for requirement in wanted:
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_every_file_is_known_by_its_hash() -> None:
    for name, *rest in LOCKED:
        assert re.fullmatch(r"[\w.-]+==[\w.]+", name), f"{name}: a local version is in no public registry"
        assert any(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) for word in rest), name


def test_the_lock_names_no_place() -> None:
    """Neither an index nor a folder, so that each installs from the registry that their pip knows."""
    assert not re.search(r"://| @ ", LOCK)
    options = {word for words in LOCKED for word in words if word.startswith("-")}
    assert all(option.startswith("--hash=") for option in options), options
