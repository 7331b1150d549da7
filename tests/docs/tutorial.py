"""Runner of the Python blocks in docs/tutorial.md that writes their output below the blocks.

`python -m tests.docs.tutorial` updates the page with the output of this run.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
_BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?P<shown>\n```text\n.*?^```\n)?", re.MULTILINE | re.DOTALL
)


def run(page: str) -> str:
    """Return the page with the current output of its blocks, which run in one Python session."""
    namespace: dict[str, Any] = {"__name__": "__main__"}

    def with_output(block: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block["code"], str(PAGE), "exec"), namespace)
        output = printed.getvalue().rstrip()
        shown = f"\n```text\n{output}\n```\n" if output else ""
        return f"```python\n{block['code']}```\n{shown}"

    return _BLOCK.sub(with_output, page)


if __name__ == "__main__":
    PAGE.write_text(run(PAGE.read_text()))
