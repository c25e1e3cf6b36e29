"""Reads runs from a server of MLflow by its web interface, without MLflow's client."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote

import requests

from harness.base.addresses import visible_address
from harness.base.deadline import finished_within
from harness.base.errors import UserError
from harness.tracking.runs import FINAL, PAGE, TOGETHER, Client, Curves, Run
from harness.tracking.store import ENVIRONMENT, answer_limit, foreign, store

T = TypeVar("T")
ACTIVE = "ACTIVE_ONLY"  # not deleted
HANDED_OUT = re.compile(r"mlflow-artifacts:/([^/].*)")  # where files are that the server itself hands out


class Served:
    """Asks a server for what every table needs, and leaves the rest to MLflow's client."""

    def __init__(self, uri: str) -> None:
        self.uri, self.session = uri, requests.Session()
        user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("USERNAME", "PASSWORD"))
        if user and password:
            self.session.auth = user, password

    def experiments(self) -> dict[str, str]:
        def of(each: dict[str, Any]) -> tuple[str, str]:
            return str(each["name"]), str(each["experiment_id"])

        return dict(self.as_mlflow(of, each) for each in self.found("experiments", view_type=ACTIVE))

    def runs(self, experiment: str) -> list[Run]:
        found = self.found(
            "runs", experiment_ids=[experiment], run_view_type=ACTIVE, order_by=["attributes.start_time ASC"]
        )
        return [self.as_mlflow(self.run, each) for each in found]

    def run(self, each: dict[str, Any]) -> Run:
        info, data = each["info"], each["data"]
        tags, params, metrics = (
            {pair["key"]: pair["value"] for pair in data.get(name, ())} for name in ("tags", "params", "metrics")
        )
        finals = {key: float(value) for key, value in metrics.items() if key.startswith(FINAL)}
        return Run(info["run_id"], info.get("run_name", ""), tags, params, info["artifact_uri"], finals)

    def found(self, what: str, **given: Any) -> Iterator[dict[str, Any]]:
        """Yields all that a search finds, page by page."""
        given["max_results"] = PAGE
        while True:
            answer = self.ask("POST", f"2.0/mlflow/{what}/search", json=given)
            listed, token = self.as_mlflow(lambda answer: self.page(answer.json(), what), answer)
            yield from listed
            if not token:
                return
            if token == given.get("page_token"):  # which would go on for ever
                raise foreign(self.uri, "a page names itself as the next one")
            given["page_token"] = token

    def page(self, page: dict[str, Any], what: str) -> tuple[list[dict[str, Any]], str]:
        """Return the entries of one page of a search, and the token of the next one."""
        listed = page.get(what, [])
        if not isinstance(listed, list):
            raise TypeError(f"{what} is no list")
        return listed, page.get("next_page_token", "")

    def as_mlflow(self, read: Callable[[Any], T], answer: Any) -> T:
        """Return what a function reads in an answer, which may be of another server than MLflow's."""
        try:
            return read(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise foreign(self.uri, f"{type(error).__name__}: {error}") from error

    def ask(self, method: str, path: str, **given: Any) -> requests.Response:
        timeout = float(os.environ.get(name := "MLFLOW_HTTP_REQUEST_TIMEOUT", ENVIRONMENT[name]))
        answers: list[requests.Response] = []

        def send() -> None:
            address = f"{self.uri.rstrip('/')}/api/{path}"
            answers.append(self.session.request(method, address, timeout=timeout, **given))

        limit = answer_limit()  # of all of it; the timeout is of each read
        if not finished_within(limit, send):
            raise UserError(
                f"the MLflow store at {visible_address(self.uri)} did not answer in full within {limit:g} s"
            )
        [answer] = answers
        answer.raise_for_status()
        return answer

    def texts(self, runs: Sequence[Run], path: str) -> list[bytes | None]:
        places = [HANDED_OUT.fullmatch(run.artifacts) for run in runs]
        if None in places:
            with store(self.uri, write=False) as client:
                return Client(client).texts(runs, path)
        with ThreadPoolExecutor(TOGETHER) as threads:
            return list(threads.map(self.text, [f"{place[1]}/{path}" for place in places if place]))

    def text(self, path: str) -> bytes | None:
        try:
            return self.ask("GET", f"2.0/mlflow-artifacts/artifacts/{quote(path)}").content
        except requests.HTTPError as error:
            if error.response.status_code != 404:
                raise
            return None

    def listed(self, run: Run, folder: str) -> list[str]:
        with store(self.uri, write=False) as client:
            return Client(client).listed(run, folder)

    def curves(self, runs: Sequence[Run], wanted: Callable[[str], object]) -> list[Curves]:
        with store(self.uri, write=False) as client:
            return Client(client).curves(runs, wanted)
