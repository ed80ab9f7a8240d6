"""Cases of manifests of all format versions."""

from __future__ import annotations

import json
from pathlib import Path

from fuzz.json_edits import base, edited_text
from support.manifests import valid_manifest

_DATA = Path(__file__).parents[1] / "data" / "manifests"
VALUES = (
    valid_manifest(layers=1),
    json.loads((_DATA / "tiny-model-dec2025" / "manifest.json").read_text(encoding="utf-8")),
    json.loads((_DATA / "mini-model-jan2026" / "manifest.json").read_text(encoding="utf-8")),
    json.loads((_DATA / "minimal-current.json").read_text(encoding="utf-8")),
)
_BASES = tuple(base(value) for value in VALUES)

SOUND = (json.dumps(VALUES[0]).encode(),)
CASES = edited_text((_BASES[0], *_BASES))
