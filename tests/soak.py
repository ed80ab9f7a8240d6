"""Load models, generate in several threads and close them for a long time; no resource may grow.

    make soak                                            # an hour
    python tests/soak.py PACKAGE --minutes 5 --seed 7

Each cycle loads the package on one of the backends, makes calls that check their own output, and
closes it. After each round of the backends the process's own memory, open files and threads are
counted. The first third of the samples is discarded, because caches fill up then; between the
medians of the first and the last fifth of the rest nothing may grow by more than `BOUNDS`.
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
"""Calls that each thread makes in a cycle."""


@dataclass(frozen=True)
class Sample:
    """The resources that the process holds after a round.

        Attributes:
    memory: Anonymous memory in bytes, without mapped files.
            files: Number of open file descriptors.
            threads: Number of Python threads.
    """

    memory: int
    files: int
    threads: int


BOUNDS = Sample(memory=64 << 20, files=2, threads=1)
"""The most that each may grow over a run of any length: less than any single load takes."""


def sample() -> Sample:
    """Return the resources that the process holds now."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    anonymous = next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
    return Sample(
        anonymous << 10, len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    )


def cycle(package: Path, backend: str, random: Random, calls: int = CALLS) -> None:
    """Load a package, make mixed calls from several threads, and close it."""
    import rdrr

    with rdrr.load(package, backend=backend, context=128) as model:
        expected = texts_of(model)
        seeds = [random.randrange(1 << 30) for _ in range(random.randint(1, 4))]
        in_threads(model, expected, seeds, rounds=calls)


def samples(
    package: Path, seed: int, continues: Callable[[int], bool], *, calls: int = CALLS
) -> Iterator[Sample]:
    """Yield a sample after every round of the backends.

    Args:
        package: Folder of the package to load.
        seed: Random seed that decides the calls.
        continues: Given the number of rounds done, returns whether another one follows.
        calls: Calls that each thread makes in a cycle.
    """
    random, done = Random(seed), 0
    while continues(done):
        for backend in BACKENDS:
            cycle(package, backend, random, calls)
        done += 1
        yield sample()


def growth(found: Sequence[Sample]) -> Sample:
    """Return by how much each figure grew; the module docstring says between which samples."""
    later = found[len(found) // 3 :]
    part = max(1, len(later) // 5)
    return Sample(
        *(
            int(median(getattr(phase, name) for phase in later[-part:]))
            - int(median(getattr(phase, name) for phase in later[:part]))
            for name in asdict(BOUNDS)
        )
    )


def excess(grown: Sample) -> list[str]:
    """Return one sentence for each figure that grew beyond its bound."""
    return [
        f"{name} grew by {getattr(grown, name):,}, at most {bound:,} is allowed"
        for name, bound in asdict(BOUNDS).items()
        if getattr(grown, name) > bound
    ]


def main() -> int:
    """Run for the number of minutes given on the command line; return 1 if anything grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    print(f"seed {given.seed}", flush=True)
    found: list[Sample] = []
    for sample in samples(given.package, given.seed, lambda _: time.monotonic() < end):
        found.append(sample)
        memory = sample.memory >> 20
        print(
            f"round {len(found)}: {memory} MiB, {sample.files} files, {sample.threads} threads",
            flush=True,
        )
    grown = growth(found)
    wrong = excess(grown)
    print(json.dumps({"seed": given.seed, "rounds": len(found), "growth": asdict(grown)}))
    print("\n".join(wrong) or "nothing grew")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
