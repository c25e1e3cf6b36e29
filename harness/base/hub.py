"""The errors of the Hugging Face Hub's client."""

from __future__ import annotations

from typing import cast

from harness.base.errors import root_cause


def hub_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that a download from the Hub may raise."""
    from huggingface_hub.errors import HfHubHTTPError

    # HfHubHTTPError derives from the error of the HTTP library below it, which differs between versions of the client.
    return cast("tuple[type[Exception], ...]", (OSError, ValueError, *HfHubHTTPError.__bases__))


def hub_reason(error: Exception) -> str:
    """Return why a download failed, with what to do about it."""
    reason, unreachable = hub_fault(error)
    if unreachable:
        return (
            f"{reason}; without a network give the folder of a copy, or set HF_ENDPOINT to a mirror (docs/trouble.md)"
        )
    return f"{reason}; check the name, and set HF_TOKEN if it is private or gated"


def hub_fault(error: Exception) -> tuple[str, bool]:
    """Return what an error of the client says, and whether the network or the disk is at fault and not the request."""
    cause = root_cause(error)
    first_line = str(error).partition("\n")[0].rstrip(".")
    reason = getattr(cause, "strerror", None)  # of the network or the disk; around it, libraries write much more
    return reason or first_line, bool(reason) or isinstance(cause, ConnectionError)
