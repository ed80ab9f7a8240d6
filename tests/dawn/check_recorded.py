"""Compile the shaders that a test session recorded with Tint; exit with 1 if it refuses one.

RDRR_RECORD_SHADERS=FOLDER python -m pytest
python tests/dawn/check_recorded.py FOLDER
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.dawn import compile_requests, recorded


def main(folder: Path) -> int:
    """Print each distinct message of Tint once, with one shader that it refers to."""
    requests = recorded(folder)
    if not requests:
        print(f"no shaders are recorded in {folder}", file=sys.stderr)
        return 1
    result = compile_requests(requests)
    messages = Counter((label, messages[0]) for label, messages in result.refused)
    for (label, message), count in messages.items():
        print(f"{label} ({count} of this): {message}")
    print(f"{result.count} shaders on {result.adapter}, {len(result.refused)} refused")
    return 1 if result.refused else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
