"""The source of a run, in the tags and inputs that MLflow's own pages show."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Any

from harness.base import identities
from harness.cells.provenance import Made

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

# A tag of the experiment: its runs are trainings, not evaluations of apps. In MLflow 3.17 a switch on the page takes
# precedence over the tag; a link with ?workflowType=machine_learning sets that switch.
KIND = {"mlflow.experimentKind": "custom_model_development"}
NOTE = {
    "mlflow.note.content": (
        "A matrix of entrobench: every method on every task with every model and every seed, one run each. "
        "The run named `leaderboard` holds the table: `leaderboard.json` (a table of MLflow), `leaderboard.html` and "
        "`leaderboard.md`. The metrics `final/...` of the other runs are what it averages, so that this list can be "
        "sorted by them; `method.<name>.<option>` are the options of a method. Where MLflow opens the view of apps and "
        "agents, the switch at its upper left to model training shows the runs. From anywhere: "
        "`entrobench leaderboard --experiment NAME --uri URI`."
    )
}


def origin(made: Made | None) -> dict[str, str]:
    """Return the tags of a run's source: entrobench, this user, and the commit of the code that made the numbers."""
    tags = {"mlflow.source.name": "entrobench", "mlflow.source.type": "LOCAL", "mlflow.user": user_name()}
    return tags | commit_tags(made)


def commit_tags(made: Made | None) -> dict[str, str]:
    """Return the tag of the commit, if it is known."""
    return {"mlflow.source.git.commit": made.commit} if made and made.commit else {}


def user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # in a container, the user's id may have no name
        return "unknown"


def dataset_input(task: str, identity: Any) -> DatasetInput:
    """Return the problems of a task as an input of a run."""
    from mlflow.entities import Dataset, DatasetInput

    source = json.dumps({"task": task, "identity": identity})
    return DatasetInput(Dataset(task, identities.key(identity), "entrobench task", source))
