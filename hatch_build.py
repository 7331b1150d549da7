"""Build hook: compiles the kernel of `pyspark_kafka.records` if there is a C compiler.

Purpose: `pip install` (of a wheel, or editable) compiles `_kernel.pyx` to an extension of Python's
stable ABI for 3.11 and later. Without a compiler it warns and installs the package in plain Python.
Invariant: a wheel has the tag of its content. With `PYSPARK_KAFKA_RECORDS=cython` a missing
compiler is an error; with `pure` no extension is built. What it must not know: the kernel.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

PACKAGE = Path("connector", "pyspark_kafka", "records")
TARGET = "pyspark_kafka/records"
MODULE = "pyspark_kafka.records._kernel"
STABLE_SINCE = ("0x030B0000", "cp311")
VARIABLE = "PYSPARK_KAFKA_RECORDS"


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Adds the extension to a wheel, or to the source directory of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        selected = os.environ.get(VARIABLE)
        source = Path(self.root, PACKAGE)
        for stale in source.glob("_kernel*.so") if version == "editable" else ():
            stale.unlink()
        if selected == "pure":
            return
        # The files are read after this method, so `finalize` removes the directory.
        self._directory = tempfile.TemporaryDirectory(prefix="pyspark-kafka-")
        try:
            extension = build_kernel(Path(self.root), Path(self._directory.name))
        except BuildFailedError as failed:
            if selected == "cython":
                raise
            self.app.display_warning(
                f"The kernel of pyspark-kafka was not compiled ({failed}). Records are decoded in "
                f"plain Python, which is slower. Install a C compiler and Python's headers; set "
                f"{VARIABLE}=cython to make this an error."
            )
            return
        if version == "editable":
            (source / extension.name).write_bytes(extension.read_bytes())
            return
        build_data["force_include"][str(extension)] = f"{TARGET}/{extension.name}"
        build_data["pure_python"] = False
        build_data["tag"] = wheel_tag()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if hasattr(self, "_directory"):
            self._directory.cleanup()


class BuildFailedError(Exception):
    """The C compiler or Cython is missing, or failed."""


def is_stable() -> bool:
    """Return whether this Python has the stable ABI; a free-threaded one does not."""
    return not sysconfig.get_config_var("Py_GIL_DISABLED")


def wheel_tag() -> str:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    # Not manylinux: the extension is compiled with the C library of this machine.
    plain = next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
    if is_stable():
        return f"{STABLE_SINCE[1]}-abi3-{plain}"
    return f"{python}-{python}t-{plain}"


def build_kernel(root: Path, directory: Path) -> Path:
    """Compile the extension into `directory`. Raises `BuildFailedError`, and Cython's errors."""
    try:
        from Cython.Build import cythonize  # noqa: PLC0415
        from setuptools import Distribution, Extension  # noqa: PLC0415
        from setuptools.command.build_ext import build_ext  # noqa: PLC0415
        from setuptools.errors import BaseError, CCompilerError  # noqa: PLC0415
    except ImportError as error:  # in an environment that was not set up for building
        raise BuildFailedError(str(error)) from error

    extension = Extension(
        MODULE,
        [str(PACKAGE / "_kernel.pyx")],
        include_dirs=[str(root / PACKAGE)],
        depends=[str(path) for path in PACKAGE.glob("_kernel*.p*")],
        define_macros=[("Py_LIMITED_API", STABLE_SINCE[0])] if is_stable() else [],
        py_limited_api=is_stable(),
        extra_compile_args=["-O3", "-g0"],
    )
    before = Path.cwd()
    os.chdir(root)
    try:
        modules = cythonize([extension], build_dir=str(directory / "c"), force=True, quiet=True)
        command = build_ext(Distribution({"name": "pyspark-kafka", "ext_modules": modules}))
        command.build_temp = str(directory / "temporary")
        command.build_lib = str(directory / "built")
        command.finalize_options()
        command.run()
    except (BaseError, CCompilerError, OSError) as error:
        raise BuildFailedError(str(error)) from error
    finally:
        os.chdir(before)
    (built,) = (directory / "built").rglob("_kernel*.so")
    return built
