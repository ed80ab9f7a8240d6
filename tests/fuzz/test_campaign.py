"""A short campaign over every parser, and proof that a campaign finds every kind of fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from fuzz.targets import CORPUS, TARGETS, kept
from support.commands import ROOT
from support.deadlines import HANGS
from support.seeds import seed_of_run

COMPONENTS = ("format", "device", "manifests", "converter", "runtime", "api", "tests")
EACH = 100
"""Number of cases per target."""

MOST = 300_000
"""Largest size of the corpus in bytes."""


def python(*words: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, whose children may crash without affecting this one."""
    path = os.pathsep.join(str(ROOT / component) for component in COMPONENTS)
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        cwd=ROOT,
        timeout=HANGS,
        check=False,
    )


@pytest.mark.thorough
def test_no_parser_misbehaves_on_hostile_cases(tmp_path):
    seed = seed_of_run()
    words = ("--cases", EACH * len(TARGETS), "--seed", seed, "--corpus", tmp_path)
    done = python("-m", "fuzz", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"seed {seed}" in done.stdout
    assert "; 0 findings" in done.stdout


@pytest.mark.thorough
def test_no_parser_misbehaves_on_its_sound_cases_or_its_corpus():
    done = python("-m", "fuzz", "--replay")
    assert done.returncode == 0, done.stdout + done.stderr
    count = sum(len(target.sound) + len(kept(name)) for name, target in TARGETS.items())
    assert f"{count} cases" in done.stdout
    assert count > 100


_BROKEN = """
import json, sys
from fuzz import campaign, worker
from fuzz.broken_readers import FAULTS, target
from fuzz.campaign import Campaign, Plan
campaign.ENOUGH = 1
marked = sys.argv[1] == "marked"
if marked:  # sound cases keep the usual limits, which a busy machine does not reach
    worker.CPU_SECONDS, worker.SECONDS = 0.5, 10.0
table = {name: target(fault, marked=marked) for name, (fault, _) in FAULTS.items()}
plan = Plan(table, lambda name: table[name].hostile, 10 * len(table), 1)
result = Campaign(plan, lambda line: None).run()
found = {one.target: [one.what, one.case.decode("latin-1")] for one in result.found}
print(json.dumps({"found": found, "counts": result.counts}))
"""


@pytest.fixture(scope="module")
def broken() -> dict[str, dict[str, dict[str, list[str]]]]:
    """Run campaigns over broken parsers, with and without cases that trigger the faults."""
    return {kind: json.loads(python("-c", _BROKEN, kind).stdout) for kind in ("marked", "unmarked")}


@pytest.mark.thorough
def test_every_kind_of_fault_is_found_with_its_case(broken):
    from fuzz.broken_readers import FAULTS, MARK

    faults = broken["marked"]["found"]
    assert faults.keys() == FAULTS.keys()
    for name, (_, words) in FAULTS.items():
        what, case = faults[name]
        assert words in what
        assert MARK in case.encode("latin-1")


@pytest.mark.thorough
def test_a_parser_that_refuses_properly_is_not_a_finding(broken):
    assert not broken["unmarked"]["found"]
    assert set(broken["unmarked"]["counts"].values()) == {10}


def test_the_corpus_is_small():
    sizes = [path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()]
    assert 0 < sum(sizes) < MOST


@pytest.mark.thorough
def test_the_same_seed_makes_the_same_cases(tmp_path):
    ends = [
        python("-m", "fuzz", "--target", "imatrix", "--cases", 60, "--seed", seed, "--keep",
               "--corpus", tmp_path / str(number)).stdout
        for number, seed in enumerate((5, 5, 6))
    ]  # fmt: skip
    kept_cases = [
        {path.name: path.read_bytes() for path in (tmp_path / str(number)).rglob("*-*")}
        for number in range(3)
    ]
    assert kept_cases[0], ends[0]
    assert kept_cases[0] == kept_cases[1]
    assert kept_cases[0] != kept_cases[2]
