"""The errors of the Hugging Face Hub's client."""

from __future__ import annotations

from typing import cast


def hub_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that a download from the Hub may raise."""
    from huggingface_hub.errors import HfHubHTTPError

    # HfHubHTTPError derives from the error of the HTTP library below it, which differs between versions of the client.
    return cast("tuple[type[Exception], ...]", (OSError, ValueError, *HfHubHTTPError.__bases__))
