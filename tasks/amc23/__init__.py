from typing import ClassVar

from tasks.math import Math


class AMC23(Math):
    """40 problems of AMC 12 of 2023 with integer answers; many of them are in DAPO-Math-17k."""

    name: ClassVar[str] = "amc23"
