"""The tasks: one folder each, and one explicit table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from harness import registry


class Verdict(StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    TIMEOUT = "timeout"
    ERROR = "error"
