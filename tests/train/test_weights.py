"""Each rank reads its own rows of a model's weights: the same bits as from_pretrained, without gaps."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from companions import on_ranks
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

from harness.base.errors import UserError
from harness.config import Hardware, Train
from harness.train import weights
from harness.train.policy import Critic, Learner, Policy

SIZES = {
    "vocab_size": 83,  # odd, so that the ranks have unequal shares
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
ARGUMENTS = (Train(), 1.0, "cpu", torch.float32, Hardware())


def models(folder: Path) -> list[Path]:
    """Make a tied model, one in several files of another type, and one whose files hold no head and no prefix."""
    torch.manual_seed(0)
    tied = Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=True, **SIZES))
    tied.generation_config.temperature = 0.25
    tied.generation_config.do_sample = True
    tied.save_pretrained(folder / "tied")
    untied = Qwen3ForCausalLM(Qwen3Config(tie_word_embeddings=False, head_dim=8, **SIZES))
    untied.to(torch.bfloat16).save_pretrained(folder / "untied", max_shard_size="4KB")
    assert len(list((folder / "untied").glob("*.safetensors"))) > 2
    tied.base_model.save_pretrained(folder / "body")
    config = json.loads((folder / "tied" / "config.json").read_text())
    (folder / "body" / "config.json").write_text(json.dumps(config))
    return [folder / name for name in ("tied", "untied", "body")]


def mine(learner: Learner) -> dict[str, torch.Tensor]:
    assert all(isinstance(weight, DTensor) for weight in learner.weights.values())
    return {name: weight.to_local() for name, weight in learner.weights.items()}  # type: ignore[attr-defined]


def load_on_rank(rank: int, folder: Path) -> dict[str, tuple[Any, ...]]:
    loaded = {}
    for path in (folder / name for name in ("tied", "untied", "body")):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            policy, critic = Policy(path, *ARGUMENTS), Critic(path, Train(), 1e-3, "cpu", torch.float32, Hardware())
        assert "reads all" not in output.getvalue()
        frequencies = policy.module.model.rotary_emb.inv_freq
        tied = policy.module.lm_head.weight is policy.module.model.embed_tokens.weight
        assert tied == (path.name != "untied")
        policy.save(folder / f"{path.name} saved")
        loaded[path.name] = (mine(policy), mine(critic), frequencies)
    return loaded


@pytest.mark.processes
def test_load_model_on_two_ranks(tmp_path: Path) -> None:
    paths = models(tmp_path)
    by_rank = on_ranks(load_on_rank, tmp_path)
    for path in paths:
        policy = weights.load_model(path)
        body = AutoModel.from_pretrained(path, dtype=torch.float32)
        critic = {f"body.{name}": weight for name, weight in body.named_parameters()}
        critic |= {"head.weight": torch.zeros(1, 16), "head.bias": torch.zeros(1)}
        for rank in range(2):
            of_policy, of_critic, frequencies = by_rank[rank][path.name]
            for shards, all_of_it in ((of_policy, dict(policy.named_parameters())), (of_critic, critic)):
                assert shards.keys() == all_of_it.keys()
                for name, weight in all_of_it.items():
                    rows = -(-len(weight) // 2)  # of the first rank
                    assert torch.equal(shards[name], weight.detach()[rank * rows : (rank + 1) * rows]), name
                    assert shards[name].dtype == torch.float32
            assert torch.equal(frequencies, policy.model.rotary_emb.inv_freq)
        if path.name != "body":  # which has no settings for generation
            policy.save_pretrained(tmp_path / f"{path.name} whole")
            saved, whole = (content(tmp_path / f"{path.name} {way}") for way in ("saved", "whole"))
            assert saved == whole
            assert "generation_config.json" in saved


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_weights_that_no_file_has_are_missed(tmp_path: Path) -> None:
    tied, untied, body = models(tmp_path)
    names = dict(weights.load_model(tied).named_parameters()).keys()
    assert weights.stored(weights.load_model(tied), body).keys() == names
    model = weights.load_model(untied)
    lacking = dict(model.named_parameters()).keys() - weights.stored(model, body)
    norms = {f"model.layers.{layer}.self_attn.{name}_norm.weight" for layer in range(3) for name in "qk"}
    assert lacking == {"lm_head.weight", *norms}


@pytest.mark.parametrize("kind", [AutoConfig, AutoModel, AutoTokenizer])
def test_code_in_a_folder_of_a_model_is_never_run(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No question is asked either, because input could come from anywhere."""
    names = {"AutoConfig": "own.Config", "AutoModel": "own.Model", "AutoTokenizer": ["own.Tokenizer", None]}
    stated = {"model_type": "own", "auto_map": names, "tokenizer_class": "Own"}
    for file in ("config.json", "tokenizer_config.json"):
        (tmp_path / file).write_text(json.dumps(stated))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UserError, match=r"^model .* (asks for code of its own|cannot be read)"):
        weights.opened(kind, tmp_path)
    assert not (tmp_path / "ran").exists()
    assert sys.stdin.read() == "y\n"


def folder_of_a_model(folder: Path) -> Path:
    """Save a small model with a tokenizer of three words."""
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=True, **SIZES)).save_pretrained(folder)
    inner = Tokenizer(WordLevel({"a": 0, "b": 1, "c": 2}, "a"))
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(folder)
    return folder


def change(folder: Path, name: str, **changes: Any) -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | changes))


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("kind", "harm", "sentence"),
    [
        (AutoModelForCausalLM, cut, "SafetensorError: .*[Ii]ncomplete"),
        (AutoConfig, lambda folder: (folder / "config.json").write_text("{"), "OSError: .* not a valid JSON file"),
        (AutoTokenizer, lambda folder: change(folder, "tokenizer.json", model={"type": "None"}), "Exception: "),
    ],
)
def test_opened_names_the_model(kind: Any, harm: Any, sentence: str, tmp_path: Path) -> None:
    folder = folder_of_a_model(tmp_path / "m")
    assert weights.opened(kind, folder) is not None
    harm(folder)
    with pytest.raises(UserError, match=rf"^model .*/m cannot be read by {kind.__name__}: {sentence}"):
        weights.opened(kind, folder)


def test_load_model_shows_no_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of_a_model(tmp_path / "m")
    monkeypatch.setattr(logging, "_tqdm_active", True)
    capfd.readouterr()
    weights.load_model(folder)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("harm", [cut, lambda folder: (folder / "model.safetensors").write_bytes(b"no weights at all")])
def test_load_model_names_an_unreadable_file(harm: Any, tmp_path: Path) -> None:
    folder = folder_of_a_model(tmp_path / "m")
    model = weights.load_model(folder)
    harm(folder)
    with pytest.raises(UserError, match=r"^model .*/m cannot be read: model\.safetensors: ."):
        weights.stored(model, folder)


def test_fill_names_a_tensor_of_another_shape(tmp_path: Path) -> None:
    folder = folder_of_a_model(tmp_path / "m")
    sentence = r"^the tensors in .*/m cannot be read: ValueError: .*\[24, 16\].*\[25, 16\].* model\.layers\.0\.mlp\.up"
    with pytest.raises(UserError, match=sentence):
        weights.fill({"model.layers.0.mlp.up_proj.weight": torch.zeros(25, 16)}, folder)


def outline_on_rank(rank: int, folder: Path) -> str:
    """Load a model whose files lack weights, and return what this rank prints with the error."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.raises(UserError) as error:
        weights.outline(folder / "m", AutoModelForCausalLM)
    return f"{output.getvalue()}{error.value}"


@pytest.mark.processes
def test_load_model_warns_once(tmp_path: Path) -> None:
    folder = folder_of_a_model(tmp_path / "m")
    lacking(folder, "model.norm.weight")
    first, second = on_ranks(outline_on_rank, tmp_path)
    assert first == f"each of 2 ranks reads all of {folder}: its safetensors files lack weights\n{second}"
    assert "lacks the weights model.norm.weight" in second


WIDE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
DROPS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    # Modules, attention by attribute, a skipped layer, and a field that the forward pass reads.
    "gpt2": ({"n_embd": 16, "n_layer": 2, "n_head": 2}, {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2}),
    "llama": ({**WIDE, "intermediate_size": 16}, {"attention_dropout": 0.3}),
    "opt": ({**WIDE, "ffn_dim": 16, "word_embed_proj_dim": 16}, {"dropout": 0.2, "layerdrop": 0.4}),
    "falcon": (WIDE, {"hidden_dropout": 0.2, "attention_dropout": 0.2}),
    "gpt_neox": ({**WIDE, "intermediate_size": 16}, {"hidden_dropout": 0.2, "attention_dropout": 0.2}),
}


@pytest.mark.parametrize("kind", DROPS)
def test_learner_dropout(kind: str, tmp_path: Path) -> None:
    """Expect two passes in training mode to agree, whichever way the model drops."""
    sizes, rates = DROPS[kind]
    config = AutoConfig.for_model(kind, vocab_size=31, bos_token_id=1, eos_token_id=2, **sizes, **rates)
    model = AutoModelForCausalLM.from_config(config).train()
    tokens = torch.randint(31, (4, 9), generator=torch.Generator().manual_seed(0))
    assert not torch.equal(model(input_ids=tokens).logits, model(input_ids=tokens).logits), "dropout is on"
    model.save_pretrained(tmp_path)
    policy = Policy(tmp_path, *ARGUMENTS)
    assert policy.module.training
    assert rates.items() <= policy.dropout.items()
    assert torch.equal(policy.module(input_ids=tokens).logits, policy.module(input_ids=tokens).logits)


def lacking(folder: Path, *names: str, **more: torch.Tensor) -> Path:
    """Take weights out of a model's file, and add others."""
    file = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if name not in names}
    save_file({**tensors, **more}, file, {"format": "pt"})
    return folder


def test_a_folder_with_other_weights_than_its_model_is_refused(tmp_path: Path) -> None:
    tied, _, body = models(tmp_path)
    change(tied, "config.json", tie_word_embeddings=False)
    sentence = r"^model .*/tied lacks the weights lm_head.weight, .*; if its head is the embedding, set tie_"
    with pytest.raises(UserError, match=sentence):
        weights.load_model(tied)
    other = folder_of_a_model(tmp_path / "other")
    change(other, "config.json", intermediate_size=25)
    with pytest.raises(UserError, match=r"/other has .* of shape \[16, 24\], and by config.json it is \[16, 25\]$"):
        weights.load_model(other)
    folder = lacking(folder_of_a_model(tmp_path / "m"), "model.norm.weight", "model.layers.0.mlp.up_proj.weight")
    with pytest.raises(UserError, match=r"^model .*/m lacks the weights model.layers.0.* and 1 more, without which"):
        Policy(folder, *ARGUMENTS)
    lacking(body, "norm.weight", "model.norm.weight")
    with pytest.raises(UserError, match=r"/body lacks the weights norm.weight, without which it would be random$"):
        Critic(body, Train(), 1e-3, "cpu", torch.float32, Hardware())


def test_a_folder_with_further_weights_is_refused_unless_only_its_body_is_read(tmp_path: Path) -> None:
    folder = lacking(folder_of_a_model(tmp_path / "m"), **{"model.layers.7.mlp.up_proj.weight": torch.zeros(2)})
    with pytest.raises(UserError, match=r"^model .*/m has the weights model.layers.7.mlp.up_proj.weight, which Qwen"):
        weights.load_model(folder)
    Critic(folder, Train(), 1e-3, "cpu", torch.float32, Hardware())
