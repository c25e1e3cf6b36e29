"""Where a run comes from, in the tags and inputs that MLflow's own pages show."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Any

from harness.base import identities
from harness.cells.provenance import Made

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

# Says that the runs are trainings and no evaluations of apps. MLflow 3.17 heeds a switch of its own above that, which a
# link with ?workflowType=machine_learning sets.
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
    """Returns the tags of a run that this user sent, with the commit of the code that made its numbers."""
    tags = {"mlflow.source.name": "entrobench", "mlflow.source.type": "LOCAL", "mlflow.user": user()}
    return tags | commit(made)


def commit(made: Made | None) -> dict[str, str]:
    return {"mlflow.source.git.commit": made.commit} if made and made.commit else {}


def user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        return "unknown"


def dataset(name: str, identity: Any) -> DatasetInput:
    """Returns the problems of a task as an input of a run."""
    from mlflow.entities import Dataset, DatasetInput

    source = json.dumps({"task": name, "identity": identity})
    return DatasetInput(Dataset(name, identities.key(identity), "entrobench task", source))
