"""The process that runs a judge of one's own: a function of a response and the right answer, in a plugin's JUDGES."""

from __future__ import annotations

import importlib
import json
import math
import signal
from collections.abc import Callable
from functools import cache
from typing import Any

from harness.base.plugins import JUDGES
from harness.verify.server import Reply, limit_process, serve

FULL_SCORE = 1.0


@cache
def judge_of(name: str) -> Callable[[str, str], Any]:
    """Return a function by its plugin and its name there; the time limit of an answer does not count the import."""
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    plugin, _, key = name.rpartition(".")
    judge: Callable[[str, str], Any] = getattr(importlib.import_module(plugin), JUDGES)[key]
    signal.setitimer(signal.ITIMER_REAL, left_s)
    return judge


def judge_response(line: bytes) -> Reply:
    """Return the verdict on a response, with its score: right from 1 on, unparsed if it is None."""
    question, response = json.loads(line)
    name, answer = json.loads(question)
    try:
        score = judge_of(name)(response, answer)
        if score is None:
            return "unparsed", ""
        score = float(score)
    except Exception as error:  # the user's code may raise any type; the verdict reports it
        return "error", f"{name} raises {type(error).__name__}: {str(error)[:200]}"
    if not math.isfinite(score):
        return "error", f"{name} returns {score}"
    return ("right" if score >= FULL_SCORE else "wrong"), str(score)


def main(limit_s: float, memory: int) -> None:
    serve(judge_response, limit_process(memory), limit_s)
