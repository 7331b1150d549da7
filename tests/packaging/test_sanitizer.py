"""The kernel's tests under the C compiler's address and undefined-behavior sanitizers.

With a sanitizer, an access outside a buffer ends the process. Without it, such an access often has
no effect.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
COMPILE = (
    "import sys; from pathlib import Path; from hatch_build import build_kernel; "
    "print(build_kernel(Path.cwd(), Path(sys.argv[1])))"
)
RUN = (
    "import sys, pytest, pyspark_kafka.records._kernel as kernel; "
    "assert kernel.__file__ == sys.argv[1], kernel.__file__; "
    "sys.exit(pytest.main(sys.argv[2:]))"
)


def library(name: str) -> str | None:
    """Return the path of a library of the C compiler, or None if it does not exist."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    found = subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
    return found if Path(found).is_absolute() else None


ASAN, UBSAN = library("libasan.so"), library("libubsan.so")


@pytest.fixture
def sanitized(tmp_path: Path) -> Path:
    """Return the path of the kernel in a copy of the package that is compiled with sanitizers."""
    connector = tmp_path / "connector"
    ignored = shutil.ignore_patterns("_kernel*", "*.h", "__pycache__")
    shutil.copytree(PROJECT / "connector", connector, ignore=ignored)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(tmp_path / "build")],
        cwd=PROJECT,
        env=os.environ | {"CFLAGS": FLAGS, "LDFLAGS": FLAGS, "PYTHONPATH": str(PROJECT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    built = Path(done.stdout.splitlines()[-1])
    assert b"__asan_init" in built.read_bytes(), "the kernel was built without the sanitizer"
    target = connector / "pyspark_kafka" / "records" / built.name
    target.write_bytes(built.read_bytes())
    return target


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    ASAN is None or UBSAN is None, reason="requires libasan and libubsan of the C compiler"
)
def test_records_under_the_sanitizers(sanitized: Path, tmp_path: Path) -> None:
    # Arrow throws C++ exceptions, so libstdc++ must be loaded before the sanitizer.
    preloaded = ":".join(str(name) for name in (ASAN, UBSAN, library("libstdc++.so.6")) if name)
    done = subprocess.run(
        [
            *(sys.executable, "-c", RUN, str(sanitized)),
            *("tests/pyspark_kafka/records", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            # The sanitizer writes to the process's stderr, so pytest must not capture it.
            *("--capture=sys", "--timeout=300", f"--basetemp={tmp_path / 'base'}"),
            # These do not use the kernel, or only with brokers and JVMs, which the sanitizer slows.
            *("-k", "not pure and not test_choice and not test_encode_interop"),
        ],
        cwd=PROJECT,
        env=os.environ
        | {
            "LD_PRELOAD": preloaded,
            "PYTHONPATH": f"{sanitized.parents[2]}{os.pathsep}{PROJECT}",
            # Leaks are ignored because Python does not free all memory. Python's memory pools are
            # off because they hide accesses outside a block.
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=800,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-8000:]
    assert "runtime error:" not in output
    assert "AddressSanitizer" not in output
