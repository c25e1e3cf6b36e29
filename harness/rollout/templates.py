"""Chat templates rendered in a process of their own, since the template of a model's folder may run for ever.

A template is a program: two nested loops take hours, and `9 ** 9 ** 9` takes them inside of one instruction, which no
signal handler or count of loops ends. The kernel ends the process, at a limit of its CPU time.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.processes import python_command

# CPU seconds for one prompt, which takes some 100 microseconds. CPU time and not wall time: a busy machine is no fault.
LIMIT_S = 5
MEMORY = 2 << 30  # bytes of address space


class Renderer:
    """A process that renders templates one after another, started when it is made."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.limit_s = LIMIT_S
        self.process = subprocess.Popen(
            python_command(f"from harness.rollout import templates; templates.serve_templates({self.limit_s})"),
            stdin=subprocess.PIPE,  # whose end, when this process ends, ends the other
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt from the terminal is for this process alone
        )

    def ask(self, request: dict[str, Any]) -> dict[str, str]:
        """Return the answer to a request, or the reason why there is none."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.turn:
            try:
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                self.process.stdin.flush()
                line = self.process.stdout.readline()
            except BrokenPipeError:
                line = b""
            if line.endswith(b"\n"):
                answer: dict[str, str] = json.loads(line)
                return answer
            code = self.process.wait()
        if code == -signal.SIGPROF:
            return {"error": f"it takes more than {self.limit_s} s for one prompt"}
        return {"error": f"its process ended by {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"}


@functools.cache
def renderer(owner: int) -> Renderer:
    """Return the renderer of a process; a fork must not share the pipes of the process that it was."""
    return Renderer()


def warm_up(folder: Path) -> None:
    """Start the renderer where a folder has a template: 0.8 s of CPU, beside the reading of the weights."""
    settings = folder / "tokenizer_config.json"
    if any(folder.glob("chat_template*")) or (settings.is_file() and b'"chat_template"' in settings.read_bytes()):
        renderer(os.getpid())


def render_template(template: str, messages: list[dict[str, str]], options: dict[str, Any], whose: str) -> str:
    """Return the prompt that a chat template makes of messages; `whose` names the model in an error."""
    asked = renderer(os.getpid())
    answer = asked.ask({"template": template, "messages": messages, "options": options})
    if asked.process.poll() is not None:
        renderer.cache_clear()
    if "error" in answer:
        raise UserError(f"the chat template of {whose} cannot render a prompt: {answer['error']}")
    return answer["text"]


def serve_templates(limit_s: int) -> None:
    """Answer requests until there are none, in the process of a Renderer."""
    from transformers.utils.chat_template_utils import render_jinja_template

    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's print is not a reply
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        request = json.loads(line)
        try:
            [text], _ = render_jinja_template(
                conversations=[request["messages"]],
                chat_template=request["template"],
                add_generation_prompt=True,
                **request["options"],
            )
            reply = {"text": text}
        except Exception as error:  # a template may raise any
            reply = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()
