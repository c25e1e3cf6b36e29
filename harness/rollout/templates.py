"""Rendering of chat templates in a separate process with a time limit.

The template in a model's folder is a program that may run forever: two nested loops take hours, and `9 ** 9 ** 9` takes
hours within one instruction, so neither a signal handler nor a limit on loops would end it. The kernel ends the process
when it has used its CPU time.
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

# CPU seconds for one prompt, which takes about 100 microseconds. Not wall time, since a busy machine is not an error.
LIMIT_S = 5
MEMORY = 2 << 30  # bytes of address space


class Renderer:
    """A running process that renders templates one after another."""

    def __init__(self) -> None:
        self.turn = threading.Lock()  # one request at a time, since replies do not name their requests
        self.limit_s = LIMIT_S
        self.process = subprocess.Popen(
            python_command("from harness.rollout import templates", f"templates.serve_templates({self.limit_s})"),
            stdin=subprocess.PIPE,  # when this process ends, the pipe closes, which ends the renderer
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal interrupts the caller only
        )

    def ask(self, request: dict[str, Any]) -> dict[str, str]:
        """Return the rendered text, or the error."""
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
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return {"error": f"its process ended by {cause}"}


@functools.cache
def renderer(owner: int) -> Renderer:
    """Return the renderer of a process. It is cached by process ID: a fork must not share the pipes of its parent."""
    return Renderer()


def warm_up(folder: Path) -> None:
    """Start the renderer if a folder has a template: its 0.8 s of CPU overlap with the loading of the weights."""
    settings = folder / "tokenizer_config.json"
    if any(folder.glob("chat_template*")) or (settings.is_file() and b'"chat_template"' in settings.read_bytes()):
        renderer(os.getpid())


def render_template(template: str, messages: list[dict[str, str]], options: dict[str, Any], whose: str) -> str:
    """Return the prompt that a chat template renders from messages; `whose` names the model in an error."""
    current = renderer(os.getpid())
    answer = current.ask({"template": template, "messages": messages, "options": options})
    if current.process.poll() is not None:
        renderer.cache_clear()  # the next prompt gets a new process
    if "error" in answer:
        raise UserError(f"the chat template of {whose} cannot render a prompt: {answer['error']}")
    return answer["text"]


def serve_templates(limit_s: int) -> None:
    """Answer requests until the input ends, in the process of a Renderer."""
    from transformers.utils.chat_template_utils import render_jinja_template

    # Replies have a file descriptor of their own: a library that prints to standard output must not write a reply.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a killed renderer leaves no core file
    # By its default action SIGPROF ends the process at once; an ancestor may have set it to be ignored.
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
        except Exception as error:  # a template may raise any type
            reply = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()
