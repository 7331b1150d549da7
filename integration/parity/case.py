"""The classes that define a test case: queries, steps, and relations between the outcomes.

A case contains a query, whose options are passed to both connectors, and the expected relation
between the outcomes of the connectors: both accept the query and behave the same, both reject it,
or they differ. Invariant: a case that specifies a deviation states the reason and exactly
what each connector does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from integration.parity.topics import PLAIN, Batch, Topic

Value = str | int | bool | Mapping[str, Any]
"""The value of an option. A mapping becomes JSON."""

OWN: Final = "{own}"
"""The placeholder for the name of a case's own topic, in options and in SQL."""

SERVERS: Final = "{servers}"
"""The placeholder for the addresses of the cluster, in options."""


class Kind(Enum):
    """The kind of a query. The values are the columns of docs/parity.md."""

    BATCH_READ = "batch read"
    STREAM_READ = "streaming read"
    BATCH_WRITE = "batch write"
    STREAM_WRITE = "streaming write"

    @property
    def is_read(self) -> bool:
        return self in READS


READS: Final = (Kind.BATCH_READ, Kind.STREAM_READ)
WRITES: Final = (Kind.BATCH_WRITE, Kind.STREAM_WRITE)


class Relation(Enum):
    """How the outcomes of the two connectors are related. The values are used in docs/parity.md."""

    SAME = "same"
    BOTH_REFUSE = "both refuse"
    WE_REFUSE = "only pyspark_kafka refuses"
    SPARK_REFUSES = "only Spark's connector refuses"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected relation between the outcomes of Spark's connector and of our connector.

    If our connector rejects the query, `error` is the class of the error that it raises. `aspects`
    contains the parts of the outcomes that differ, each with Spark's value and our value. If only
    Spark's connector rejects the query, `aspects` contains only our values. If the observed value
    is a list, the expected value can be the length of the list. `reason` explains a deviation in
    full sentences.
    """

    relation: Relation
    error: str | None = None
    aspects: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def is_deviation(self) -> bool:
        return self.relation not in (Relation.SAME, Relation.BOTH_REFUSE)


SAME: Final = Expected(relation=Relation.SAME)


def both_refuse(error: str) -> Expected:
    """Expect that both connectors reject the query, and that ours raises this error."""
    return Expected(relation=Relation.BOTH_REFUSE, error=error)


def we_refuse(error: str, reason: str) -> Expected:
    """Expect that Spark's connector accepts the query, and that ours raises this error."""
    return Expected(relation=Relation.WE_REFUSE, error=error, reason=reason)


def spark_refuses(reason: str, **ours: Any) -> Expected:
    """Expect that only our connector accepts the query. `ours` maps aspects to expected values."""
    return Expected(relation=Relation.SPARK_REFUSES, aspects=ours, reason=reason)


def different(reason: str, **aspects: tuple[Any, Any]) -> Expected:
    """Expect exactly the given aspects to differ. Each value is a pair: Spark's value and ours."""
    return Expected(relation=Relation.DIFFERENT, aspects=aspects, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A step that runs the query to its end. A streaming query starts from its checkpoint.

    `options` overrides options of the case.
    """

    options: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAgain:
    """A step that collects the rows of the previous `Run` a second time.

    With `is_new_query`, it runs the same SQL on the DataFrame that the previous `Run` has loaded.
    Otherwise, it collects the same DataFrame, which Spark has already planned.
    """

    is_new_query: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce:
    """A step that appends records to the case's own topic."""

    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecords:
    """A step that deletes the records before an offset in partitions of the case's own topic."""

    before: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """A step that increases the number of partitions of the case's own topic to `count`."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """A step that deletes the case's own topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """A step that creates the case's own topic again."""

    topic: Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetLastCommit:
    """A step that removes the last commit from the checkpoint, so Spark replays the batch."""


Step = (
    Run
    | ReadAgain
    | Produce
    | DeleteRecords
    | AddPartitions
    | DeleteTopic
    | CreateTopic
    | ForgetLastCommit
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A query, or several runs of one query, and the expected relation between the two outcomes.

    `select` is the SQL of the query. Its table `records` contains the records that the connector
    reads or, in a write, the rows to write.

    Unless `is_complete` is true, the suite adds options that most queries need. A read subscribes
    to the case's own topic or to `PLAIN`, a streaming read starts at the earliest offsets, and a
    write sends the rows to the topic `OWN`.
    """

    about: str
    """The tested option, column or setting. Its row in docs/parity.md counts the case."""

    title: str
    kind: Kind
    options: Mapping[str, Value]
    expected: Expected = SAME
    select: str = "SELECT * FROM records"
    steps: tuple[Step, ...] = (Run(),)
    schema: str | None = None
    """The schema that is passed to the reader, in SQL."""

    own: Topic | None = None
    is_complete: bool = False
    mode: str | None = "append"
    """The save mode of a batch write or the output mode of a streaming write, or None."""

    trigger: Mapping[str, Any] = field(default_factory=lambda: {"availableNow": True})
    also: tuple[str, ...] = ()
    """Aspects that are compared in addition to those of every query of this kind."""

    @property
    def name(self) -> str:
        words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.about} {self.title}").strip("-")
        return f"{self.kind.value.replace(' ', '-')}:{words}"


@dataclass(frozen=True, slots=True)
class CaseTemplate:
    """A case without its option and its kinds, which `about` adds."""

    title: str
    options: Mapping[str, Value] = field(default_factory=dict)
    expected: Expected = SAME
    kinds: tuple[Kind, ...] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


def case(
    title: str,
    options: Mapping[str, Value] | None = None,
    expected: Expected = SAME,
    *,
    kinds: tuple[Kind, ...] | None = None,
    **fields: Any,
) -> CaseTemplate:
    """Return a template from which `about` creates cases. `fields` are more fields of `Case`."""
    return CaseTemplate(title, options or {}, expected, kinds, fields)


def about(option: str, kinds: tuple[Kind, ...], *templates: CaseTemplate) -> tuple[Case, ...]:
    """Return the cases for an option: one for each template and kind of query."""
    return tuple(
        Case(
            about=option,
            title=template.title,
            kind=kind,
            options=template.options,
            expected=template.expected,
            **template.fields,
        )
        for template in templates
        for kind in template.kinds or kinds
    )


def resolved(case: Case, overriding: Mapping[str, Value] | None = None) -> dict[str, str]:
    """Return the options of a case as text, including the options that the suite adds."""
    options = {**case.options, **(overriding or {})}
    added = {} if case.is_complete else _added(case, {name.lower() for name in options})
    return {name: _text(value) for name, value in (added | options).items()}


def _added(case: Case, given: set[str]) -> dict[str, Value]:
    """Return the options that the suite adds to a case.

    `given` contains the names of the options that the case sets, in lower case.
    """
    added: dict[str, Value] = {"kafka.bootstrap.servers": SERVERS}
    if not case.kind.is_read:
        added |= {"topic": OWN}
    elif not given & {"assign", "subscribe", "subscribepattern"}:
        added |= {"subscribe": PLAIN.name if case.own is None else OWN}
    if case.kind is Kind.STREAM_READ and not any(name.startswith("starting") for name in given):
        added |= {"startingOffsets": "earliest"}
    return added


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, Mapping) else str(value)
