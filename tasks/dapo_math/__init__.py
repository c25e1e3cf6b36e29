from typing import ClassVar

from tasks.math import Trained


class DapoMath(Trained):
    """DAPO-Math-17k, cleaned and without dapo500, for training; one problem in 50 is for validation."""

    name: ClassVar[str] = "dapo_math"
