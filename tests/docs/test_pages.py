"""Checks of the documentation's links and navigation, and of facts that the code defines."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from integration import docs_site
from pyspark_kafka import errors
from pyspark_kafka.sink.exactly_once.commit_topic import (
    CONFIG,
    IN_SYNC_REPLICAS_MIN,
    REPLICAS,
)
from pyspark_kafka.sink.exactly_once.operator_report import EntryState
from pyspark_kafka.sink.exactly_once.steps import Step

ROOT = docs_site.ROOT
EXACTLY_ONCE = ROOT / "docs" / "exactly-once.md"
PROTOCOL = ROOT / "docs" / "exactly-once-protocol.md"
PAGES = docs_site.pages()
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
_CODE_BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def prose(page: Path) -> str:
    return _CODE_BLOCK.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    headings = _HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


def exists(page: Path, target: str, anchor: str) -> bool:
    found = (page.parent / target).resolve() if target else page
    return found.exists() and (not anchor or anchor in anchors(found))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    links = [link for link in _LINK.findall(prose(page)) if "://" not in link[0]]
    assert [link for link in links if not exists(page, *link)] == []


def test_navigation_contains_every_page() -> None:
    def targets(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        values = entry.values() if isinstance(entry, dict) else entry
        return [target for value in values for target in targets(value)]

    with docs_site.CONFIG.open("rb") as file:
        nav = targets(tomllib.load(file)["project"]["nav"])
    pages = [str(page.relative_to(ROOT)) for page in PAGES if page != ROOT / "README.md"]
    assert sorted(nav) == sorted(["index.md", *pages])


@pytest.mark.full
def test_copy_gives_a_page_to_each_linked_source(tmp_path: Path) -> None:
    docs_site.Stage(tmp_path).write()
    assert (
        "(../cluster/broker_ref/api/k00_produce.py.md)"
        in (tmp_path / "docs/mechanisms.md").read_text()
    )
    assert (tmp_path / "cluster/broker_ref/api/k00_produce.py.md").exists()
    assert "--brokers" in (tmp_path / "docs/cli.md").read_text()
    assert "\n::: broker_ref.faults.Rule\n" in (tmp_path / "docs/cluster.md").read_text()


def test_protocol_page_names_exactly_the_steps() -> None:
    named = re.findall(r"`((?:plan|task|commit|abort)\.[a-z_]+)`", PROTOCOL.read_text())
    assert set(named) == {step.title for step in Step}


def test_every_error_of_the_sink_is_in_the_table() -> None:
    rows = set(re.findall(r"^\| `(\w+)`", EXACTLY_ONCE.read_text(), re.MULTILINE))
    assert {error.__name__ for error in errors.ExactlyOnceError.__subclasses__()} <= rows


def test_every_state_of_the_operators_report_is_explained() -> None:
    page = EXACTLY_ONCE.read_text()
    assert [one.value for one in EntryState if f"`{one.value}`" not in page] == []


def test_command_for_the_commit_topic_has_the_connectors_configs() -> None:
    page = EXACTLY_ONCE.read_text()
    command = page[page.index("kafka-topics.sh --create") :].partition("```")[0]
    configs = dict(re.findall(r"--config ([a-z.]+)=(\S+)", command))
    assert configs == {**CONFIG, "min.insync.replicas": str(IN_SYNC_REPLICAS_MIN)}
    assert f"--replication-factor {REPLICAS} " in command


@pytest.mark.parametrize("name", ["walkthrough-produce", "walkthrough-transaction"])
def test_walkthrough_names_exist_in_the_linked_files(name: str) -> None:
    page = ROOT / "docs" / f"{name}.md"
    rows = re.findall(r"^\| \[`[^`]+`\]\(([^)]+)\) \| ([^|]*) \|", page.read_text(), re.MULTILINE)
    assert rows
    missing = [
        (link, ours)
        for link, names in rows
        for ours in re.findall(r"`(\w+)`", names)
        if not re.search(rf"\b{ours}\b", (page.parent / link).read_text())
    ]
    assert missing == []
