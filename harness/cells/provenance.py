"""The record of what made a cell's numbers: the code, the libraries and the machine of one attempt; no torch."""

from __future__ import annotations

import ast
import dataclasses
import functools
import os
import platform
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from importlib.util import resolve_name
from pathlib import Path
from types import FunctionType, ModuleType

from harness.base import files, identities
from harness.base.errors import Damaged
from harness.base.locks import lock
from harness.cells import lease
from harness.cells.log import MetricsLog

FILE = "made.json"
BASE_MODEL_TAG, HARNESS_TAG = "model.digest", "code.harness"
# Between the name of a cell's folder and the id of an earlier attempt, whose records are kept there.
ASIDE = ".attempt-"
PACKAGES = ("torch", "transformers", "lm-eval", "math-verify")
# Packages whose source is no component's: a version or the commit says which they were.
NO_SOURCES = {"harness", "entrobench", *sys.stdlib_module_names}
INSTALLED = {"site-packages", "dist-packages"}  # folders
# An attempt that is set aside leaves these in the cell's folder: who the cell is, and who works on it.
STAYING = ("config.yaml", lease.NAME, "mlflow.lock", FILE)


@dataclass(frozen=True)
class Made:
    """One attempt at a cell, from step 0 to its end through all interruptions, as it was when it began."""

    attempt: str
    started: float  # seconds since 1970
    version: str | None  # of entrobench; None where it is not installed
    commit: str | None  # of the repository that the code runs from; None where it is no git checkout
    dirty: bool | None
    sources: dict[str, str]  # hashes of the source of its method's and its tasks' components, by their names
    versions: dict[str, str]  # of what computes
    processor: str
    device: str  # cpu or cuda
    base_model: str | None = None  # the digest of its weights and tokenizer, or its commit on the hub
    harness: str | None = None  # the hash of the source of the harness; None of records of earlier versions

    @classmethod
    def read(cls, folder: Path) -> Made | None:
        """Returns the record of the attempt that a cell's folder holds; None before the first began."""
        path = folder / FILE
        if not path.exists():
            return None
        given = files.read_json(path)
        known = {each.name: each.default for each in dataclasses.fields(cls)}
        needed = {name for name, default in known.items() if default is dataclasses.MISSING}
        if not isinstance(given, dict) or not needed <= given.keys() <= known.keys():
            raise Damaged(path, f"it must hold {', '.join(known)}")
        kinds = {"attempt": str, "started": int | float, "sources": dict, "versions": dict}
        if wrong := [name for name, kind in kinds.items() if not isinstance(given[name], kind)]:
            raise Damaged(path, f"{', '.join(wrong)} is not what it must be")
        return cls(**given)

    @classmethod
    def known(cls, folder: Path) -> Made | None:
        """Return the record of the attempt in a folder; None where there is none that can be read."""
        try:
            return cls.read(folder)
        except Damaged:
            return None

    def write(self, folder: Path) -> None:
        files.write_json(folder / FILE, dataclasses.asdict(self))

    def tags(self) -> dict[str, str]:
        """Returns the record as the tags of a run; what is unknown is no tag."""
        known = {
            "attempt": self.attempt,
            "code.version": self.version,
            "code.commit": self.commit,
            "code.dirty": None if self.dirty is None else str(self.dirty).lower(),
            HARNESS_TAG: self.harness,
            BASE_MODEL_TAG: self.base_model,
            "processor": self.processor,
            "source": identities.key(self.sources),
            **{f"source.{name}": digest for name, digest in self.sources.items()},
            **{f"version.{name}": version for name, version in self.versions.items()},
        }
        return {key: value for key, value in known.items() if value is not None}


def begin(
    folder: Path,
    sources: dict[str, str],
    device: str,
    gpu: str | None,
    engine: Iterable[str] = (),
    *,
    base_model: str | None = None,
    harness: str | None = None,
) -> Made:
    """Write the record of a new attempt.

    `gpu`: the name of the device if it is one. `engine`: the packages that sample. `harness`: the hash of its source as
    it was imported; None stands for the present one.
    """
    commit, dirty = checkout(Path(__file__).parents[2])
    versions = {name: found for name in (*PACKAGES, *engine) if (found := version(name)) is not None}
    versions["python"] = platform.python_version()
    made = Made(
        attempt=uuid.uuid4().hex,
        started=time.time(),
        version=version("entrobench"),
        commit=commit,
        dirty=dirty,
        sources=sources,
        versions=versions,
        processor=gpu or processor(),
        device=device,
        base_model=base_model,
        harness=harness or harness_digest(),
    )
    made.write(folder)
    return made


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def checkout(root: Path) -> tuple[str | None, bool | None]:
    """Returns the commit of a git checkout, and whether its files differ from that; None for what is no checkout."""
    if not (root / ".git").exists():  # an installed package may lie inside the checkout of something else
        return None, None
    git = ["git", "-C", str(root), "--no-optional-locks"]
    try:
        said = [
            subprocess.run([*git, *asked], capture_output=True, text=True, timeout=20, check=True).stdout.strip()
            for asked in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.SubprocessError):
        return None, None
    return said[0], bool(said[1])


def processor() -> str:
    """Returns the name of the CPU."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


# Sources


def harness_digest() -> str:
    """Return the hash of the source of the harness, as it is on disk now."""
    root = Path(__file__).parents[1]
    return identities.digest({str(path.relative_to(root)): file_digest(*stamped(path)) for path in root.rglob("*.py")})


def stamped(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path), status.st_mtime_ns, status.st_size


def digest(cls: type) -> str:
    """Returns the hash of the modules in which a class and those that it inherits from are written, and of what these
    import of methods, of tasks, and of the package or the folder that they lie in.

    The harness itself, Python's own modules and other installed packages do not count: the versions and the commit say
    which they were.
    """
    if cls in digests:
        stamps, found = digests[cls]
        if all(stamp(name) == before for name, before in stamps.items()):
            return found
    names = module_names(cls)
    found = identities.key({name: module_digest(name) for name in names})
    digests[cls] = {name: stamp(name) for name in names}, found
    return found


# Of each class the files that its hash is of, as they were, and the hash: a matrix asks for it thousands of times.
digests: dict[type, tuple[dict[str, tuple[str, int, int]], str]] = {}


def module_names(cls: type) -> list[str]:
    """Returns the modules that count for a class."""
    names = [name for name in dict.fromkeys(base.__module__ for base in cls.__mro__) if top(name) not in NO_SOURCES]
    packages = {"baselines", "tasks", *map(top, names)}
    homes = {home(package) for package in packages} - {None}
    for name in names:  # which grows on the way
        for each in imports(name, *stamp(name)):
            ours = top(each) in packages or home(top(each)) in homes
            if ours and each not in names and top(each) not in NO_SOURCES:
                names.append(each)
    return names


def top(name: str) -> str:
    return name.partition(".")[0]


def home(package: str) -> Path | None:
    """Returns the folder that a package lies in; None where that is one of installed packages."""
    path = Path(stamp(package)[0])
    folder = path.parents[path.name == "__init__.py"] if path.name else None
    return None if folder is None or INSTALLED & set(folder.parts) else folder


def module_digest(name: str) -> str:
    """Returns the hash of a module's file as it is on disk now, and a word where it has none."""
    path, *changed = stamp(name)
    return file_digest(path, *changed) if path else "no file"


def stamp(name: str) -> tuple[str, int, int]:
    """Returns the file of a module, the time of its last change and its size; an empty name where there is none."""
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    try:
        found = os.stat(path)
    except OSError:
        return "", 0, 0
    return path, found.st_mtime_ns, found.st_size


@functools.cache
def file_digest(path: str, mtime_ns: int, size: int) -> str:
    return sha256(Path(path).read_bytes()).hexdigest()


@functools.cache
def imports(name: str, path: str, mtime_ns: int, size: int) -> list[str]:
    """Returns the modules in which is written what a module has imported as it was loaded."""
    try:
        tree = ast.parse(Path(path).read_bytes() if path.endswith(".py") else "")
    except (SyntaxError, ValueError):  # somebody is writing it; its own hash says that it is another one
        return []
    known, found = vars(sys.modules[name]) if name in sys.modules else {}, []
    for node in ast.walk(tree):  # what is not known is imported for type checkers, or when a function is called
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if (alias.asname or top(alias.name)) in known]
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), known.get("__package__"))
            called = (alias.asname or alias.name for alias in node.names)
            found += [written_in(known[each], source) for each in called if each in known]
    return list(dict.fromkeys(found))


def written_in(value: object, source: str) -> str:
    """Returns the module that says what an imported thing is; of a constant it is the one that it was imported from."""
    if isinstance(value, ModuleType):
        return value.__name__
    return value.__module__ if isinstance(value, type | FunctionType) else source


def named(components: Iterable[object], *tables: Mapping[str, type]) -> dict[str, type]:
    """Returns the classes of the components by the names that the tables give them."""
    names = {cls: name for table in tables for name, cls in table.items()}
    return {names[type(component)]: type(component) for component in components}


def others(made: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Returns the names of the components whose sources are not the same."""
    return sorted(name for name in made.keys() | present.keys() if made.get(name) != present.get(name))


def by_another_source(made: Mapping[str, str] | None, present: Mapping[str, str]) -> str | None:
    """Returns, as people are told, what was made by another source than the present one; None if nothing was. A record
    of what made it may be missing."""
    if made is None:
        return "made by a source that nobody noted"
    return f"made by another source: {', '.join(names)}" if (names := others(made, present)) else None


def by_another_base_model(made: str | None, present: str) -> str | None:
    """Return, in words for people, that an attempt began from another base model; None if it did not, or noted none."""
    return None if made in (None, present) else "begun from another base model"


def sources_in(tags: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the hashes of the source that made a run's numbers; None where no record of it was kept."""
    if "source" not in tags:
        return None
    return {key.removeprefix("source."): tag for key, tag in tags.items() if key.startswith("source.")}


# Attempts


def unnoted(folder: Path) -> Made:
    """Writes the record of an attempt of which there is none, so that it can be set aside as any other."""
    lines, _ = MetricsLog(folder).whole()
    started = lines[0]["time"] if lines else folder.stat().st_mtime
    made = Made(uuid.uuid4().hex, started, None, None, None, sources={}, versions={}, processor="", device="")
    made.write(folder)
    return made


def set_aside(folder: Path, made: Made) -> Path:
    """Moves what an attempt has left to a folder beside the cell's, so that the next begins with step 0.

    The record of what made it goes last: it says that something is left to move, should the process be killed half way.
    What has been moved before then stays, whatever was written in its place.
    """
    aside = folder.with_name(f"{folder.name}{ASIDE}{made.attempt[:12]}")
    with lock(folder / "mlflow.lock"):  # nobody sends to MLflow what is only half here
        files.write_text(aside / "config.yaml", (folder / "config.yaml").read_text())
        for path in sorted(folder.iterdir()):
            if path.name in STAYING:
                continue
            if not (aside / path.name).exists():
                path.rename(aside / path.name)
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        (folder / FILE).rename(aside / FILE)
    return aside


def earlier(folder: Path) -> list[Path]:
    """Returns the folders of the attempts at a cell that were set aside."""
    return sorted(folder.parent.glob(f"{folder.name}{ASIDE}*"))
