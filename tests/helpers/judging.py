"""The work of a process that judges answers, without the imports of a test, which take a spawned process seconds."""

from __future__ import annotations

from multiprocessing.connection import Connection

from harness.verify.pool import VerifierPool


def judge_in_child(pipe: Connection) -> None:
    """Send the verdicts of a right and of a wrong answer."""
    with VerifierPool(workers=1) as own:
        pipe.send(own.verdicts([("5", r"\boxed{1+4}"), ("5", r"\boxed{1+5}")]))
