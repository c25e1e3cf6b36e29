"""A process that answers the questions of harness.verify.pool, one line of JSON each.

The parent loads its libraries once and forks. The child reads the questions; the kernel's timer may kill it at any
moment, or it may run out of memory. The parent never sees an answer, so no answer can damage it: it reports the timeout
or the error on the child's behalf and forks the next child in a few milliseconds.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable

Reply = tuple[str, str]  # a verdict, and its reason if it is neither right nor wrong, or the score of a graded answer

SUSPECT_STATE = 75  # exit code of a child that reported an error: an exception may leave a library in a broken state


def limit_process(memory: int) -> int:
    """Limit the memory of this process and its children; return the file descriptor of replies.

    Replies have a descriptor of their own: a library that prints to standard output must not write a reply.
    """
    out = os.dup(1)
    os.dup2(2, 1)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a killed child leaves no core file in the user's directory
    return out


def serve(answer: Callable[[bytes], Reply], out: int, limit_s: float) -> None:
    """Answer the questions on standard input, until it ends, in children that may take `limit_s` for each."""
    gc.freeze()  # a search writes to the objects that it visits; those left out stay in pages that children share
    write_reply(out, "ready", "")
    while True:
        child = os.fork()
        if child == 0:
            os._exit(answer_questions(answer, out, limit_s))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        if code == -signal.SIGALRM:
            write_reply(out, "timeout", f"more than {limit_s:g} s")
        elif code != SUSPECT_STATE:  # else the child has already replied
            cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            write_reply(out, "error", f"the process ended by {cause}")


def answer_questions(answer: Callable[[bytes], Reply], out: int, limit_s: float) -> int:
    """Answer questions until the input ends; one that takes longer than the limit ends the process."""
    # By its default action SIGALRM ends the process at once. A Python handler would wait for the end of the current
    # instruction, which may be hours away in integer arithmetic. The signal may have been blocked by an ancestor.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        verdict, reason = answer(line)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_reply(out, verdict, reason)
        if verdict == "error":
            return SUSPECT_STATE
    return 0


def write_reply(out: int, verdict: str, reason: str) -> None:
    os.write(out, json.dumps([verdict, reason]).encode() + b"\n")
