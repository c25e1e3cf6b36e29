"""Every metric that is logged, with its unit and its meaning: the table behind docs/metrics.md; no torch.

`tests/test_references.py` compares it with the metrics that real steps log, so a new metric needs a line here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NATS = "nats"
SECONDS = "seconds"
TOKENS = "tokens"
TOKEN_SHARE = "share of tokens"
RESPONSE_SHARE = "share of responses"
NO_UNIT = ""

# The parts of a key that differ from run to run.
PLACEHOLDERS = {
    "component": "the name of an objective or a control in the method, such as `clip_b`",
    "control": "the name of a control in the method",
    "number": "the name that the component gives to a number",
    "task": "an evaluation task, such as `countdown`",
    "k": "1, 2, 4 ... up to the samples of a problem",
    "n": "the samples of a problem, `eval.samples`",
    "verdict": "`right`, `wrong`, `unparsed`, `timeout` or `error`",
    "level": "`token` or `sequence`",
    "quadrant": "`positive_above`, `positive_below`, `negative_above`, `negative_below`: signs of A and of S* - N",
    "sign": "`positive` or `negative`",
    "statistic": "`mean`, `std`, or the quantiles `q01`, `q50`, `q99`",
}

# The metrics that a page draws.
DRAWN = re.compile(
    r"entropy/(mean|answer)|reward/(mean|groups_without_signal)|ratio/clipped_(low|high)"
    r"|responses/(length|truncated|distinct_answers|after_answer)"
    r"|weights/dropped(_positive|_negative)?|dynamics/(positive|negative)_(above|below)/(share|push)|time/\w+_s"
)

STEP_0 = "at step 0"
EVALUATION = "at each evaluation"
MLFLOW = "in MLflow only"
SUM_P2 = "`dynamics.every` above 0, and methods that need sum p^2"


@dataclass(frozen=True)
class LoggedMetric:
    """One metric, or a family of metrics whose keys differ in their placeholders."""

    key: str
    unit: str
    meaning: str
    condition: str = ""  # of its being logged; empty: at every training step


@dataclass(frozen=True)
class MetricSection:
    """A part of the reference: metrics of one subject."""

    title: str
    about: str
    metrics: tuple[LoggedMetric, ...]


ENTROPY = MetricSection(
    "Entropy",
    "Over the full vocabulary, at the sampling temperature, of the policy before the update.",
    (
        LoggedMetric("entropy/mean", NATS, "mean over all response tokens"),
        LoggedMetric(
            "entropy/answer",
            NATS,
            "mean over the tokens up to the end of each answer; a response without an answer counts as a whole",
        ),
    ),
)

RESPONSES = MetricSection(
    "Rewards and responses",
    "Of the rollout batch that the step trains on.",
    (
        LoggedMetric(
            "reward/mean", RESPONSE_SHARE, "verified as right, before a control shapes the rewards; or their mean score"
        ),
        LoggedMetric("reward/groups_without_signal", "share of groups", "all responses have the same reward"),
        LoggedMetric(
            "responses/distinct", RESPONSE_SHARE, "distinct responses of a group, by tokens; mean over groups"
        ),
        LoggedMetric("responses/distinct_answers", RESPONSE_SHARE, "distinct answers of a group; mean over groups"),
        LoggedMetric("responses/length", TOKENS, "mean length of a response"),
        LoggedMetric("responses/truncated", RESPONSE_SHARE, "cut off by `rollout.max_new_tokens`"),
        LoggedMetric("responses/after_answer", RESPONSE_SHARE, "text follows the answer"),
        LoggedMetric("verdicts/{verdict}", RESPONSE_SHARE, "with this verdict", "if the verdict occurs in the step"),
    ),
)

UPDATE = MetricSection(
    "Advantages, weights and updates",
    "Advantages and weights are fixed before the first update of a step. Ratios and gates are over the tokens that "
    "were trained on, in all updates of the step.",
    (
        LoggedMetric("advantages/std", NO_UNIT, "population deviation of the advantages over tokens"),
        LoggedMetric("advantages/zero", TOKEN_SHARE, "advantage of exactly 0"),
        LoggedMetric("weights/mean", NO_UNIT, "mean weight of a token, all controls multiplied"),
        LoggedMetric("weights/dropped", TOKEN_SHARE, "weight 0"),
        LoggedMetric("weights/dropped_positive", TOKEN_SHARE, "weight 0 and a positive advantage"),
        LoggedMetric("weights/dropped_negative", TOKEN_SHARE, "weight 0 and a negative advantage"),
        LoggedMetric("weights/{control}/dropped", TOKEN_SHARE, "weight 0 from this control", "controls with `weights`"),
        LoggedMetric(
            "mass/{sign}",
            NO_UNIT,
            "positive or negative gradient mass (m_S and m_F of arXiv:2607.01490): mean over all tokens of the weight "
            "times the advantage's size, of advantages of this sign",
        ),
        LoggedMetric(
            "mass/{sign}_hard", NO_UNIT, "part of it from problems of which at most half of the responses are right"
        ),
        LoggedMetric(
            "peaks/{sign}",
            TOKEN_SHARE,
            "p_y at least sum p^2, its expectation, and an advantage of this sign (arXiv:2606.16154)",
            SUM_P2,
        ),
        LoggedMetric("valleys/{sign}", TOKEN_SHARE, "p_y below it, and an advantage of this sign", SUM_P2),
        LoggedMetric("gates/closed_{control}", TOKEN_SHARE, "gate of 0 from this control", "controls with `gate`"),
        LoggedMetric("ratio/mean", NO_UNIT, "mean importance ratio to the policy before the update"),
        LoggedMetric("ratio/max", NO_UNIT, "largest ratio"),
        LoggedMetric("ratio/min", NO_UNIT, "smallest ratio"),
        LoggedMetric("ratio/clipped_low", TOKEN_SHARE, "clipped by the objective at the low side"),
        LoggedMetric(
            "ratio/clipped_high", TOKEN_SHARE, "clipped by the objective at the high side, or stopped by its dual clip"
        ),
        LoggedMetric("loss/policy", NO_UNIT, "mean loss of the updates"),
        LoggedMetric("gradient/norm", NO_UNIT, "mean norm of the gradient of the updates, before clipping"),
        LoggedMetric("loss/base", NO_UNIT, "mean loss of responses of the base model", "methods with `base_term`"),
        LoggedMetric("loss/critic", NO_UNIT, "mean loss of the critic's updates", "objectives with a critic"),
        LoggedMetric("gradient/critic_norm", NO_UNIT, "mean norm of the critic's gradient", "objectives with a critic"),
    ),
)

METHODS = MetricSection(
    "Methods",
    "The sections of [methods](methods.md) name the numbers of the methods of this repository.",
    (
        LoggedMetric(
            "{component}/{number}",
            "of the component",
            "a number of its verb `metrics`, from before the update; or the present value of an option that changes",
            "components with `metrics` or a schedule",
        ),
        LoggedMetric(
            "updates/{component}/{number}",
            "of the component",
            "mean of a column of its verb `update_metrics`, over the tokens that were trained on",
            "components with `update_metrics`",
        ),
        LoggedMetric(
            "state/{control}/{number}",
            "of the control",
            "a number of its memory after the step",
            "controls with `remembered`",
        ),
    ),
)

MISMATCH = MetricSection(
    "Mismatch of trainer and engine",
    "Over the trainer's minus the engine's log-probabilities of the sampled tokens, before any correction "
    "([rollouts.md](rollouts.md#trainer-and-engine-how-far-they-differ)).",
    (
        LoggedMetric("mismatch/mean", NATS, "mean size"),
        LoggedMetric("mismatch/p99", NATS, "99th percentile of the size"),
        LoggedMetric("mismatch/max", NATS, "largest size"),
        LoggedMetric("mismatch/k3", NATS, "k3 estimate of KL(engine, trainer)"),
        LoggedMetric(
            "mismatch/beyond",
            "share of tokens or responses",
            "ratio outside of the bounds of `correction`, at its level",
        ),
        LoggedMetric("mismatch/{level}_ratio_mean", NO_UNIT, "mean ratio of trainer to engine"),
        LoggedMetric("mismatch/{level}_ratio_p99", NO_UNIT, "99th percentile of the ratio"),
        LoggedMetric("mismatch/{level}_ratio_max", NO_UNIT, "largest ratio"),
        LoggedMetric(
            "mismatch/{level}_ess",
            "share of tokens or responses",
            "effective sample size of the ratios, (mean ratio)^2 / mean squared ratio",
        ),
    ),
)

AMOUNTS = MetricSection(
    "Problems, samples and tokens",
    "Over all ranks.",
    (
        LoggedMetric("tokens/trained", TOKENS, "response tokens of the rollout batch"),
        LoggedMetric("tokens/generated", TOKENS, "response tokens sampled for the step, with those set aside"),
        LoggedMetric("tokens/generated_total", TOKENS, "the same for all steps so far"),
        LoggedMetric(
            "rollout/lag", "steps", "steps of the policy since it sampled the rollout batch", "`rollout.lag` above 0"
        ),
        LoggedMetric("resample/batches", "draws", "draws of the step", "`train.resample`"),
        LoggedMetric("resample/filled", "groups", "groups without signal that filled the step up", "`train.resample`"),
        LoggedMetric(
            "resample/reward_mean",
            RESPONSE_SHARE,
            "right among all that was drawn, with the groups set aside",
            "`train.resample`",
        ),
        LoggedMetric("problems/given", "problems", "in the training split", STEP_0),
        LoggedMetric("problems/kept", "problems", "trained on", STEP_0),
        LoggedMetric(
            "problems/too_long",
            "problems",
            "left out for the length of their prompts",
            f"{STEP_0}, with `rollout.max_prompt_tokens`",
        ),
        LoggedMetric("problems/too_hard", "problems", "left out for a low pass rate", f"{STEP_0}, with `train.filter`"),
        LoggedMetric(
            "problems/too_easy", "problems", "left out for a high pass rate", f"{STEP_0}, with `train.filter`"
        ),
    ),
)

TIME = MetricSection(
    "Time",
    "Seconds of each phase of a step on the first rank, by the clock.",
    (
        LoggedMetric("time/rollout_s", SECONDS, "waiting for sampled responses"),
        LoggedMetric("time/verify_s", SECONDS, "judging answers after the sampling has ended"),
        LoggedMetric("time/judging_s", SECONDS, "judging answers in total, most of it during the sampling"),
        LoggedMetric("time/stats_s", SECONDS, "token statistics, advantages and weights, before the first update"),
        LoggedMetric("time/update_s", SECONDS, "updates of the policy"),
        LoggedMetric("time/critic_s", SECONDS, "updates of the critic", "objectives with a critic"),
        LoggedMetric("time/dynamics_s", SECONDS, "the instrument of entropy dynamics", "`dynamics.every` above 0"),
        LoggedMetric("time/sync_s", SECONDS, "loading the new weights into the engine, with the proof of it"),
        LoggedMetric(
            "time/evaluate_s", SECONDS, "the evaluation; about 0 where there is none", "at every step, also 0"
        ),
    ),
)

EVERY_STEP = "`dynamics.every` above 0"
MEASURED = "every `dynamics.every` steps"
DYNAMICS = MetricSection(
    "Entropy dynamics",
    "Predicted and measured change of the entropy over the updates of a step ([dynamics.md](dynamics.md)). Predictions "
    "are to first order, at ratio 1, from the gradient of the method's real loss.",
    (
        LoggedMetric("dynamics/predicted", "nats per unit of logit step", "predicted mean change", EVERY_STEP),
        LoggedMetric("dynamics/measured", NATS, "mean change of the entropy of the same tokens", MEASURED),
        LoggedMetric("dynamics/correlation", NO_UNIT, "of predicted and measured change over tokens", MEASURED),
        LoggedMetric(
            "dynamics/correlation_sequences", NO_UNIT, "of their means over each response, over responses", MEASURED
        ),
        LoggedMetric(
            "dynamics/slope",
            "logit step",
            "common step that explains the measured change best, by least squares",
            MEASURED,
        ),
        LoggedMetric("dynamics/s_star/{statistic}", NATS, "of S* over tokens", EVERY_STEP),
        LoggedMetric("dynamics/baseline/{statistic}", NATS, "of N over tokens", EVERY_STEP),
        LoggedMetric("dynamics/deviation/{statistic}", NATS, "of S* - N over tokens", EVERY_STEP),
        LoggedMetric("dynamics/{quadrant}/share", TOKEN_SHARE, "in the quadrant", EVERY_STEP),
        LoggedMetric("dynamics/{quadrant}/dropped", TOKEN_SHARE, "in the quadrant and of weight 0", EVERY_STEP),
        LoggedMetric(
            "dynamics/{quadrant}/push",
            "nats per unit of logit step",
            "part of the quadrant's kept tokens in the predicted mean change",
            EVERY_STEP,
        ),
        LoggedMetric(
            "dynamics/{quadrant}/push_dropped",
            "nats per unit of logit step",
            "part that the surrogate of its dropped tokens would have had",
            EVERY_STEP,
        ),
    ),
)

EVALUATIONS = MetricSection(
    "Evaluation",
    "Means over the problems of a task, with `eval.samples` responses to each; the scores are defined in "
    "[statistics.md](statistics.md).",
    (
        LoggedMetric("eval/{task}/avg", RESPONSE_SHARE, "right: Avg@K", EVALUATION),
        LoggedMetric(
            "eval/{task}/pass@{k}",
            "share of problems",
            "at least one right among k responses, estimated without bias",
            EVALUATION,
        ),
        LoggedMetric("eval/{task}/maj@{n}", "share of problems", "the most frequent answer is right", EVALUATION),
        LoggedMetric("eval/{task}/right_distinct", "answers", "distinct right answers to a problem", EVALUATION),
        LoggedMetric("eval/{task}/distinct_answers", RESPONSE_SHARE, "distinct answers to a problem", EVALUATION),
        LoggedMetric("eval/{task}/distinct", RESPONSE_SHARE, "distinct responses to a problem, by tokens", EVALUATION),
        LoggedMetric(
            "eval/{task}/coverage",
            "share of right answers",
            "distinct right answers among all that a problem has",
            f"{EVALUATION}, for tasks that can count them",
        ),
        LoggedMetric("eval/{task}/after_answer", RESPONSE_SHARE, "text follows the answer", EVALUATION),
        LoggedMetric("eval/{task}/unparsed", RESPONSE_SHARE, "no answer could be read", EVALUATION),
        LoggedMetric("eval/{task}/truncated", RESPONSE_SHARE, "cut off by the limit of tokens", EVALUATION),
        LoggedMetric("eval/{task}/length", TOKENS, "mean length of a response", EVALUATION),
        LoggedMetric("eval/{task}/characters", "characters", "mean length of a response", EVALUATION),
    ),
)

IN_MLFLOW = MetricSection(
    "In MLflow only",
    "MLflow allows few signs in names, so `pass@16` is `pass_at_16` there. Final numbers are added to the run of each "
    "finished cell when the leaderboard is written; with several evaluation tasks their names begin with "
    "`final/{task}/`.",
    (
        LoggedMetric("final/avg_at_k", RESPONSE_SHARE, "Avg@K of the final evaluation", MLFLOW),
        LoggedMetric("final/pass_at_{k}", "share of problems", "headline Pass@K of the final evaluation", MLFLOW),
        LoggedMetric("final/delta_avg_at_k", NO_UNIT, "difference from the baseline's cell of the same seed", MLFLOW),
        LoggedMetric(
            "final/delta_pass_at_{k}", NO_UNIT, "difference from the baseline's cell of the same seed", MLFLOW
        ),
    ),
)

SECTIONS = (ENTROPY, RESPONSES, UPDATE, METHODS, MISMATCH, AMOUNTS, TIME, DYNAMICS, EVALUATIONS, IN_MLFLOW)
