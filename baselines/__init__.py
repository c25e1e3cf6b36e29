"""The registry of methods: one file per method, and the table METHODS."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from baselines import compositions
from baselines.a2po import A2po
from baselines.a_grae import AGrae
from baselines.adaptive_entropy import AdaptiveEntropy
from baselines.archer import Archer
from baselines.aspo import Aspo
from baselines.asymre import AsymRe
from baselines.bapo import Bapo
from baselines.bbg import Bbg
from baselines.ce_gppo import CeGppo
from baselines.cispo import Cispo
from baselines.clip_b import ClipB
from baselines.clip_predict import ClipPredict
from baselines.clip_servo import ClipServo
from baselines.clip_v import ClipV
from baselines.covariance import ClipCov, KlCov
from baselines.cue import Cue
from baselines.dcpo import Dcpo
from baselines.dph_rl import DphRl
from baselines.dppo import Dppo
from baselines.entrocraft import Entrocraft
from baselines.entropic import Entropic
from baselines.entropy_advantage import EntropyAdvantage
from baselines.entropy_bonus import EntropyBonus
from baselines.erc import Erc
from baselines.fipo import Fipo
from baselines.gmpo import Gmpo
from baselines.gpg import Gpg
from baselines.grpo import Grpo
from baselines.gspo import Gspo
from baselines.kimi import Kimi
from baselines.lite_ppo import LitePpo
from baselines.low_prob import LowProb
from baselines.lp_reg import LpReg
from baselines.luspo import Luspo
from baselines.m2po import M2po
from baselines.maxrl import MaxRl
from baselines.opefo import Opefo
from baselines.opo import Opo
from baselines.otb import Otb
from baselines.outcome_exploration import OutcomeExploration
from baselines.overlong import Overlong
from baselines.passk import PassK
from baselines.pkpo import Pkpo
from baselines.ppo import Ppo
from baselines.qae import Qae
from baselines.quadrant import Quadrant
from baselines.random_reward import RandomReward
from baselines.real import Real
from baselines.reinforce_pp import ReinforcePp
from baselines.repo_r import RepoR
from baselines.rloo import Rloo
from baselines.rs_grpo import RsGrpo
from baselines.sapo import Sapo
from baselines.sequence_mask import SequenceMask
from baselines.siren import Siren
from baselines.stare import Stare
from baselines.steer import Steer
from baselines.top_entropy import TopEntropy
from baselines.topr import Topr
from baselines.tre import Tre
from baselines.ucpo import Ucpo
from baselines.unlikeliness import Unlikeliness
from baselines.vespo import Vespo
from baselines.w_reinforce import WReinforce, WReinforcePpo
from baselines.wapo import Wapo
from harness.base.errors import UserError
from harness.base.plugins import extend_table
from harness.methods.verbs import Component, Composition, Control, Objective

METHODS: dict[str, type[Component] | Composition] = {
    # Objectives
    "grpo": Grpo,
    "ppo": Ppo,
    "dr_grpo": compositions.DR_GRPO,
    "rloo": Rloo,
    "reinforce_pp": ReinforcePp,
    "lite_ppo": LitePpo,
    "dapo": compositions.DAPO,
    "abc_grpo": compositions.ABC_GRPO,
    "maxrl": MaxRl,
    "passk": PassK,
    "pkpo": Pkpo,
    "rs_grpo": RsGrpo,
    "a_grae": AGrae,
    "opo": Opo,
    "qae": Qae,
    "otb": Otb,
    "w_reinforce": WReinforce,
    "w_reinforce_ppo": WReinforcePpo,
    "nsr": compositions.NSR,
    "psr": compositions.PSR,
    "asymre": AsymRe,
    "wapo": Wapo,
    "topr": Topr,
    "gpg": Gpg,
    "ce_gppo": CeGppo,
    "gspo": Gspo,
    "luspo": Luspo,
    "gmpo": Gmpo,
    "cispo": Cispo,
    "sapo": Sapo,
    "vespo": Vespo,
    "dppo": Dppo,
    "archer": Archer,
    "aspo": Aspo,
    "dcpo": Dcpo,
    "bapo": Bapo,
    "fipo": Fipo,
    "kimi": Kimi,
    "a2po": A2po,
    "real": Real,
    # Controls
    "clip_b": ClipB,
    "clip_v": ClipV,
    "entropy_bonus": EntropyBonus,
    "adaptive_entropy": AdaptiveEntropy,
    "tre": Tre,
    "dph_rl": DphRl,
    "overlong": Overlong,
    "clip_cov": ClipCov,
    "kl_cov": KlCov,
    "top_entropy": TopEntropy,
    "lp_reg": LpReg,
    "low_prob": LowProb,
    "entropy_advantage": EntropyAdvantage,
    "unlikeliness": Unlikeliness,
    "ucpo": Ucpo,
    "outcome_exploration": OutcomeExploration,
    "cue": Cue,
    "bbg": Bbg,
    "erc": Erc,
    "steer": Steer,
    "stare": Stare,
    "opefo": Opefo,
    "siren": Siren,
    "entropic": Entropic,
    "entrocraft": Entrocraft,
    "repo_r": RepoR,
    "sequence_mask": SequenceMask,
    "m2po": M2po,
    "quadrant": Quadrant,
    "random_reward": RandomReward,
    "clip_servo": ClipServo,
    "clip_predict": ClipPredict,
    # Controls on the objective of their authors' script
    "clip_cov_release": compositions.CLIP_COV_RELEASE,
    "kl_cov_release": compositions.KL_COV_RELEASE,
    "lp_reg_release": compositions.LP_REG_RELEASE,
    "stare_release": compositions.STARE_RELEASE,
    "siren_release": compositions.SIREN_RELEASE,
}


def table(
    plugins: Iterable[str] = (), refused: dict[str, UserError] | None = None
) -> dict[str, type[Component] | Composition]:
    """Return all methods by name: METHODS, those of installed packages (entry points), and those of plugin modules.

    With `refused`, an invalid entry is left out and its error is stored there; without it, the error is raised.
    """
    return extend_table("method", METHODS, "METHODS", plugins, check_method, refused)


def check_method(name: str, cls: Any, plugin: str) -> None:
    if not (isinstance(cls, Composition) or (isinstance(cls, type) and issubclass(cls, Objective | Control))):
        raise UserError(
            f"method {name!r} of plugin {plugin} is {cls!r}; it must be a subclass of Objective or Control, or a "
            "Composition of them"
        )
