"""Clients of MLflow that die."""

from __future__ import annotations

from typing import Any


class Killed(BaseException):
    pass


class Mortal:
    """A client that dies at its n-th call, before it or right after."""

    def __init__(self, client: Any, calls: float, after: bool = False) -> None:
        self.client, self.calls, self.after = client, calls, after

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls -= 1
            if self.calls == 0 and not self.after:
                raise Killed
            result = getattr(self.client, name)(*args, **kwargs)
            if self.calls == 0:
                raise Killed
            return result

        return call
