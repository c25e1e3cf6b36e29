"""Models by name: of the Hugging Face Hub, in a folder or a GGUF file, or made from a recipe, and any of these after a
warm start; imports no torch."""

from __future__ import annotations

import dataclasses
import importlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tasks
from harness.base import identities, safe_yaml
from harness.base.errors import UserError, nearest, short, shown
from harness.base.files import default_cache, make_cache_folder
from harness.base.hub import hub_errors, hub_reason
from harness.base.locks import lock
from harness.base.schema import typed
from harness.base.shape import Shape, read_model_config, shape_of_config
from harness.config import CONFIGS
from harness.rollout import digests, gguf
from harness.rollout.gguf import GgufFile
from harness.rollout.rendering import PLAIN, Chat
from harness.rollout.warm_start import VERSION, WarmStart
from tasks import Recipe

MODELS = CONFIGS / "models"
NEEDED = {  # parts of a Hugging Face folder: one file of each row
    "config.json": ("config.json",),
    "weights": ("*.safetensors",),
    "tokenizer": ("tokenizer.json", "tokenizer.model", "vocab.json"),
}
ADAPTER = "adapter_*"  # the files of peft
PICKLED = "pytorch_model*.bin"  # weights in a format that may run code while it is read
LOCAL = (".", "/", "~")  # the beginnings of paths, and of no name on the Hub
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)  # owner/name
MAKER = "harness.train.warm_start"  # by its name: training is a floor above, and only imported where it is needed
DOWNLOADED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "README.md")  # the last states the license


@dataclass(frozen=True)
class Model:
    """A model with either a path (a local folder or a name on the Hugging Face Hub) or a recipe, as for a GGUF file."""

    name: str
    path: str | None = None
    revision: str | None = None  # a branch, tag or commit on the Hub; None: its main branch
    recipe: Recipe | None = None
    chat: Chat = PLAIN
    stated: Shape | None = None  # from the model's file, since the model itself may not be downloaded yet

    def identity(self) -> dict[str, Any]:
        """Return the definition of the model and of its prompts, for the hash of a cell.

        A local folder is identified by its digest. A recipe or a name on the Hub identifies itself, since the model may
        not be on this machine yet; a cell records the digest of the weights that it started from.
        """
        definition = self.origin() if self.local is None else {"digest": digests.model_digest(self.local)}
        chat = self.chat.identity()
        return {**definition, "chat": chat} if chat else definition

    def origin(self) -> dict[str, Any]:
        """Return the recipe, or path and revision, for the hash in the cache."""
        if self.recipe is not None:
            return self.recipe.identity()
        if self.revision is None:
            return {"path": self.path}
        return {"path": self.path, "revision": self.revision}

    @property
    def local(self) -> Path | None:
        """The folder of a local model; None for a recipe or a name on the Hub."""
        if self.path is None or self.revision is not None or not Path(self.path).is_dir():
            return None
        return Path(self.path)

    @property
    def origin_model(self) -> Model:
        """The model that a warm start begins from; this one if it has none."""
        return self.recipe.base if isinstance(self.recipe, Warmed) else self

    @property
    def address(self) -> str:
        """The path as users write it, with the revision."""
        return f"{self.path}@{self.revision}" if self.revision is not None else str(self.path)

    def folder(self, cache: Path | None = None, say: Callable[[str], None] = lambda message: None) -> Path:
        """Return the Hugging Face folder; a model that is not here yet is made or downloaded."""
        if self.recipe is not None:
            return self.make(self.recipe, cache or default_cache(), say)
        assert self.path is not None
        if self.local is not None:
            return check_model_folder(self.local, self.name)
        return check_model_folder(download(self, self.path, say), self.name)

    def make(self, recipe: Recipe, cache: Path, say: Callable[[str], None]) -> Path:
        """Return the folder of a recipe's model in the cache; make it if it is missing or damaged."""
        folder = self.cache_folder(cache)
        if folder.is_dir() and digests.model_damage(folder) is None:
            return folder
        make_cache_folder(folder.parent)
        with lock(folder.with_name(f"{folder.name}.lock")):
            # Another process may have made the model while this one waited for the lock.
            damage = digests.model_damage(folder) if folder.is_dir() else None
            if folder.is_dir() and damage is None:
                return folder
            if damage is not None:
                say(f"{damage}; the model {self.name} is made again")
            say(f"making the model {self.name} ({self.summary()}), once; kept in {folder}")
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
            recipe.build(partial, say)
            digests.seal_model(partial)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        return folder

    def cache_folder(self, cache: Path) -> Path:
        # Several model files may name one GGUF file, which is converted once.
        name = self.recipe.path.stem if isinstance(self.recipe, GgufFile) else self.name
        return cache / "models" / f"{name}-{identities.key(self.origin())}"

    def digest(self, folder: Path) -> str:
        """Return the digest of the weights and tokenizer in a folder; for a model of the Hub, its commit."""
        if self.recipe is not None:
            return digests.digest_of_files(folder, digests.file_checksums(folder))
        # The Hub's client names the folder of a download after the commit.
        return digests.model_digest(folder) if self.local is not None else folder.name

    def present_folder(self) -> Path | None:
        """Return the folder if it is on this machine and complete; neither download nor make it."""
        folder: Path | None
        if self.path is not None:
            folder = self.local or downloaded_folder(self.path, self.revision)
        else:
            folder = self.cache_folder(default_cache())
            if digests.model_damage(folder) is not None:
                return None  # it will be made again
        if folder is None or not folder.is_dir() or missing_parts(folder):
            return None
        return folder

    def shape(self) -> Shape | None:
        """Return the shape that the recipe gives, or the folder if it is here, else that of the model's file."""
        if self.recipe is not None:
            return self.recipe.shape()
        folder = self.present_folder()
        return self.stated if folder is None else shape_of_config(read_model_config(folder))

    def context(self) -> int | None:
        """Return the most tokens of a prompt with its response, if the folder is here and states them."""
        folder = self.origin_model.present_folder()
        tokens = None if folder is None else read_model_config(folder).get("max_position_embeddings")
        return tokens if isinstance(tokens, int) else None

    def summary(self) -> str:
        return f"the Hugging Face model {self.address}" if self.recipe is None else self.recipe.summary()


@dataclass(frozen=True)
class Warmed:
    """A model after a warm start, as a recipe."""

    base: Model
    settings: WarmStart

    def identity(self) -> dict[str, Any]:
        return {"base": self.base.identity(), "warm_start": self.settings.identity(), "version": VERSION}

    def shape(self) -> Shape | None:
        return self.base.shape()

    def summary(self) -> str:
        return f"{self.base.summary()}, {self.settings.summary()}"

    def build(self, folder: Path, say: Callable[[str], None]) -> None:
        """Train the base model and save it as a Hugging Face folder."""
        base = self.base.folder(say=say)
        importlib.import_module(MAKER).make(self.settings, base, self.base.chat, folder, say)


# From a name to a model


def resolve(name: str) -> Model:
    """Return the model of a name: a file in configs/models/, the path of such a file, of a Hugging Face folder or of a
    GGUF file, `package:` with an installed package that has one, or a name on the Hub, optionally with `@` and a
    revision."""
    if name in model_names():
        return read_model_file(MODELS / f"{name}.yaml")
    is_yaml = Path(name).suffix in (".yaml", ".yml")
    if is_yaml and Path(name).is_file():
        return read_model_file(Path(name))
    if gguf.names_gguf(name):
        return Model(gguf.file_of(name).stem, recipe=GgufFile(name))
    if Path(name).is_dir():
        check_model_folder(Path(name), name)
        return Model(name=Path(name).resolve().name, path=str(Path(name).resolve()))
    if is_yaml or name.startswith(LOCAL):
        raise UserError(
            f"model {shown(name)} does not exist; it must be a YAML file, a Hugging Face folder or a .gguf file"
        )
    if HUB_NAME.fullmatch(name.partition("@")[0]):
        path, revision = split_revision(name)
        return Model(name=Path(path).name, path=path, revision=revision, stated=shipped_shapes().get(path))
    raise UserError(
        f"unknown model {shown(name)}; {nearest(name, model_names())}; or a YAML file, a folder, a .gguf file, "
        "package:NAME, or owner/name on the hub"
    )


def model_names() -> list[str]:
    return sorted(file.stem for file in MODELS.glob("*.yaml"))


def read_model_file(file: Path) -> Model:
    settings = safe_yaml.load_yaml(file)
    if not isinstance(settings, dict) or ("path" in settings) == ("recipe" in settings):
        optional = ", ".join(field.name for field in dataclasses.fields(Chat))
        raise UserError(
            f"{file} must have exactly one of the keys path (a Hugging Face folder, a .gguf file, package:NAME or a "
            f"name on the Hub) and recipe; optional are shape, warm_start and {optional}"
        )
    # The keys that are left are settings of prompts (Chat).
    path, recipe, shape, warm = (settings.pop(key, None) for key in ("path", "recipe", "shape", "warm_start"))
    for key, value in (("recipe", recipe), ("shape", shape), ("warm_start", warm)):
        if not isinstance(value, dict | None):
            raise UserError(f"{key} of {short(str(file))} is {shown(value)}; it must be a mapping of keys")
    if not isinstance(path, str | None):
        raise UserError(f"path of {short(str(file))} is {shown(path)}; it must be text")
    chat = typed(Chat(), settings, "")
    in_file = path is not None and gguf.names_gguf(path)
    if path is not None and not in_file:
        stated = None if shape is None else typed(Shape, shape, "shape.")
        where, revision = split_revision(path)
        if where.startswith(LOCAL) and not Path(where).is_dir():
            raise UserError(f"path of {short(str(file))} is {shown(where)}, and there is no such folder")
        model = Model(file.stem, path=where, revision=revision, chat=chat, stated=stated)
    elif shape is not None:
        raise UserError(f"{file} states the shape of a model that its recipe or its GGUF file states; leave it out")
    else:
        made = GgufFile(str(path)) if in_file else tasks.model_recipe(recipe or {})
        model = Model(file.stem, recipe=made, chat=chat)
    if warm is None:
        return model
    return Model(file.stem, recipe=Warmed(model, typed(WarmStart(), warm, "warm_start.")), chat=chat)


def split_revision(written: str) -> tuple[str, str | None]:
    """Split `owner/name@revision`; a local folder has no revision, even if its name contains an `@`."""
    path, at, revision = written.partition("@")
    if Path(written).is_dir() or not (at and HUB_NAME.fullmatch(path)):
        return written, None
    if Path(path).is_dir():
        raise UserError(f"model {written!r} names a revision, but {path} is a local folder, which has none")
    if not revision:
        raise UserError(f"model {written!r} has no revision after the @; write a branch, a tag or a commit, or no @")
    return path, revision


@cache
def shipped_shapes() -> dict[str, Shape]:
    """Return the shapes that the files in configs/models/ state, by the model's name on the Hub."""
    shipped = [read_model_file(file) for file in MODELS.glob("*.yaml")]
    return {model.path: model.stated for model in shipped if model.path is not None and model.stated is not None}


# Folders


def check_model_folder(folder: Path, name: str) -> Path:
    """Return the folder; raise UserError if it is not a complete Hugging Face model, or holds an adapter as well."""
    check_no_adapter(folder, name)
    missing = missing_parts(folder)
    if "weights" in missing and (pickled := next(folder.glob(PICKLED), None)):
        raise UserError(
            f"model {shown(name)} has pickled weights ({pickled.name}), which may run code when they are read; save "
            "them as safetensors, with save_pretrained of transformers on a machine that may run it"
        )
    if missing:
        raise UserError(
            f"model {name!r}: the folder {folder} is not a Hugging Face model, it has no {', no '.join(missing)}"
        )
    return folder


def check_no_adapter(folder: Path, name: str) -> None:
    """Refuse an adapter, also next to a whole model: a later training may have left either of them behind."""
    if not any(folder.glob(ADAPTER)):
        return
    merge = "merge it into its base with merge_and_unload of peft, and save that with its tokenizer"
    if all(path.match(ADAPTER) for path in folder.glob("*.safetensors")):
        raise UserError(f"model {shown(name)} holds an adapter and no whole model; {merge}")
    raise UserError(
        f"model {shown(name)} holds an adapter next to a whole model, and no date shows which of them is meant; move "
        f"the adapter away, or {merge}"
    )


def missing_parts(folder: Path) -> list[str]:
    return [part for part, patterns in NEEDED.items() if not any(any(folder.glob(pattern)) for pattern in patterns)]


def download(model: Model, path: str, say: Callable[[str], None]) -> Path:
    from huggingface_hub import snapshot_download

    if downloaded_folder(path, model.revision) is None:
        say(f"downloading the model {model.address} from the Hugging Face Hub")
    try:
        return Path(snapshot_download(path, revision=model.revision, allow_patterns=list(DOWNLOADED)))
    except hub_errors() as error:
        raise UserError(
            f"model {model.name!r}: {model.address} is not a local folder, and could not be downloaded from the "
            f"Hugging Face Hub: {hub_reason(error)}"
        ) from error


def downloaded_folder(path: str, revision: str | None) -> Path | None:
    """Return the folder of a model of the Hub if it has been downloaded before."""
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(path, "config.json", revision=revision)
    except ValueError:  # not a valid name on the Hub
        return None
    return Path(config).parent if isinstance(config, str) else None  # else None, or a marker for "does not exist"
