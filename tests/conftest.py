import shutil
from pathlib import Path

import pytest

from harness.record import store


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs; making its tables takes seconds, so once is enough."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with store.store(f"sqlite:///{path}", write=True) as client:
        client.search_experiments()
    return path


@pytest.fixture
def mlflow_uri(migrated: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated, tmp_path / 'mlflow.db')}"
