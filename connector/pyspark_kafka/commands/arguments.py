"""The arguments and exit codes that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from pyspark_kafka.errors import OptionError
from pyspark_kafka.options.java_properties import parse_java_properties

DONE: Final = 0
FAILED: Final = 1
ARGUMENTS: Final = 2

_COMMAND_CONFIG: Final = "--command-config"


class Parser(argparse.ArgumentParser):
    """An argument parser that prints each error as one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(ARGUMENTS, f"{self.prog}: {message} (see --help)\n")


AddParser = Callable[..., argparse.ArgumentParser]
"""Adds the parser of a command (`add_parser` of argparse's subparsers)."""


def add_client_arguments(parser: argparse.ArgumentParser, *, is_required: bool, side: str) -> None:
    """Add the arguments for the connection to the cluster. `side` is `source` or `sink`."""
    parser.add_argument(
        "--bootstrap-servers",
        required=is_required,
        metavar="HOST:PORT[,...]",
        help="the initial brokers to connect to",
    )
    parser.add_argument(
        _COMMAND_CONFIG,
        metavar="FILE",
        help="a Java properties file with client settings such as sasl.jaas.config, as for Kafka's "
        "tools; --option and --bootstrap-servers take precedence",
    )
    parser.add_argument(
        "--option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"an option of the {side}, for example kafka.default.api.timeout.ms=120000; can be "
        "specified multiple times",
    )


def given_options(parsed: argparse.Namespace) -> dict[str, str]:
    """Return the options that the parsed client arguments set. Raises `OptionError`."""
    given = {**_command_config(parsed.command_config), **dict(parsed.option)}
    if parsed.bootstrap_servers is not None:
        given["kafka.bootstrap.servers"] = parsed.bootstrap_servers
    return given


def _option(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name.strip() or not separator:
        # The text is not shown, because it may contain a password.
        raise argparse.ArgumentTypeError("the argument does not have the form NAME=VALUE")
    return name.strip(), value


def _command_config(path: str | None) -> dict[str, str]:
    """Return the settings in a properties file as `kafka.*` options. Raises `OptionError`.

    The encoding is ISO 8859-1, as in Kafka's tools (`Utils.loadProps`). Characters outside this
    encoding must be escaped.
    """
    if path is None:
        return {}
    try:
        settings = parse_java_properties(Path(path).read_text("iso-8859-1"))
    except OSError as error:
        what = f"The file {path!r} in --command-config cannot be read: {error.strerror}."
        raise OptionError(what, advice="Correct the path.", option=_COMMAND_CONFIG) from None
    except ValueError as error:  # a malformed file, or an invalid path
        what = f"The file {path!r} in --command-config is not a Java properties file: {error}."
        raise OptionError(what, advice="Correct the file.", option=_COMMAND_CONFIG) from None
    return {f"kafka.{name}": value for name, value in settings.items()}
