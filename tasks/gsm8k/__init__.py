from typing import ClassVar

from harness.base.task import SPLITS
from tasks.math import Trained


class GSM8K(Trained):
    """GSM8K: school mathematics in words; 7,473 problems for training and validation, 1,319 for testing."""

    name: ClassVar[str] = "gsm8k"
    splits: ClassVar[tuple[str, ...]] = SPLITS
