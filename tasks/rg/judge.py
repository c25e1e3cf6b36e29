"""The process that runs reasoning-gym: it makes questions, and judges answers with the environments' own functions.

`tasks.rg` starts it with a fixed hash seed, on which some environments depend; nothing else imports this module.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from functools import cache

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS

from harness.base.errors import nearest
from harness.verify.server import Reply, limit_process, serve

FULL_SCORE = 1.0


@cache
def environment_of(env: str, seed: int, size: int) -> ProceduralDataset:
    return reasoning_gym.create_dataset(env, seed=seed, size=size)


def write_questions() -> None:
    """Write the questions of an environment to standard output, as one list in JSON."""
    env, seed, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if env not in DATASETS:
        sys.exit(f"reasoning-gym has no such environment; {nearest(env, DATASETS)}")
    with contextlib.redirect_stdout(sys.stderr):  # some environments print
        made = environment_of(env, seed, size)
        questions = [made[index]["question"] for index in range(size)]
    json.dump(questions, sys.stdout)


def judge_puzzle(line: bytes) -> Reply:
    """Return the verdict of an environment's function on a question: a puzzle, in JSON, and an answer."""
    puzzle, answer = json.loads(line)
    env, seed, size, index = json.loads(puzzle)
    try:
        made = environment_of(env, seed, size)
        entry = made[index]
    except Exception as error:  # environments raise many types; the verdict reports it
        return "error", f"the puzzle cannot be made: {type(error).__name__}: {str(error)[:200]}"
    try:
        score = made.score_answer(answer, entry)
    except (MemoryError, RecursionError) as error:
        return "error", type(error).__name__
    except Exception as error:  # most functions assume an answer in the right form
        return "unparsed", f"{type(error).__name__}: {str(error)[:200]}"
    return ("right" if score >= FULL_SCORE else "wrong"), ""


def main(limit_s: float, memory: int) -> None:
    out = limit_process(memory)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # a judge writes no files; replies go to a pipe
    os.chdir("/")
    serve(judge_puzzle, out, limit_s)
