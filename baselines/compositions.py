"""Named specs of other methods: published recipes, and controls on the objective of their authors.

Each text is structured like the docstring of a method: one clause, the equation, `Defaults:` and `Differs:`.
"""

from __future__ import annotations

from harness.methods.verbs import Composition

DR_GRPO = Composition(
    "grpo(divide_by_std=false, normalise=constant, dual_clip=null)",
    "arXiv:2503.20783",
    """GRPO without the two normalizers that favor long wrong answers and very easy or very hard prompts.

        A_i  = R_i - mean_j R_j
        loss = sum over tokens / (responses x budget)

    Defaults: sail-sg/understand-r1-zero: no deviation, the length budget as the denominator, no dual clip.

    Differs: no difference is known. Its steps are smaller than GRPO's by about the deviation of the rewards, so a fair
    comparison tunes the learning rate of both.
    """,
)

DAPO = Composition(
    "grpo(clip_high=0.28, dual_clip=10)+overlong",
    "arXiv:2503.14476",
    """GRPO with a higher upper clip and a soft penalty for overlong responses.

        R'_i = R_i - factor max((length_i - 0.8 L) / (0.2 L), 0)

    L is the largest number of tokens that a response may have.

    Defaults: clips, dual clip and penalty are from verl's DAPO script for 32 B (4,096 of 20,480 tokens; mean over
    tokens; 16 updates).

    Differs: the authors' penalty is at most 1 for rewards of -1 and 1; here rewards are 0 and 1, and a factor of 0.5
    gives the same advantages. Their dynamic sampling draws prompts until all groups have signal; here that is
    `train.resample` of the configuration, which is the same for every method. In both, a group has signal by the
    correctness of its responses, before the penalty.
    """,
)

ABC_GRPO = Composition(
    "grpo(clip_low_positive=0.2, clip_high_negative=0.2, dual_clip=null)",
    "arXiv:2601.03895",
    """GRPO whose ratio is clipped on both sides for either sign of the advantage.

        J_t = clip(r_t, 0.8, 1.2) A

    For other bounds, write out the spec.

    Defaults: all four bounds of 0.2 are from the authors' recipes for Qwen3 1.7 B and 4 B.

    Differs: the authors' code builds on TRL, whose default averages differently; the trainer itself was not read.
    """,
)

NSR = Composition(
    "w_reinforce(right=0)",
    "arXiv:2506.01347",
    """REINFORCE that learns from wrong responses alone.

    Differs: the authors' code takes the right responses out of the batch, and out of the denominator; here all tokens
    count. In PPO's form: `w_reinforce_ppo(right=0)`.
    """,
)

PSR = Composition(
    "w_reinforce(right=1, wrong=0)",
    "arXiv:2506.01347",
    """REINFORCE that learns from right responses alone.

    Differs: the authors' code takes the wrong responses out of the batch, and out of the denominator; here all tokens
    count. In PPO's form: `w_reinforce_ppo(right=1, wrong=0)`.
    """,
)

CLIP_COV_RELEASE = Composition(
    "grpo(clip_low=1, clip_high=1, dual_clip=null)+clip_cov",
    "arXiv:2505.22617",
    """Clip-Cov on the objective of its authors, with the clip of the ratio opened and no dual clip.

    Defaults: PRIME-RL/Entropy-Mechanism-of-RL, where the lines of the dual clip are commented out.

    Differs: as `clip_cov`.
    """,
)

KL_COV_RELEASE = Composition(
    "grpo(clip_low=1, clip_high=1e9, dual_clip=null)+kl_cov",
    "arXiv:2505.22617",
    """KL-Cov on the objective of its authors, whose ratio has no clip.

        J_t = r_t A

    Defaults: PRIME-RL/Entropy-Mechanism-of-RL.

    Differs: as `kl_cov`.
    """,
)

LP_REG_RELEASE = Composition(
    "grpo(clip_low=1, clip_high=9, dual_clip=null)+lp_reg",
    "arXiv:2510.03222",
    """Lp-Reg on the objective of its authors, whose clip of the ratio is wide.

    Defaults: CarlanLark/Lp-Reg-dev, its script for 14 B.

    Differs: as `lp_reg`.
    """,
)

STARE_RELEASE = Composition(
    "grpo(clip_high=0.28, dual_clip=10)+stare",
    "arXiv:2606.19236",
    """STARE on the objective of its authors, with a higher upper clip and dual clip.

    Defaults: hp-luo/STARE, its script for Qwen2.5-Math-7B: mean over tokens, division by the deviation.

    Differs: as `stare`. The script also has one update per rollout batch and dynamic sampling by correctness:
    `train.updates=1` and `train.resample` of the configuration, which are the same for every method.
    """,
)

SIREN_RELEASE = Composition(
    "grpo(divide_by_std=false, normalise=constant, clip_low=0.28, clip_high=0.28)+siren",
    "arXiv:2509.25133",
    """SIREN on the objective of its authors, without the two normalizers and with wider clips.

    Defaults: Linn3a/siren, `siren.sh`: no deviation, `seq-mean-token-sum-norm` (the mean over responses, divided by a
    constant), a clip of 0.28, a dual clip of 3; 16 updates.

    Differs: as `siren`. The script sets `clip_ratio=0.28` and leaves the configuration's `clip_ratio_low` and
    `clip_ratio_high` at 0.2; its code prefers these two if they are set.
    """,
)
