"""Arguments that several commands have, and the configuration that they name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness import config as configs
from harness.base import files
from harness.base.errors import UserError, shown
from harness.config import Config

Commands = argparse._SubParsersAction  # argparse has no public name for it


def command(commands: Commands, name: str, text: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """Add a command; `--help` and docs/commands.md show its examples, which together use every option."""
    epilog = "\n  ".join(["examples:", *examples])
    layout = argparse.RawDescriptionHelpFormatter  # keeps the lines of the epilog
    return commands.add_parser(name, help=text, description=text, epilog=epilog, formatter_class=layout)


def with_plugins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="MODULE",
        help="a Python module with further methods or tasks; may be repeated",
    )


def with_overrides(parser: argparse.ArgumentParser) -> None:
    text = "a value in place of the file's, for example train.steps=10"
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=text)


def with_config(parser: argparse.ArgumentParser, *, optional: bool = False) -> argparse.ArgumentParser:
    number = "?" if optional else None
    parser.add_argument("config", nargs=number, metavar="CONFIG", help="a YAML file, or the name of one in configs/")
    with_overrides(parser)
    with_plugins(parser)
    return parser


def with_other_sources(parser: argparse.ArgumentParser) -> None:
    """Add what a command reads instead of CONFIG, besides its own `--experiment`."""
    parser.add_argument(
        "--uri", help="the MLflow store of --experiment (default: MLFLOW_TRACKING_URI, else results/mlflow.db)"
    )
    parser.add_argument(
        "--pack",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a file of `entrobench pack`, instead of CONFIG; several of one protocol are read together",
    )


def check_one_source(arguments: argparse.Namespace) -> None:
    """Refuse a command that names no results, two sources of them, or a store that it would not read."""
    if "=" in (arguments.config or "") and (arguments.experiment or arguments.pack):
        raise UserError(f"{shown(arguments.config)} goes with a CONFIG; packs and experiments are read as they are")
    if sum(map(bool, (arguments.config, arguments.experiment, arguments.pack))) != 1:
        raise UserError(
            f"{arguments.command} needs one of three: a CONFIG, --experiment NAME of an MLflow store, or --pack FILE"
        )
    if arguments.uri and not arguments.experiment:
        raise UserError("--uri goes with --experiment; a CONFIG names its store as tracking.uri")
    if arguments.plugin and not arguments.config:
        raise UserError("--plugin goes with a CONFIG; packs and experiments are read without plugins")


def config_of_arguments(arguments: argparse.Namespace, *, with_choice: bool = True) -> Config:
    """Return the configuration that the arguments name, with their plugins; `with_choice`: see `load_config`."""
    config = configs.load_config(arguments.config, arguments.overrides, with_choice=with_choice)
    config.plugins += arguments.plugin
    return config


def words_of_config(arguments: argparse.Namespace) -> list[str]:
    """Return the words of a command line that name the same configuration."""
    words = [arguments.config, *arguments.overrides]
    for name in arguments.plugin:
        words += ["--plugin", name]
    return words


def check_out(out: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is read."""
    if out is None:
        return
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; it must name a file")
    files.check_folder(out.parent, f"--out {out}")


def with_candidates(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--candidates", action="store_true", help="instead, the matrix of the candidates, which `entrobench tune` runs"
    )


def config_or_candidates(arguments: argparse.Namespace) -> Config:
    """Return the configuration that the arguments name, or the one of its candidates."""
    if not arguments.candidates:
        return config_of_arguments(arguments)
    from harness.runs.tune import tuning_matrix

    return tuning_matrix(config_of_arguments(arguments, with_choice=False))
