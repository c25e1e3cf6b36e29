"""Compares the trainer mode entrobench with `entrobench.Method`, on verl's own classes, and tests what it refuses."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from patience import HANG
from places import REPOSITORY
from ragged import case

import baselines
import entrobench
from harness.methods.composition import Method
from harness.methods.refusals import verl_refusal

pytest.importorskip("verl.trainer.ppo.v1", reason="needs the package verl; make test-verl runs it")

from verl.utils.config import validate_config
from verl_batches import BUDGET, Run, close, direct

from entrobench import verl as door

RUNNING = [name for name in baselines.METHODS if verl_refusal(Method.of(name, baselines.table())) is None]
SPECS = [*RUNNING, "grpo(kl_coef=0.3, normalise=constant)+clip_b+entropy_bonus", "dr_grpo+clip_b+sequence_mask"]


@pytest.mark.processes
def test_the_entry_point_registers_the_trainer_in_a_fresh_process() -> None:
    code = (
        "from verl.trainer.ppo.v1 import get_trainer_cls\n"
        "trainer = get_trainer_cls('entrobench')\n"
        "print(trainer.__module__, trainer.__name__)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=True)
    assert result.stdout.split() == ["entrobench.verl", "EntrobenchVerlTrainer"]


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("spec", SPECS)
def test_the_gradient_is_that_of_the_method(
    spec: str, updates: int, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    c = case(4, groups=4, size=8, longest=BUDGET)
    run = Run(c, settings(spec), monkeypatch, updates=updates, ranks=2)
    given = run.step()
    expected = direct(c, spec, run.order, door.rows_of_updates(32, 32 // updates, 2))
    assert len(given) == len(expected) == updates
    for of_run, of_method in zip(given, expected, strict=True):
        close(of_run, of_method)
    assert any(gradient.abs().max() > 1e-6 for gradient in given)


@pytest.mark.parametrize("spec", SPECS)
def test_rows_that_fill_a_batch_up_change_nothing(
    spec: str, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    c = case(4, groups=4, size=8, longest=BUDGET)
    run = Run(c, settings(spec), monkeypatch, ranks=2, padding=8)
    (given,) = run.step()
    (expected,) = direct(c, spec, [row for row in run.order if row >= 0], [list(range(32))])
    close(given, expected)


def test_verls_correction_for_the_engine_multiplies_the_weights(
    settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    c = case(4, groups=4, size=8, longest=BUDGET)
    plain, corrected = settings("clip_b"), settings("clip_b")
    corrected.algorithm.rollout_correction.rollout_is = "token"
    arrived = []
    for config in (plain, corrected):
        run = Run(c, config, monkeypatch)
        run.step()
        arrived.append(run.queue.get(run.batch.keys, "train"))
    log_ratio = arrived[0]["old_log_probs"].values() - arrived[0]["rollout_log_probs"].values()
    factor = log_ratio.exp().clamp(max=corrected.algorithm.rollout_correction.rollout_is_threshold)
    weights = [data["entrobench/weights"].values() for data in arrived]
    torch.testing.assert_close(weights[1], weights[0] * factor, rtol=1e-6, atol=0)


def test_the_memory_of_a_control_reaches_workers_logs_and_checkpoints(
    settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    c = case(4, groups=4, size=8, longest=BUDGET)
    config = settings("grpo+adaptive_entropy(target=5)")
    config.trainer.default_local_dir = str(tmp_path)
    run = Run(c, config, monkeypatch)
    before = run.trainer.method.state()
    run.step()
    after = run.trainer.method.state()
    assert run.workers.loss_fn.method.state() == before != after
    assert run.metrics["entrobench/entropy/mean"] == pytest.approx(c.old.entropy.mean().item())  # type: ignore[union-attr]
    assert {"actor/pg_loss", "actor/entrobench/clipped_high"} <= run.workers.metrics[0].keys()

    monkeypatch.setattr(door.PPOTrainerSync, "_save_checkpoint", lambda trainer: None)
    monkeypatch.setattr(door.PPOTrainerSync, "_load_checkpoint", lambda trainer: None)
    run.trainer._save_checkpoint()
    kept = tmp_path / "global_step_1" / "entrobench.json"
    assert json.loads(kept.read_text())["state"] == after
    run.trainer.method.load_state(before)
    run.trainer._load_checkpoint()
    assert run.trainer.method.state() == after

    kept.write_text(json.dumps({"method": "dapo", "state": {}}))
    with pytest.raises(entrobench.UserError, match=r"is of method dapo, not of grpo\+adaptive_entropy"):
        run.trainer._load_checkpoint()
    kept.unlink()
    with pytest.raises(entrobench.UserError, match=r"has no entrobench\.json"):
        run.trainer._load_checkpoint()


# Which methods run


@pytest.mark.parametrize("name", [name for name in baselines.METHODS if name != "dph_rl"])  # of our trainer alone
def test_a_method_is_refused_for_the_reason_that_the_list_gives(
    name: str, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = Method.of(name, baselines.table())
    reason = verl_refusal(method)
    if reason is None:
        assert door.EntrobenchVerlTrainer(settings(name)).method.spec == method.name
        return
    sentence = f"method {method.name} {reason}; allowed: `entrobench list methods --for verl`"
    with pytest.raises(entrobench.UserError, match=re.escape(sentence)):
        door.EntrobenchVerlTrainer(settings(name))
    # Without the refusal it would fail for that very reason.
    monkeypatch.setattr(door, "verl_refusal", lambda method: None)
    missing = {
        "needs the sums over squared": "give sum_p2 and sum_p2_logp",
        "needs log p among": "give min_p_logp",
        "needs the entropy among": "give likeliest_entropy",
        "compares the answers": "give answers",
        "reads how often": "give base_right",
        "looks at each whole mini-batch": "call for_step first",
    }
    (failure,) = [failure for beginning, failure in missing.items() if reason.startswith(beginning)]
    run = Run(case(4, groups=4, size=8, longest=BUDGET), settings(name), monkeypatch)
    with pytest.raises(entrobench.UserError, match=failure):
        run.step()


# Mistakes


@pytest.mark.parametrize(
    ("spec", "key", "value", "message"),
    [
        ("clip_v", None, None, "needs the sums over squared probabilities, which verl does not compute"),
        ("bapo", None, None, "looks at each whole mini-batch before its update"),
        ("grpo", "algorithm.rollout_correction.bypass_mode", True, "bypass_mode is True.*entropy before the update"),
        ("grpo", "actor_rollout_ref.rollout.n", 1, "rollout.n is 1; method grpo learns from groups of 2 and more"),
        ("grpo", "actor_rollout_ref.actor.shuffle", True, "shuffle is True.*set it to False"),
        ("grpo", "actor_rollout_ref.actor.clip_ratio_high", 0.28, "leave it at 0.2 and use the objective's clip_high"),
        ("grpo", "actor_rollout_ref.actor.use_kl_loss", True, "use_kl_loss is True.*set it to False"),
        ("grpo", "algorithm.use_pf_ppo", True, "use_pf_ppo is True.*set it to False"),
        ("m2po", "actor_rollout_ref.rollout.calculate_log_probs", False, "log_probs is False.*set it to True"),
        ("ppo", "algorithm.gamma", 0.99, "gamma is 0.99, but method ppo decides that; .* the objective ppo's gamma"),
        ("ppo", "algorithm.lam", 0.95, "lam is 0.95, but method ppo decides that; .* the objective ppo's lam"),
        ("sapo", "actor_rollout_ref.actor.tau_neg", 2.0, "tau_neg is 2.0, .* the objective sapo's tau_negative"),
        ("kl_cov", "actor_rollout_ref.actor.policy_loss.ppo_kl_coef", 1.0, "use the control kl_cov's coefficient"),
        ("grpo", "algorithm.adv_estimator", "gae", "does not use a critic: set algorithm.adv_estimator=grpo"),
        ("ppo", "algorithm.adv_estimator", "grpo", "needs a critic: set algorithm.adv_estimator=gae"),
        ("grpo(kl_coef=0.1)", "actor_rollout_ref.actor.use_kl_loss", False, "use_kl_loss is False.*set it to True"),
        ("grpo", "entrobench.method", None, "no method is given"),
        ("no_such_method", "actor_rollout_ref.rollout.n", 8, "no_such_method"),
    ],
)
def test_settings_that_contradict_a_method_are_refused(
    spec: str, key: str | None, value: Any, message: str, settings: Callable[..., Any]
) -> None:
    config = settings("grpo" if spec == "no_such_method" else spec)
    config.entrobench.method = spec
    if key is not None:
        door.OmegaConf.update(config, key, value)
    with pytest.raises(entrobench.UserError, match=message):
        door.EntrobenchVerlTrainer(config)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("uid", "the rollout batch has no uid"),
        ("entropy", "the rollout batch has no entropy"),
        ("rm_scores", "the reward of response .* is nan; allowed: finite numbers"),
        ("keys", "is one of several outputs of an agent loop"),
        ("one group", "groups have 7 to 9 responses; all must be of one size"),
        ("no groups", r"groups have 1 response\(s\); method grpo learns from groups of 2 and more"),
    ],
)
def test_batches_that_do_not_fit_are_refused(
    field: str, message: str, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(case(4, groups=4, size=8, longest=BUDGET), settings("grpo"), monkeypatch)
    batch = run.trainer._compute_old_log_prob(run.batch, {})
    for fields in run.queue.fields.values():
        if field == "rm_scores":
            fields[field] = fields[field] * float("nan")
        elif field == "no groups":
            fields["uid"] = f"u{fields['row'].item()}"
        else:
            fields.pop(field, None)
    if field == "keys":
        batch.keys[3] = "u0_1_1"
    if field == "one group":
        of_last = run.queue.fields[batch.keys[-1]]
        of_last["uid"] = "u0" if of_last["uid"] == "u1" else "u1"
    with pytest.raises(entrobench.UserError, match=message):
        run.trainer._compute_advantage(batch, {})


def test_a_trainer_looks_at_the_version_of_verl(settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "version", lambda package: "0.10.0")
    with pytest.warns(UserWarning, match=r"verl 0\.10\.0 is installed.* tested with verl 0\.9\.1"):
        door.EntrobenchVerlTrainer(settings("grpo"))
    monkeypatch.setattr(door, "version", lambda package: door.TESTED)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        door.EntrobenchVerlTrainer(settings("grpo"))
    assert not [warning for warning in caught if "was tested with" in str(warning.message)]


def test_the_example_is_a_configuration_of_verl(composed: Callable[..., Any]) -> None:
    text = (REPOSITORY / "examples" / "verl_clip_b.sh").read_text()
    command = text[text.index("python ") :].replace("\\\n", " ").replace('"$@"', "")
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "verl.trainer.main_ppo"]
    config = composed(*words[3:])
    validate_config(config, use_reference_policy=False, use_critic=False)
    method = door.method_loss(config).method
    door.check_settings(config, method)
    assert method.spec == "clip_b(share=0.02)"
    assert config.trainer.v1.trainer_mode == "entrobench"
