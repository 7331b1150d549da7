"""Runner of the code blocks in docs/tutorial.md and docs/recipes.md that updates their output.

`python -m tests.docs.code_blocks` writes the output of this run below the blocks.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from broker_ref import Cluster

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
RECIPES = ROOT / "docs" / "recipes.md"
_BLOCK = re.compile(
    r'^```(?P<kind>\w+)(?: title="(?P<file>[^"]+)")?\n(?P<code>.*?)^```\n'
    r"(?P<shown>\n```text\n.*?^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_SECTION = re.compile(r"^(?=## )", re.MULTILINE)


def setup_and_recipes() -> tuple[str, list[str]]:
    """Return the recipes page up to its first recipe, and its recipes."""
    introduction, setup, *recipes = _SECTION.split(RECIPES.read_text())
    return introduction + setup, recipes


def title(section: str) -> str:
    return section.partition("\n")[0].removeprefix("## ")


def run(page: str, *, bootstrap_servers: str = "", directory: Path | None = None) -> str:
    """Return the page with the current output of its Python blocks, which share one session.

    With a `directory`, the blocks use the cluster at `bootstrap_servers`, and the directory instead
    of `/tmp/recipes`. Blocks with a title are written to this file in the directory, and the
    commands of console blocks run there.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}

    def with_output(block: re.Match[str]) -> str:
        code = block["code"]
        if directory is not None:
            code = code.replace("127.0.0.1:9092", bootstrap_servers)
            code = code.replace("/tmp/recipes", str(directory))
            if block["file"] is not None:
                file = directory / block["file"]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(code)
                return block[0]
            if block["kind"] == "console":
                _run_commands(code, directory)
                return block[0]
        if block["kind"] != "python":
            return block[0]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "code block", "exec"), namespace)
        output = printed.getvalue().rstrip()
        shown = f"\n```text\n{output}\n```\n" if output else ""
        return f"```python\n{block['code']}```\n{shown}"

    return _BLOCK.sub(with_output, page)


def _run_commands(console: str, directory: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in re.findall(r"^\$ (.+)$", console, re.MULTILINE):
        done = subprocess.run(
            command,
            shell=True,
            cwd=directory,
            # SPARK_TESTING makes the Connect server use a free port instead of port 15002.
            env={**os.environ, "PATH": path, "SPARK_TESTING": "true"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def _update() -> None:
    TUTORIAL.write_text(run(TUTORIAL.read_text()))
    with Cluster() as cluster, TemporaryDirectory() as directory:
        servers = cluster.bootstrap_servers
        page = run(RECIPES.read_text(), bootstrap_servers=servers, directory=Path(directory))
        RECIPES.write_text(page)


if __name__ == "__main__":
    _update()
