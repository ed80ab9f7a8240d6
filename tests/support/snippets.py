"""The code snippets of README and docs, and which of them can be run here.

A block fenced as `bash` or `python` is run. A block fenced as `py` is a fragment of a program, and
is parsed. Any other block is read only: where a line calls a command, the command, its flags and
the files that it names must exist.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks/README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
)
RUN = ("bash", "python")
PROGRAMS = ("rdrr", "convert-cli", "python", "make", "pytest")
_FENCE = re.compile(r"^(```+)([a-z-]*)\s*$")


@dataclass(frozen=True)
class Snippet:
    """One block of a page.

    Attributes:
        page: The page.
        line: Line of the page where the block begins, counted from 1.
        language: Word after the fence; empty for an indented block.
        text: The block.
    """

    page: Path
    line: int
    language: str
    text: str

    @property
    def is_run(self) -> bool:
        """Whether the block is run, instead of being read only."""
        return self.language in RUN

    def commands(self) -> Iterator[str]:
        """Yield the commands of a shell block, without prompts, comments and output."""
        for line in self.text.replace("\\\n", " ").splitlines():
            command = re.sub(r"^\s*\$ ", "", line).strip()
            if command and not command.startswith("#"):
                yield command

    def calls(self) -> Iterator[list[str]]:
        """Yield the words of each line that calls a program of `PROGRAMS`; the rest is output."""
        for command in self.commands():
            if command.split()[0] in PROGRAMS:
                # Remarks follow a number sign or stand in a column of their own.
                yield shlex.split(re.split(r"\s{3,}", command)[0], comments=True)


def snippets(page: Path) -> list[Snippet]:
    """Return the blocks of a page in order."""
    snippets: list[Snippet] = []
    block: list[str] = []
    begun, language, fence = 0, "", ""
    for number, line in enumerate([*page.read_text(encoding="utf-8").splitlines(), ""], 1):
        match = _FENCE.match(line)
        if fence:
            if match and match[1] == fence and not match[2]:
                snippets.append(Snippet(page, begun, language, "\n".join(block)))
                block, fence = [], ""
            else:
                block.append(line)
        elif match:
            begun, language, fence = number, match[2], match[1]
        elif line.startswith("    ") and not block and _is_command(line):
            begun, block = number, [line.strip()]
        elif block and line.startswith("    "):
            block.append(line.strip())
        elif block:
            snippets.append(Snippet(page, begun, "", "\n".join(block)))
            block = []
    return snippets


def _is_command(line: str) -> bool:
    return line.split()[0] in (*PROGRAMS, "git", "npm")
