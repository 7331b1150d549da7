"""What is shipped, and what it is set up with."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]


def direct_requirements() -> list[Requirement]:
    """Every requirement that pyproject.toml names, of users and of developers."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    named = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["spark"],
        *project["dependency-groups"]["dev"],
        *project["build-system"]["requires"],
    ]
    return [Requirement(text) for text in named]


def pinned_versions() -> dict[str, str]:
    pins: dict[str, str] = {}
    for line in (PROJECT / "constraints.txt").read_text().splitlines():
        name, version = line.split(";")[0].strip().split("==")
        pins[str(canonicalize_name(name))] = version
    return pins


@pytest.mark.parametrize("requirement", direct_requirements(), ids=lambda r: r.name)
def test_the_constraints_are_not_stale(requirement: Requirement) -> None:
    pinned = pinned_versions().get(canonicalize_name(requirement.name))
    assert pinned is not None, f"{requirement.name} is not in constraints.txt: run `make lock`"
    assert requirement.specifier.contains(pinned), f"{pinned} is not {requirement}: run `make lock`"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=PROJECT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (path,) = directory.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_ships_both_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    with wheel:
        names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {re.sub(r"-.*", "", top) for top in tops} == {"pyspark_kafka", "broker_ref"}
    for package in ("pyspark_kafka", "broker_ref"):
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert not [name for name in names if name.endswith(".log")]


def test_pyspark_is_the_users_part() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert not [r for r in project["dependencies"] if Requirement(r).name.startswith("pyspark")]
