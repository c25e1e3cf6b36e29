"""A check that two processes, each with half of the groups, compute the same as one process with all groups.

A method that reaches a collective on only one rank waits forever. So a pair of processes without a sign of life for a
while is killed, the method that it was working on has failed, and a new pair takes the remaining methods.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import baselines
from harness import ranks
from harness.base.processes import python_command
from harness.conformance.probe import (
    CLOSE,
    Failed,
    Finding,
    Outcome,
    Probe,
    Subject,
    compute_outcome,
    finding_of,
    first_line_of,
    near,
    require_equal,
    require_finite,
    singly,
    step_record,
    tied,
    whole,
)
from harness.methods.composition import Method
from harness.train.collect import numbers_of_rank

NAME, WORLD, UPDATES, GROUPS = "ranks", 2, 2, 8
START_S = 180.0  # for the first sign of life: both processes have imported torch and have met, on a busy machine too
PATIENCE_S = 60.0  # for the next one
ADVICE = (
    "take statistics of the whole batch with batch.global_...; every rank must reach each of these calls, equally "
    "often: never under a condition that holds on one rank alone, never in a verb that sees a part of a mini-batch"
)


COLUMNS = ("index_T", "advantages_T", "weights_T", "gradient_TV")  # of the tokens of a rank


def check_on_two_ranks(specs: Sequence[str], plugins: Sequence[str]) -> dict[str, Finding]:
    """Compare each method on two ranks with the same on one; return the findings by spec."""
    findings: dict[str, Finding] = {}
    table = baselines.table(plugins, {})
    while len(findings) < len(specs):
        pending = [spec for spec in specs if spec not in findings]
        with tempfile.TemporaryDirectory() as folder:
            ending = run_pair(pending, plugins, Path(folder))
            for number, spec in enumerate(pending):
                result_files = paths_of_results(Path(folder), number)
                if all_exist(result_files):
                    parts = [torch.load(path, weights_only=True) for path in result_files]
                    findings[spec] = finding_of(NAME, ADVICE, partial(compare_with_one, Subject(spec, table), parts))
                    continue
                # The pair ended at this method. A new pair takes the methods after it.
                error_files = [path.with_suffix(".txt") for path in result_files]
                message = next((path.read_text("utf-8") for path in error_files if path.exists()), ending)
                findings[spec] = Finding(NAME, False, message, ADVICE)
                break
    return findings


def paths_of_results(folder: Path, number: int) -> list[Path]:
    """Return the files that the ranks write for the method of this number."""
    return [folder / f"{number}-{rank}.pt" for rank in range(WORLD)]


def all_exist(paths: Sequence[Path]) -> bool:
    return all(path.exists() for path in paths)


def compare_with_one(subject: Subject, parts: list[dict[str, dict[str, Any]]]) -> str:
    """Compare the results of the ranks with those of one process that has all groups."""
    method = subject.make()  # one for all batches, so that its memory develops
    for name, probe in probes(subject).items():
        expected = compute_outcome(method, probe, UPDATES)
        joined: dict[str, torch.Tensor] = {}  # the columns of all ranks, one rank after the other
        for column in COLUMNS:
            joined[column] = torch.cat([part[name][column] for part in parts])
        index_T = joined["index_T"]
        for column in ("advantages_T", "weights_T"):
            expected_T, actual_T = vars(expected.signal)[column][index_T], joined[column]
            title = column.removesuffix("_T")
            require_finite(f"one of the {title}", expected_T, actual_T)
            if not near(expected_T, actual_T):
                raise Failed(f"{title} differ between {WORLD} ranks and one{name}")
        loss = sum(part[name]["loss"] for part in parts)
        actual = Outcome(expected.signal, loss, joined["gradient_TV"])
        require_equal(expected, actual, index_T, f"on {WORLD} ranks{name}")
        alone = observed_step(method, probe)
        for part in parts:
            require_same_numbers(alone, part[name]["observed"], name)
    return f"{WORLD} processes, with half of the groups each, compute the same as one"


def observed_step(method: Method, probe: Probe) -> dict[str, float]:
    """Return the metrics of a step that the method then observes, and its memory after that; a collective."""
    record = step_record(method, probe)
    method.observe(record)
    return record | method.logged_state()


def require_same_numbers(alone: Mapping[str, float], on_rank: Mapping[str, float], where: str) -> None:
    """Refuse metrics and memory of a rank that are not those of one process."""
    for key, number in alone.items():
        if key == "gradient/norm":  # of a rank's part of a sum
            continue
        if key not in on_rank or not math.isclose(number, on_rank[key], rel_tol=CLOSE, abs_tol=1e-12):
            raise Failed(f"{key} is {on_rank.get(key)} on a rank of {WORLD}{where}, and {number} on one")


def probes(subject: Subject) -> dict[str, Probe]:
    """Return the batches of this check by the end of a sentence on them."""
    candidates = (subject.probe(seed, groups=GROUPS) for seed in itertools.count())
    # The longest response of one rank is shorter than that of the other.
    probe = next(probe for probe in candidates if len(set(longest_on_ranks(subject, probe))) == WORLD)
    return {"": probe, ", with ties": tied(probe), ", in the next step": subject.probe(1000, groups=GROUPS)}


def longest_on_ranks(subject: Subject, probe: Probe) -> list[int]:
    """Return the tokens of the longest response of each rank."""
    return [int(probe.batch.lengths_B[rows_of_rank(subject, rank)].max()) for rank in range(WORLD)]


def rows_of_rank(subject: Subject, rank: int) -> list[int]:
    return numbers_of_rank(GROUPS * subject.size, UPDATES, rank, WORLD)


def run_pair(specs: Sequence[str], plugins: Sequence[str], folder: Path) -> str:
    """Run both processes until they have ended, one has failed, or both are silent; return the reason."""
    # Without it gloo resolves the host's name, which may lead to an unreachable address.
    loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
    shared = {"WORLD_SIZE": str(WORLD), "GLOO_SOCKET_IFNAME": loopback, "RENDEZVOUS": f"{folder}/meeting"}
    arguments = json.dumps([list(specs), list(plugins), str(folder)])
    command = python_command("from harness.conformance import two_ranks", "two_ranks.check_as_rank()", arguments)
    processes = []
    for rank in range(WORLD):
        of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        with open(folder / f"errors{rank}", "wb") as errors:  # a pipe would fill up, and a rank wait for its reader
            process = subprocess.Popen(
                command,
                env={**os.environ, **shared, **of_rank},
                stdin=subprocess.PIPE,  # closes when this process ends, for any reason
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        processes.append(process)
    files_seen, last_sign_s = 0, time.monotonic()
    while True:
        codes = [process.poll() for process in processes]
        # Both have ended, or one has failed: the other one may then wait for it forever.
        if None not in codes or any(codes):
            break
        files = len(list(folder.glob("*-*")))
        if files > files_seen:
            files_seen, last_sign_s = files, time.monotonic()
        if time.monotonic() - last_sign_s > (PATIENCE_S if files_seen else START_S):
            break
        time.sleep(0.05)
    timed_out = None in codes and not any(codes)
    for process in processes:
        process.kill()
    for process in processes:  # after both are killed: a rank that sees the other one go reports that as its error
        process.communicate()
    if timed_out:
        return f"a rank waited {PATIENCE_S:.0f} s for another that did not come"
    texts = [(folder / f"errors{rank}").read_text(errors="replace").strip() for rank in range(WORLD)]
    # Of a traceback, the error itself.
    return next((text.splitlines()[-1] for text in texts if text), "a rank ended without a message")


def check_as_rank() -> None:
    """Check all methods in the process of one rank."""
    ranks.end_with_parent(threading.Event())
    torch.set_num_threads(1)
    specs, plugins, folder = json.loads(sys.argv[1])
    table, rank = baselines.table(plugins, {}), int(os.environ["RANK"])
    with ranks.process_group(WORLD, "cpu"):
        (Path(folder) / f"met-{rank}").touch()
        for number, spec in enumerate(specs):
            path = Path(folder) / f"{number}-{rank}.pt"
            try:
                part = compute_half(Subject(spec, table), rank)
            except Exception as error:  # a method may raise anything, and that is a finding
                path.with_suffix(".txt").write_text(first_line_of(error), "utf-8")
                sys.exit(1)
            torch.save(part, path.with_suffix(".partial"))
            path.with_suffix(".partial").rename(path)
            # By files: after a collective too few or too many, a barrier would pair up with the wrong call.
            while not all_exist(paths_of_results(Path(folder), number)):
                time.sleep(0.01)


def compute_half(subject: Subject, rank: int) -> dict[str, dict[str, Any]]:
    """Compute this rank's equal part of each mini-batch."""
    rows, method = rows_of_rank(subject, rank), subject.make()
    # The ranks split into different numbers of parts, as they do when their responses differ in length.
    split = singly if rank else whole
    results = {}
    for name, probe in probes(subject).items():
        outcome = compute_outcome(method, probe.take(rows), UPDATES, split)
        results[name] = {
            "observed": observed_step(method, probe.take(rows)),
            "index_T": probe.batch.take(rows).index_T,
            "advantages_T": outcome.signal.advantages_T,
            "weights_T": outcome.signal.weights_T,
            "loss": outcome.loss,
            "gradient_TV": outcome.gradient_TV,
        }
    return results
