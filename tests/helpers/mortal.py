"""The end of a process within a test, and clients of MLflow that die."""

from __future__ import annotations

from typing import Any


class Killed(BaseException):
    """Stands in for SIGKILL: nothing may catch it."""


class Mortal:
    """A client that dies right after its n-th call."""

    def __init__(self, client: Any, calls: float) -> None:
        self.client, self.calls = client, calls

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls -= 1
            result = getattr(self.client, name)(*args, **kwargs)
            if self.calls == 0:
                raise Killed
            return result

        return call
