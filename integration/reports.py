"""The directory of reports, `build/reports`, which is not under version control.

`make bench`, `make chaos` and `make failpoints` write their measurements there. Invariant: a report
is written atomically.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).resolve().parents[1] / "build" / "reports"


def write(path: Path, text: str) -> None:
    """Write a file atomically, and create its directory if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.part")
    scratch.write_text(text)
    scratch.replace(path)


def write_json(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a list of objects as indented JSON."""
    write(path, json.dumps(rows, indent=2) + "\n")
