"""Apache Kafka's command-line tools, which run against any cluster.

Runs `kafka-topics.sh` and other tools as Java classes from the Maven artifacts of the `kafka`
backend. Invariant: every tool exits within its timeout or is killed by process id.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from integration.clusters.java import java_command
from integration.java_programs import JVM_OPTIONS, kafka_class_path, logging_option

TIMEOUT_S: Final = 90.0

MAIN_CLASSES: Final[Mapping[str, str]] = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
"""The Java class of each script in Kafka's `bin`, by the script's name without `kafka-` and `.sh`.

`transactional-message-copier` is a tool of Kafka's system tests and has no script.
"""

_SERVERS: Final[Mapping[str, str]] = {"transactional-message-copier": "--broker-list"}
"""The option for the bootstrap servers, for tools without `--bootstrap-server`."""


class KafkaToolError(AssertionError):
    """A tool failed or did not finish. The message contains its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The output of a tool."""

    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        """The non-empty lines of stdout."""
        return [line.strip() for line in self.stdout.splitlines() if line.strip()]

    @property
    def rows(self) -> list[list[str]]:
        """The fields of each line of stdout, split at whitespace."""
        return [line.split() for line in self.lines]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON objects that the verifiable clients print, one per line."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]


class KafkaTools:
    """Kafka's tools for one cluster, as a context manager that removes their files on exit."""

    def __init__(self, bootstrap_servers: str, *, command_config: Path | None = None) -> None:
        """Prepare the tools. `command_config` is a properties file for clients of the cluster.

        Raises `ClusterUnavailableError` if Java or Kafka's JARs are missing.
        """
        self._command_config = (
            [] if command_config is None else ["--command-config", str(command_config)]
        )
        self._bootstrap_servers = bootstrap_servers
        self._java = java_command()
        self._class_path = kafka_class_path()
        self._temporary = tempfile.TemporaryDirectory(prefix="kafka-tools-")
        self.directory = Path(self._temporary.name)
        self._logging_option = logging_option(self.directory)
        self._archive = self.directory / "classes.jsa"
        # All later tools use this class archive, which halves their startup time.
        self._archive_option = f"-XX:ArchiveClassesAtExit={self._archive}"
        self.attempt("consumer-groups", "--list")
        self._archive_option = f"-XX:SharedArchiveFile={self._archive}"

    def command(self, tool: str, *arguments: str) -> list[str]:
        """Return the command line of a tool, including the bootstrap servers."""
        return [
            self._java,
            *JVM_OPTIONS,
            self._archive_option,
            self._logging_option,
            "-cp",
            self._class_path,
            MAIN_CLASSES[tool],
            _SERVERS.get(tool, "--bootstrap-server"),
            self._bootstrap_servers,
            *self._command_config,
            *arguments,
        ]

    def run(
        self, tool: str, *arguments: str, stdin: str = "", timeout_s: float = TIMEOUT_S
    ) -> Output:
        """Run a tool to completion. Raise `KafkaToolError` if it fails or does not finish."""
        output, status = self.attempt(tool, *arguments, stdin=stdin, timeout_s=timeout_s)
        if status != 0:
            raise KafkaToolError(_report(tool, arguments, f"status {status}", output))
        return output

    def attempt(
        self, tool: str, *arguments: str, stdin: str = "", timeout_s: float = TIMEOUT_S
    ) -> tuple[Output, int]:
        """Run a tool that may fail, and return its output and exit status.

        Raises `KafkaToolError` if the tool does not finish within `timeout_s` seconds.
        """
        try:
            done = subprocess.run(
                self.command(tool, *arguments),
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            output = Output(stdout=_text(expired.stdout), stderr=_text(expired.stderr))
            reason = f"the tool did not finish within {timeout_s} s"
            raise KafkaToolError(_report(tool, arguments, reason, output)) from None
        return Output(stdout=done.stdout, stderr=done.stderr), done.returncode

    def json_file(self, name: str, content: object) -> str:
        """Write `content` as JSON to a file for use as a tool's argument, and return the path."""
        path = self.directory / name
        path.write_text(json.dumps(content))
        return str(path)

    def close(self) -> None:
        self._temporary.cleanup()

    def __enter__(self) -> KafkaTools:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _report(tool: str, arguments: Sequence[str], reason: str, output: Output) -> str:
    return (
        f"kafka-{tool} {' '.join(arguments)}: {reason}\n"
        f"--- stdout\n{output.stdout[-4000:]}\n--- stderr\n{output.stderr[-4000:]}"
    )
