"""What a command has shown about the architectures, which `rdrr architectures` repeats.

`benchmarks/check_architectures.py --record` writes the file. An architecture that is not in it
converts, but nothing is claimed about how exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKED_FILE = Path(__file__).with_name("checked.json")


@dataclass(frozen=True)
class CheckedArchitecture:
    """The results of one architecture.

    Attributes:
        models: Names of the models that were compared with transformers.
        errors: Largest relative error of the logits, by the name of the check; checks that did not
            pass are missing.
    """

    models: tuple[str, ...]
    errors: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        return {"models": list(self.models), "errors": dict(self.errors)}


def read_checked() -> dict[str, CheckedArchitecture]:
    """Return the recorded results by the name of the architecture."""
    if not CHECKED_FILE.exists():
        return {}
    data = json.loads(CHECKED_FILE.read_text(encoding="utf-8"))
    return {
        name: CheckedArchitecture(tuple(entry["models"]), entry["errors"])
        for name, entry in data["architectures"].items()
    }


def read_facts() -> dict[str, str]:
    """Return what the results were made with: the version of transformers and the adapter."""
    if not CHECKED_FILE.exists():
        return {}
    facts: dict[str, str] = json.loads(CHECKED_FILE.read_text(encoding="utf-8"))["facts"]
    return facts
