"""The models by name: a Hugging Face folder, or one that is made here from a recipe; imports no torch."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import tasks
from harness.base import identities, safe_yaml
from harness.base.errors import UserError, nearest, short, shown
from harness.base.files import default_cache
from harness.base.hub import hub_errors
from harness.base.locks import lock
from harness.base.schema import typed
from harness.base.shape import Shape, shape_of_config
from harness.base.shape import read_model_config as read_config
from harness.config import CONFIGS
from harness.rollout import digests
from harness.rollout.rendering import PLAIN, Chat
from tasks import Recipe

MODELS = CONFIGS / "models"
NEEDED = {  # of a Hugging Face folder: one file of each row
    "config.json": ("config.json",),
    "weights": ("*.safetensors",),
    "tokenizer": ("tokenizer.json", "tokenizer.model", "vocab.json"),
}
PICKLED = "pytorch_model*.bin"  # weights in a form that may run code when it is read
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)  # owner/name
DOWNLOADED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


def no_message(message: str) -> None:
    """Says nothing, where nobody needs to hear why it takes a while."""


@dataclass(frozen=True)
class Model:
    """A model of either a path (of a local folder, or a name on the Hugging Face hub) or a recipe."""

    name: str
    path: str | None = None
    revision: str | None = None  # on the hub: a branch, a tag or a commit; None: its main branch
    recipe: Recipe | None = None
    chat: Chat = PLAIN
    stated: Shape | None = None  # what its file says of a model that may not be here yet

    def identity(self) -> dict[str, Any]:
        """Return all that defines the model and how it is spoken to, for the hash of a cell.

        A local folder is its digest. A recipe or a name on the hub is itself, since nothing may be here yet; a cell
        records the digest that it began from.
        """
        chat = self.chat.identity()
        source = self.origin() if self.local is None else {"digest": digests.model_digest(self.local)}
        return source | ({"chat": chat} if chat else {})

    @property
    def local(self) -> Path | None:
        """The folder of a model that the user has; None for a recipe and a name on the hub."""
        return Path(self.path) if self.path is not None and self.revision is None and Path(self.path).is_dir() else None

    def digest(self, folder: Path) -> str:
        """Return the digest of weights and tokenizer in its folder; the commit of a model of the hub."""
        if self.recipe is not None:
            return digests.digest_of_files(folder, digests.file_checksums(folder))
        return digests.model_digest(folder) if self.local is not None else folder.name

    def origin(self) -> dict[str, Any]:
        """Returns where the weights come from, for the hash of the cache."""
        if self.recipe is not None:
            return self.recipe.identity()
        return {"path": self.path} | ({} if self.revision is None else {"revision": self.revision})

    @property
    def address(self) -> str:
        """Returns its path as people write it, with the revision."""
        return f"{self.path}@{self.revision}" if self.revision is not None else str(self.path)

    def folder(self, cache: Path | None = None, say: Callable[[str], None] = no_message) -> Path:
        """Returns its Hugging Face folder, made or downloaded when first needed."""
        if self.recipe is not None:
            return self.made(self.recipe, cache or default_cache(), say)
        assert self.path is not None
        if self.local is not None:
            return check_model_folder(self.local, self.name)
        return check_model_folder(download(self.path, self.revision, self.name, say), self.name)

    def made(self, recipe: Recipe, cache: Path, say: Callable[[str], None]) -> Path:
        folder = self.cached(cache)
        if folder.is_dir() and digests.model_damage(folder) is None:
            return folder
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the cache {cache} cannot be written ({error.strerror}); set ENTROBENCH_CACHE") from error
        with lock(folder.with_suffix(".lock")):
            wrong = digests.model_damage(folder) if folder.is_dir() else None
            if wrong is not None:
                say(f"{wrong}; the model {self.name} is made again")
            if wrong is not None or not folder.is_dir():  # another process may have made it while this one waited
                say(f"making the model {self.name} ({self.summary()}), once; kept in {folder}")
                partial = folder.with_suffix(".partial")
                shutil.rmtree(partial, ignore_errors=True)  # what a killed process left
                recipe.build(partial)
                digests.seal_model(partial)
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
        return folder

    def cached(self, cache: Path) -> Path:
        key = identities.key(self.origin())
        return cache / "models" / f"{self.name}-{key}"

    def here(self) -> Path | None:
        """Returns its folder if that is on this machine and complete, by a look at files alone."""
        if self.path is None:
            folder: Path | None = self.cached(default_cache())
        else:
            folder = self.local or downloaded_folder(self.path, self.revision)
        if self.path is None and folder is not None and digests.model_damage(folder) is not None:
            return None  # it will be made again
        return folder if folder is not None and folder.is_dir() and not missing_parts(folder) else None

    def parameters(self) -> int | None:
        """Counts the parameters by the headers of the weights.

        Returns None before its folder is here, and for weights without a header.
        """
        folder = self.here()
        files = sorted(folder.glob("*.safetensors")) if folder is not None else []
        return sum(map(parameters_in, files)) if files else None

    def shape(self) -> Shape | None:
        """Returns the shape that its folder states if it is here, else that of its file or its recipe."""
        folder = self.here()
        if folder is not None:
            return shape_of_config(read_config(folder))
        return self.stated if self.recipe is None else self.recipe.shape()

    def summary(self) -> str:
        return f"the Hugging Face model {self.address}" if self.recipe is None else self.recipe.summary()


def weights_header(file: Path) -> tuple[dict[str, Any], int]:
    """Returns what a file of weights says of its tensors, and the number of bytes before them."""
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        return json.loads(stream.read(min(length, file.stat().st_size))), length + 8


def parameters_in(file: Path) -> int:
    header, _ = weights_header(file)
    return sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def missing_parts(folder: Path) -> list[str]:
    return [what for what, patterns in NEEDED.items() if not any(any(folder.glob(p)) for p in patterns)]


def check_model_folder(folder: Path, name: str) -> Path:
    lacking = missing_parts(folder)
    if "weights" in lacking and (pickled := next(folder.glob(PICKLED), None)):
        raise UserError(
            f"model {shown(name)} has pickled weights ({pickled.name}), which may run code when they are read; save "
            "them as safetensors, with save_pretrained of transformers on a machine that may run it"
        )
    if lacking:
        raise UserError(
            f"model {name!r}: the folder {folder} is no Hugging Face model, it has no {', no '.join(lacking)}"
        )
    return folder


def downloaded_folder(path: str, revision: str | None) -> Path | None:
    """Returns where a model of the Hugging Face hub lies if it has been downloaded before."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(path, "config.json", revision=revision)
    except ValueError:  # no name that the hub could have
        return None
    return Path(found).parent if isinstance(found, str) else None


def download(path: str, revision: str | None, name: str, say: Callable[[str], None]) -> Path:
    from huggingface_hub import snapshot_download

    address = path if revision is None else f"{path}@{revision}"
    if downloaded_folder(path, revision) is None:
        say(f"fetching the model {address} from the Hugging Face hub")
    try:
        return Path(snapshot_download(path, revision=revision, allow_patterns=list(DOWNLOADED)))
    except hub_errors() as error:
        raise UserError(
            f"model {name!r}: {address} is neither a local folder nor to be had from the Hugging Face hub: "
            f"{str(error).splitlines()[0]}"
        ) from error


def model_names() -> list[str]:
    return sorted(file.stem for file in MODELS.glob("*.yaml"))


def resolve(name: str) -> Model:
    """Finds a model: by the name of a file in configs/models/, by the path of such a file or of a Hugging Face folder,
    or by its name on the Hugging Face hub, which may end in `@` and a revision."""
    if name in model_names():
        return read_model_file(MODELS / f"{name}.yaml")
    if Path(name).suffix == ".yaml" and Path(name).is_file():
        return read_model_file(Path(name))
    if Path(name).is_dir():
        check_model_folder(Path(name), name)
        return Model(name=Path(name).resolve().name, path=str(Path(name).resolve()))
    if Path(name).suffix != ".yaml" and HUB_NAME.fullmatch(name.partition("@")[0]):
        path, revision = split_revision(name)
        return Model(name=Path(path).name, path=path, revision=revision, stated=shipped_shapes().get(path))
    raise UserError(
        f"unknown model {shown(name)}; {nearest(name, model_names())}; or a YAML file, a folder, or owner/name on the "
        "hub"
    )


def split_revision(written: str) -> tuple[str, str | None]:
    """Divides `owner/name@revision`; a local folder has no revision, whatever its name."""
    path, at, revision = written.partition("@")
    if Path(written).is_dir() or not (at and HUB_NAME.fullmatch(path)):
        return written, None
    if Path(path).is_dir():
        raise UserError(f"model {written!r} names a revision, but {path} is a local folder, which has none")
    if not revision:
        raise UserError(f"model {written!r} names no revision; write a branch, a tag or a commit behind the @, or no @")
    return path, revision


@cache
def shipped_shapes() -> dict[str, Shape]:
    """Returns the shapes that the files in configs/models/ state, by the model's name on the hub."""
    known = [read_model_file(file) for file in MODELS.glob("*.yaml")]
    return {model.path: model.stated for model in known if model.path is not None and model.stated is not None}


def read_model_file(file: Path) -> Model:
    given = safe_yaml.load(file)
    if not isinstance(given, dict) or ("path" in given) == ("recipe" in given):
        raise UserError(
            f"{file} must hold one key, path (of a Hugging Face folder, or its name on the hub) or recipe; beside it "
            f"may stand shape and {', '.join(each.name for each in dataclasses.fields(Chat))}"
        )
    path, recipe, shape = (given.pop(key, None) for key in ("path", "recipe", "shape"))
    for key, stated in (("recipe", recipe), ("shape", shape)):
        if not isinstance(stated, dict | None):
            raise UserError(f"{key} of {short(str(file))} is {shown(stated)}; it must be a mapping of keys")
    if not isinstance(path, str | None):
        raise UserError(f"path of {short(str(file))} is {shown(path)}; it must be text")
    chat = typed(Chat(), given, "")
    if path is not None:
        found = None if shape is None else typed(Shape, shape, "shape.")
        where, revision = split_revision(path)
        return Model(file.stem, path=where, revision=revision, chat=chat, stated=found)
    if shape is not None:
        raise UserError(f"{file} states the shape of a model that is made by its recipe; leave it out")
    return Model(file.stem, recipe=tasks.model_recipe(recipe or {}), chat=chat)
