"""Prepare the documentation in `build/docs`, from which Zensical builds the site.

`make docs` runs this module. It copies the pages and keeps the layout of the repository, so
relative links work both on a code host and on the site. The copy differs from the repository as
follows:

- A source file to which a page links becomes a page that contains its code.
- A linked notebook becomes a page with its cells.
- A linked directory becomes a page that lists its modules.
- A block whose only line is `$ python -m ... --help` is extended with the output of the command.
- A comment `<!-- ::: NAME -->` becomes the docstrings of a class or function (mkdocstrings). Code
  hosts do not show the comment.

Invariant: a link to a missing path stays unchanged, so the strict build fails.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BUILD: Final = ROOT / "build"
CONFIG: Final = ROOT / "docs" / "zensical.toml"

_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
_CODE_BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_HELP = re.compile(r"^```text\n\$ (python -m [^\n]+ --help)\n```$", re.MULTILINE)
_DOCSTRINGS = re.compile(r"^<!-- (::: [\w.]+) -->$", re.MULTILINE)
_LANGUAGES = {".py": "python", ".pyx": "cython", ".toml": "toml"}
_ASSETS = {".svg", ".png"}


def pages() -> list[Path]:
    """Return the paths of the Markdown files of the documentation."""
    skipped = ROOT / "cluster" / "broker_ref" / "SKIPPED.md"
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), skipped])


class Stage:
    """The copy of the documentation, and the source files to which its pages link."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pages = frozenset(pages())
        self._sources: set[Path] = set()

    def write(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        for page in self._pages:
            text = _HELP.sub(_with_output, page.read_text())
            text = _DOCSTRINGS.sub(r"\1\n", text)
            self._put(_target_of_page(page), self._link_sources(page, text))
        for source in sorted(self._sources):
            if source.is_dir():
                self._put(source / "index.md", self._directory_page(source))
        for source in sorted(self._sources):
            if source.is_file():
                self._put(_with_suffix(source), _source_page(source))

    def _put(self, path: Path, text: str) -> None:
        target = self._directory / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def _link_sources(self, page: Path, text: str) -> str:
        """Return the text of a page, with its links to sources replaced by links to pages."""

        def link(found: re.Match[str]) -> str:
            target = Path(os.path.normpath(page.parent / found[1]))
            return self._linked(found[1], target) + found[2]

        parts: list[str] = []
        end = 0
        for block in _CODE_BLOCK.finditer(text):
            parts += [_LINK.sub(link, text[end : block.start()]), block[0]]
            end = block.end()
        return "".join([*parts, _LINK.sub(link, text[end:])])

    def _linked(self, written: str, target: Path) -> str:
        if target == ROOT / "README.md":
            return written.removesuffix("README.md") + "index.md"
        if target in self._pages or not target.exists() or not target.is_relative_to(ROOT):
            return written
        if target.suffix in _ASSETS:
            asset = self._directory / target.relative_to(ROOT)
            asset.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, asset)
            return written
        self._sources.add(target)
        return written.rstrip("/") + "/index.md" if target.is_dir() else written + ".md"

    def _directory_page(self, directory: Path) -> str:
        """Return a table of a directory's modules with the first line of each module docstring."""
        lines = [f"# `{directory.relative_to(ROOT)}`", "", "| module | |", "| --- | --- |"]
        for module in sorted(directory.glob("*.py")):
            self._sources.add(module)
            first = (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n")[0]
            lines.append(
                f"| [`{module.name}`]({module.name}.md) | {first.replace('|', chr(92) + '|')} |"
            )
        return "\n".join(lines) + "\n"


def _target_of_page(page: Path) -> Path:
    return ROOT / "index.md" if page == ROOT / "README.md" else page


def _with_suffix(source: Path) -> Path:
    return source.with_name(source.name + ".md")


def _source_page(source: Path) -> str:
    if source.suffix == ".ipynb":
        return _notebook_page(source)
    language = _LANGUAGES.get(source.suffix, "text")
    name = source.relative_to(ROOT)
    return f'# `{name}`\n\n``````{language} linenums="1"\n{source.read_text().rstrip()}\n``````\n'


def _notebook_page(source: Path) -> str:
    parts = []
    for cell in json.loads(source.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _with_output(found: re.Match[str]) -> str:
    command = [sys.executable, *shlex.split(found[1])[1:]]
    environment = {**os.environ, "COLUMNS": "96"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return f"```text\n$ {found[1]}\n{done.stdout.rstrip()}\n```"


if __name__ == "__main__":
    Stage(BUILD / "docs").write()
    shutil.copy(CONFIG, BUILD)
