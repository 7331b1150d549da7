"""The wheel and the sdist, their builds, and the constraints of the development setup."""

import os
import re
import shutil
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
    """Return all direct requirements in pyproject.toml, of users and developers."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    named = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["spark"],
        *project["dependency-groups"]["dev"],
        *project["dependency-groups"]["bench"],
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
def test_constraints_match_the_requirements(requirement: Requirement) -> None:
    pinned = pinned_versions().get(canonicalize_name(requirement.name))
    assert pinned is not None, f"{requirement.name} is not in constraints.txt: run `make lock`"
    assert requirement.specifier.contains(pinned), f"{pinned} is not {requirement}: run `make lock`"


KERNEL = "pyspark_kafka/records/_kernel.abi3.so"
VARIABLE = "PYSPARK_KAFKA_RECORDS"
PRINT_IMPLEMENTATION = "import pyspark_kafka.records as r; print(r.IMPLEMENTATION)"


def build(
    directory: Path, *, source: Path = PROJECT, target: str = "wheel", **environment: str
) -> tuple[Path, str]:
    """Build a wheel or an sdist. Return its path and the output of the build."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)],
        cwd=source,
        env={k: v for k, v in os.environ.items() if k != VARIABLE} | environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    if done.returncode:
        raise BuildError(done.stdout + done.stderr)
    (path,) = directory.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return path, done.stdout + done.stderr


class BuildError(Exception):
    """A failed build. The message is the output of hatchling."""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    path, _ = build(tmp_path_factory.mktemp("wheel"), PYSPARK_KAFKA_RECORDS="pure")
    return zipfile.ZipFile(path)


def test_the_wheel_contains_both_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    with wheel:
        names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {re.sub(r"-.*", "", top) for top in tops} == {"pyspark_kafka", "broker_ref"}
    for package in ("pyspark_kafka", "broker_ref"):
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert not [name for name in names if name.endswith((".log", ".pyx", ".pxi", ".h", ".so"))]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_kernel_is_compiled_if_there_is_a_compiler(tmp_path: Path) -> None:
    path, _ = build(tmp_path, PYSPARK_KAFKA_RECORDS="cython")
    assert "-cp311-abi3-" in path.name
    with zipfile.ZipFile(path) as compiled:
        assert KERNEL in compiled.namelist()
        compiled.extractall(tmp_path / "installed")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    environment.pop(VARIABLE, None)
    printed = subprocess.check_output(
        [sys.executable, "-c", PRINT_IMPLEMENTATION], env=environment, text=True
    )
    assert printed == "cython\n"


@pytest.mark.slow
def test_without_a_compiler_the_wheel_is_pure_with_a_warning(tmp_path: Path) -> None:
    path, output = build(tmp_path, CC="/does/not/exist")
    assert path.name.endswith("-py3-none-any.whl")
    assert f"{VARIABLE}=cython" in output
    with zipfile.ZipFile(path) as pure:
        assert KERNEL not in pure.namelist()


@pytest.mark.slow
def test_a_build_with_the_kernel_fails_without_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="does/not/exist"):
        build(tmp_path, CC="/does/not/exist", PYSPARK_KAFKA_RECORDS="cython")


def test_pyspark_is_an_optional_dependency() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert not [r for r in project["dependencies"] if Requirement(r).name.startswith("pyspark")]
