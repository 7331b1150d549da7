"""The recipes in docs/recipes.md run and print the output that the page contains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.docs.code_blocks import run, setup_and_recipes, title

SETUP, RECIPES = setup_and_recipes()
SAMPLE = {"Write to several topics", "Replay a time window"}
"""The recipes that `make test` runs, also on Apache Kafka."""
PYSPARK_VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def since(recipe: str) -> tuple[int, ...]:
    """Return the version of Spark in the recipe's row of the table at the top of the page."""
    row = re.search(rf"^\| \[{title(recipe)}\].* \| ([\d.]+) \|$", SETUP, re.MULTILINE)
    assert row is not None, f"the table does not contain '{title(recipe)}'"
    return tuple(map(int, row[1].split(".")))


@pytest.fixture
def _restored_configuration(spark: SparkSession) -> Iterator[None]:
    """Undo the recipe's changes to the configuration of the session."""
    before = spark.conf.getAll
    yield
    for name in spark.conf.getAll.keys() - before.keys():
        spark.conf.unset(name)
    for name, value in before.items():
        if spark.conf.get(name) != value:
            spark.conf.set(name, value)


@pytest.mark.usefixtures("_restored_configuration")
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(
            recipe,
            id=title(recipe).replace(" ", "-"),
            marks=[] if title(recipe) in SAMPLE else [pytest.mark.full, pytest.mark.sampled],
        )
        for recipe in RECIPES
    ],
)
def test_recipe_prints_what_it_shows(recipe: str, bootstrap: str, tmp_path: Path) -> None:
    if since(recipe) > PYSPARK_VERSION:
        pytest.skip("the recipe requires a later version of Spark")
    page = SETUP + recipe
    assert run(page, bootstrap_servers=bootstrap, directory=tmp_path) == page


def test_sample_contains_recipes_of_the_page() -> None:
    assert {title(recipe) for recipe in RECIPES} >= SAMPLE
