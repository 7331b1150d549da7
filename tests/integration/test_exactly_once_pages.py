"""The pages about exactly-once writes match the code, and links between pages resolve."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_kafka import errors
from pyspark_kafka.sink.exactly_once.commit_topic import (
    CONFIG,
    IN_SYNC_REPLICAS_MIN,
    REPLICAS,
)
from pyspark_kafka.sink.exactly_once.operator_report import EntryState
from pyspark_kafka.sink.exactly_once.steps import Step

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "exactly-once.md"
PROTOCOL = ROOT / "docs" / "exactly-once-protocol.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_NUMBERED = re.compile(r"^(\d+)\. ", re.MULTILINE)


def numbered_steps() -> dict[int, str]:
    """Return the text of each numbered step of the protocol."""
    page = PROTOCOL.read_text()
    text = page[page.index("## The steps") : page.index("## Decisions, as records")]
    parts = _NUMBERED.split(text)[1:]
    return {int(number): part for number, part in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("step", Step, ids=lambda step: step.title)
def test_every_step_is_documented_under_its_number(step: Step) -> None:
    documented = numbered_steps()
    elsewhere = f"`{step.title}` ({step.number})"
    assert f"`{step.title}`" in documented[step.number] or any(
        elsewhere in " ".join(text.split()) for text in documented.values()
    )


def test_no_unknown_step_is_documented() -> None:
    named = re.findall(r"`((?:plan|task|commit|abort)\.[a-z_]+)`", PROTOCOL.read_text())
    assert set(named) == {step.title for step in Step}


def test_every_error_of_the_tree_is_explained() -> None:
    page = GUIDE.read_text()
    explained = set(re.findall(r"^\| `(\w+)`", page[page.index("## Errors") :], re.MULTILINE))
    tree = {error.__name__ for error in errors.ExactlyOnceError.__subclasses__()}
    assert tree
    assert tree <= explained


def test_every_standing_of_a_transaction_is_explained() -> None:
    page = GUIDE.read_text()
    assert [one.value for one in EntryState if f"`{one.value}`" not in page] == []


def test_the_documented_commit_topic_matches_the_created_one() -> None:
    page = GUIDE.read_text()
    by_hand = page[page.index("kafka-topics.sh --create") :].partition("```")[0]
    configs = dict(re.findall(r"--config ([a-z.]+)=(\S+)", by_hand))
    assert configs == {**CONFIG, "min.insync.replicas": str(IN_SYNC_REPLICAS_MIN)}
    assert f"--replication-factor {REPLICAS} " in by_hand


def anchors(page: Path) -> set[str]:
    headings = _HEADING.findall(page.read_text())
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    wrong = []
    for target, anchor in _LINK.findall(page.read_text()):
        if "://" in target:
            continue
        found = (page.parent / target).resolve() if target else page
        is_right = found.exists() and (not anchor or anchor in anchors(found))
        if not is_right:
            wrong.append(f"{target}#{anchor}")
    assert wrong == []
