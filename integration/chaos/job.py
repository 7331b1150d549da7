"""The settings of a query, which the harness passes to the Spark driver as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from integration.chaos.kinds import KINDS, Kind


@dataclass(frozen=True, kw_only=True)
class Job:
    """The settings of a Spark driver and its streaming query.

    `format` is the format of the source and the sink. `jars` are additional JARs for the driver. A
    query with two sinks also writes to the topic `other_target`.
    """

    bootstrap_servers: str
    source: str
    target: str
    directory: str
    format: str
    kind_name: str = "copy"
    other_target: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    sink_options: Mapping[str, str] = field(default_factory=dict)
    jars: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        return KINDS[self.kind_name]

    @property
    def targets(self) -> Sequence[str]:
        return [self.target, *([self.other_target] if self.other_target else [])]

    @property
    def sinks(self) -> Sequence[tuple[str, Mapping[str, str]]]:
        """The target topics with the options of their sinks. Each sink has its own id."""
        found: list[tuple[str, Mapping[str, str]]] = [(self.target, self.sink_options)]
        if self.other_target:
            name = "transactionalId"
            changed = {n: f"{v}-other" for n, v in self.sink_options.items() if n == name}
            found.append((self.other_target, {**self.sink_options, **changed}))
        return found

    @property
    def checkpoint(self) -> str:
        return str(Path(self.directory, "checkpoint"))

    @property
    def events(self) -> Path:
        """The directory of the event logs of all drivers."""
        return Path(self.directory, "events")

    @property
    def stop(self) -> Path:
        """The path of the stop file. The job ends when this file exists."""
        return Path(self.directory, "stop")

    @property
    def owner(self) -> Path:
        """The path of the file that contains the newest driver's number.

        Older drivers must exit.
        """
        return Path(self.directory, "owner")

    @property
    def stall(self) -> Path:
        """The path of the file that requests a stall of the sink."""
        return Path(self.directory, "stall")

    @property
    def shuffled(self) -> Path:
        """The path of a file that tasks create when they have started to read from a shuffle."""
        return Path(self.directory, "shuffled")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        given = json.loads(text)
        return cls(**{**given, "jars": tuple(given["jars"])})
