"""Planted faults: small changes of the product's code that the tests must find."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

FAULTS = Path(__file__).parent / "faults"
SURVIVORS = Path(__file__).parent / "survivors.toml"


@dataclass(frozen=True)
class Fault:
    """A change of one place of the code, and the tests that should find it.

    Attributes:
        area: Name of the file of faults that it comes from.
        name: Unique name.
        wrong: What is wrong with the code, in one line.
        file: Path of the changed file, relative to the root.
        find: Text that occurs exactly once in the file.
        replace: What stands there instead.
        tests: Files, folders or node ids of tests; parameters may be left out.
    """

    area: str
    name: str
    wrong: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """Return the text of the file with the fault; fail unless its place is unique."""
        count = text.count(self.find)
        if count != 1:
            raise ValueError(
                f"{self.name}: the text to replace occurs {count} times in {self.file}"
            )
        return text.replace(self.find, self.replace)

    def digest(self) -> str:
        """Return a digest of the fault, which changes with its data."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]


def read_faults(folder: Path = FAULTS) -> list[Fault]:
    """Read the files of faults, each of which is an area."""
    return [
        Fault(path.stem, **entry | {"tests": tuple(entry["tests"])})
        for path in sorted(folder.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    ]


def known_survivors() -> dict[str, str]:
    """Return the reason for each fault that no test finds yet."""
    return tomllib.loads(SURVIVORS.read_text(encoding="utf-8")) if SURVIVORS.exists() else {}
