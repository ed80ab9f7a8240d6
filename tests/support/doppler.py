"""Running packages with DOPPLER, the public runtime, on Dawn in Node (`.ci/dawn` sets both up)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from support.dawn import FOLDER, dawn_environment
from support.deadlines import HANGS

PROGRAM = Path(__file__).parents[1] / "doppler" / "generate.mjs"
INSTALLED = FOLDER / "node_modules" / "doppler-gpu" / "package.json"


@dataclass(frozen=True)
class DopplerRun:
    """What DOPPLER generated.

    Attributes:
        prompt: Token ids of the prompt.
        ids: The generated token ids, most probable token each time.
    """

    prompt: list[int]
    ids: list[int]


def generate_with_doppler(package: Path, prompt: str, tokens: int) -> DopplerRun:
    """Load a package with DOPPLER and generate greedily.

    Raises:
        RuntimeError: DOPPLER cannot load or run the package; the message is its own.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json") as requests:
        json.dump([{"path": str(package), "prompt": prompt, "tokens": tokens}], requests)
        requests.flush()
        done = subprocess.run(
            ["node", str(PROGRAM), str(FOLDER), requests.name],
            capture_output=True,
            text=True,
            env=dawn_environment(),
            timeout=HANGS,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RuntimeError(done.stderr[-1000:] or done.stdout[-1000:])
    document = json.loads(lines[0].removeprefix("RESULT "))
    if "error" in document:
        raise RuntimeError(document["error"])
    return DopplerRun(document["prompt"], document["ids"])
