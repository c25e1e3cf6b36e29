"""Adopted cells: trained by another trainer, evaluated here. Their mark, their names and their folders."""

from __future__ import annotations

from pathlib import Path

TRAINER = "trainer"  # a parameter and a tag that only their MLflow runs have
MARK = "@"  # in the names of their folders; names of other cells' folders never contain it


def adopted_name(method: str, trainer: str) -> str:
    """Return the method of an adopted cell; it names the trainer, so that no table pools it with cells trained here."""
    return f"{method} (trained elsewhere: {trainer})"


def is_adopted(folder: Path) -> bool:
    """Return whether the folder is an adopted cell's, by its name."""
    return MARK in folder.name


def adopted_folders(matrix: Path) -> list[Path]:
    """Return the folders of the adopted cells in the folder of a matrix."""
    return [folder for folder in sorted(matrix.glob(f"*{MARK}*")) if is_adopted(folder)]
