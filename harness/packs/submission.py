"""A submission: a plugin and the pack of its cells, which are checked before their rows are shown next to ours."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path

import baselines
from harness.base import registry
from harness.base.errors import UserError
from harness.cells.source_digest import source_digest
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.methods.composition import Method, Table, method_classes
from harness.packs.archive import Pack, unpacked
from harness.packs.audit import PackAudit
from harness.packs.protocol import check_same_protocol
from harness.table.verified import REPORTED


def check_submission(pack: Pack, ours: Path, plugins: Sequence[str]) -> None:
    """Refuse a pack of another protocol than ours, or whose methods are not the plugins' or break a rule."""
    with unpacked(ours) as own:
        check_same_protocol((ours.name, own.protocol), (pack.path.name, pack.protocol))
    specs = submitted_methods(pack, plugins)
    from harness.conformance import check  # imports torch, so only after the rest

    for report in check.check_methods(specs, plugins):
        if report.failed:
            failed = ", ".join(finding.check for finding in report.failed)
            raise UserError(
                f"{report.method} fails the checks {failed}; `entrobench check '{report.method}'` with --plugin says "
                "how to fix it"
            )


def submitted_methods(pack: Pack, plugins: Sequence[str]) -> list[str]:
    """Return the methods in a pack that the plugins define; refuse cells that other code has trained."""
    table = baselines.table(plugins)
    new = table.keys() - baselines.table(()).keys()
    specs: dict[str, None] = {}
    for folder in pack.cells:
        spec = CellSpec.read(folder)
        parts = {registry.parse(part)[0] for part in registry.split(str(spec.key.method), "+")}
        if State.known(folder).state == "done" and parts & new:
            check_code(spec, table, new)
            specs[spec.key.method] = None
    if not specs:
        names = ", ".join(sorted(new)) or "none"
        raise UserError(f"{pack.path.name} has no cell that is done of a method of --plugin (it defines {names})")
    return list(specs)


def check_code(spec: CellSpec, table: Table, new: Set[str]) -> None:
    """Refuse a cell that was trained with other code of the new methods than is here."""
    try:
        method = Method.of(spec.key.method, table, spec.config.method_options)
    except UserError:
        raise
    except Exception as error:  # a plugin's own code may raise anything
        raise UserError(f"{spec.key.method} cannot be made ({type(error).__name__}: {error})") from error
    classes, recorded = method_classes(table), spec.identity.get("source")
    for name in method.named.keys() & new:
        if not isinstance(recorded, dict) or recorded.get(name) != source_digest(classes[name]):
            raise UserError(f"{spec.key.run_name} was trained with other code of {name} than is here; run it again")


def check_figures(pack: Pack, audited: PackAudit) -> None:
    """Refuse a pack in which a record contradicts another one, or was not judged."""
    sentences = [f"{audit.label}: {finding}" for audit in audited.cells for finding in audit.findings]
    sentences += [f"matrix.json: {finding}" for finding in audited.findings]
    for audit in audited.cells:
        if audit.mark == REPORTED and State.known(audit.folder).state == "done":
            sentences += [f"{audit.label}: {note}" for note in audit.notes]
    if sentences:
        raise UserError(
            f"the figures in {pack.path.name} are not verified, {sentences[0]}; `entrobench verify` without --row "
            "lists everything"
        )
