"""Loads, mixed generations in several threads, and closes, for a long time: nothing may grow.

    make soak                                            # an hour
    python tests/soak.py PACKAGE --minutes 5 --seed 7

Each cycle loads the package on one of the backends, makes calls that check their own texts, and
closes it. After each cycle the process's own memory, open files and threads are counted. The first
third of the cycles is left out, since caches fill up; between the first and the last fifth of the
others nothing may grow by more than `BOUNDS` says.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median

from support.mixed_calls import in_threads, texts_of

BACKENDS = ("cpu", "wgpu")
CALLS = 3
"""Calls of each thread in a cycle."""


@dataclass(frozen=True)
class Sample:
    """What the process holds after a cycle.

    Attributes:
        memory: Bytes of its own, without mapped files.
        files: Open files.
        threads: Threads of Python.
    """

    memory: int
    files: int
    threads: int


BOUNDS = Sample(memory=64 << 20, files=2, threads=1)
"""By how much each may grow over a run, however long: less than one load of anything takes."""


def sample() -> Sample:
    """Return what the process holds now."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    anonymous = next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
    return Sample(
        anonymous << 10, len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    )


def cycle(package: Path, backend: str, random: Random, calls: int = CALLS) -> None:
    """Load a package, make mixed calls, and close it."""
    import rdrr

    with rdrr.load(package, backend=backend, context=128) as model:
        texts = texts_of(model)
        seeds = [random.randrange(1 << 30) for _ in range(random.randint(1, 4))]
        in_threads(model, texts, seeds, rounds=calls)


def samples(
    package: Path, seed: int, goes_on: Callable[[int], bool], *, calls: int = CALLS
) -> Iterator[Sample]:
    """Yield a sample after every round of the backends.

    Args:
        package: What is loaded.
        seed: Decides the calls.
        goes_on: Whether another round follows so many.
        calls: Of each thread in a cycle.
    """
    random, done = Random(seed), 0
    while goes_on(done):
        for backend in BACKENDS:
            cycle(package, backend, random, calls)
        done += 1
        yield sample()


def growth(found: Sequence[Sample]) -> Sample:
    """Return by how much each figure grew, see the module's text."""
    later = found[len(found) // 3 :]
    part = max(1, len(later) // 5)
    return Sample(
        *(
            int(median(getattr(one, name) for one in later[-part:]))
            - int(median(getattr(one, name) for one in later[:part]))
            for name in asdict(BOUNDS)
        )
    )


def excess(grown: Sample) -> list[str]:
    """Return a sentence for each figure that grew too much."""
    return [
        f"{name} grew by {getattr(grown, name):,}, at most {bound:,} is allowed"
        for name, bound in asdict(BOUNDS).items()
        if getattr(grown, name) > bound
    ]


def main() -> int:
    """Run for as long as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    print(f"seed {given.seed}", flush=True)
    found: list[Sample] = []
    for one in samples(given.package, given.seed, lambda _: time.monotonic() < end):
        found.append(one)
        memory = one.memory >> 20
        print(
            f"round {len(found)}: {memory} MiB, {one.files} files, {one.threads} threads",
            flush=True,
        )
    grown = growth(found)
    wrong = excess(grown)
    print(json.dumps({"seed": given.seed, "rounds": len(found), "growth": asdict(grown)}))
    print("\n".join(wrong) or "nothing grew")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
