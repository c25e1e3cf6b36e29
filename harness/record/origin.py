"""Where a run comes from, in the tags and inputs that MLflow's own pages show."""

from __future__ import annotations

import functools
import getpass
import json
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base import identities

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

KIND = {"mlflow.experimentKind": "custom_model_development"}  # opens among trainings, not among evaluations of apps
NOTE = {
    "mlflow.note.content": (
        "A matrix of entrobench: every method on every task with every model and every seed, one run each. "
        "The run named `leaderboard` holds the table: `leaderboard.json` (a table of MLflow), `leaderboard.html` and "
        "`leaderboard.md`. The metrics `final/...` of the other runs are what it averages, so that this list can be "
        "sorted by them; `method.<name>.<option>` are the options of a method. From anywhere: "
        "`entrobench leaderboard --experiment NAME --uri URI`."
    )
}


@functools.cache
def origin() -> dict[str, str]:
    """Returns the tags of a run that this code and this user sent."""
    tags = {
        "mlflow.source.name": "entrobench",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": user(),
        "version": version("entrobench"),
    }
    commit = commit_of(Path(__file__))
    return tags | ({"mlflow.source.git.commit": commit} if commit else {})


def user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        return "unknown"


def commit_of(file: Path) -> str | None:
    """Returns the commit of the checkout that a file belongs to, None where it belongs to none."""
    try:
        for asked in (["ls-files", "--error-unmatch", file.name], ["rev-parse", "HEAD"]):
            told = subprocess.run(["git", *asked], cwd=file.parent, capture_output=True, text=True)
            if told.returncode:
                return None
    except OSError:  # no git here
        return None
    return told.stdout.strip()


def dataset(name: str, identity: Any) -> DatasetInput:
    """Returns the problems of a task as an input of a run."""
    from mlflow.entities import Dataset, DatasetInput

    source = json.dumps({"task": name, "identity": identity})
    return DatasetInput(Dataset(name, identities.key(identity), "entrobench task", source))
