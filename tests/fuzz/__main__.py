"""`python -m fuzz`: run hostile cases through every parser and report misbehaviour.

    --cases N       number of cases of all targets together (100,000)
    --seed N        repeat a campaign; every campaign prints its seed
    --start N       skip the first N batches, to continue a campaign that was stopped
    --target NAME   run only this target; may be given several times
    --keep          keep a small case for each new outcome, as a start for later campaigns
    --replay        run each case of the corpus once instead

Findings are written to the corpus of their target. The exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import secrets
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fuzz import targets
from fuzz.campaign import Campaign, Plan, Result
from fuzz.verdicts import ACCEPTED

PRELOADED = ("jinja2", "tokenizers", "llguidance", "zstandard", "rdrr_converter.convert",
             "rdrr._report_html", "rdrr_runtime.text.chat_template")  # fmt: skip
"""Modules that are imported once, before processes are forked."""


def main(words: Sequence[str]) -> int:
    """Run the campaign that the arguments describe; return 1 if it has findings."""
    given = _parser().parse_args(words)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    logging.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    names = given.target or list(targets.TARGETS)
    table = {name: targets.TARGETS[name] for name in names}
    print(f"seed {given.seed}", flush=True)
    known = {
        name: (target.sound, tuple(targets.kept(name).values())) for name, target in table.items()
    }
    plan = Plan(
        table,
        targets.cases,
        given.cases,
        given.seed,
        given.start,
        known if given.replay else None,
    )
    campaign = Campaign(plan, partial(print, flush=True))
    began = time.monotonic()
    try:
        result = campaign.run()
    except KeyboardInterrupt:
        print(f"resume with --seed {given.seed} --cases {given.cases} --start {campaign.finished}")
        result = campaign.result
    _report(result, time.monotonic() - began)
    if not given.replay:
        _keep(result, given.corpus, outcomes=given.keep)
    return 1 if result.found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--target", action="append", choices=list(targets.TARGETS))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--corpus", type=Path, default=targets.CORPUS)
    return parser


def _report(result: Result, seconds: float) -> None:
    for fault in result.found:
        print(f"\n== {fault.target}: {fault.what}\n{fault.trace}\ncase: {fault.case[:400]!a}")
    print(f"\n{'target':<12}{'cases':>8}{'ms each':>9}{'endings':>9}")
    for name, count in result.counts.items():
        endings = sum(target == name for target, _ in result.outcomes)
        each = 1000 * result.seconds[name] / max(1, count)
        print(f"{name:<12}{count:>8}{each:>9.1f}{endings:>9}")
    total = sum(result.counts.values())
    print(f"{total} cases in {seconds:.0f} s, {total / max(seconds, 1e-9):.0f} per second; "
          f"{len(result.found)} findings")  # fmt: skip


def _keep(result: Result, corpus: Path, *, outcomes: bool) -> None:
    for fault in result.found:
        _write(corpus / fault.target / fault.file_name, fault.case)
    if outcomes:
        for (name, outcome), case in result.outcomes.items():
            if case and outcome != ACCEPTED:
                _write(corpus / name / outcome, case)


def _write(path: Path, case: bytes) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(case)
        print(f"kept {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
