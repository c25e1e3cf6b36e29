"""A judge that does what an answer says: for tests of the processes that run judges."""

from __future__ import annotations

import json
import os
import time

from harness.verify.server import Reply, limit_process, serve


def obey(line: bytes) -> Reply:
    gold, answer = json.loads(line)
    if answer == "hang":
        time.sleep(3600)
    if answer == "die":
        os._exit(1)
    if answer == "eat":
        bytearray(1 << 40)
    return ("right" if gold == answer else "wrong"), ""


def main(limit_s: float, memory: int) -> None:
    serve(obey, limit_process(memory), limit_s)
