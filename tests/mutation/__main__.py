"""`python -m mutation`: plant faults in copies of the tree and see whether the tests find them.

    NAME ...        names of faults or areas (default: all)
    --list          print the faults instead
    --all-tests     run all cases of the named tests, not only those that `make test` runs
    --whole         run the whole suite for each fault that the named tests do not find
    --jobs N        number of copies in which faults are planted at the same time (1)
    --least N       how many must be found (default: all but the known survivors)
    --results FILE  add each result to this file as a JSON line; skip faults that it has as found

Before that the named tests run once without a fault, since a test that fails anyway finds none. The
exit code is 1 if fewer faults are found than must be.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from mutation.copies import FAILED, PASSED, Copy, Run
from mutation.faults import Fault, known_survivors, read_faults

FOUND, SURVIVED, ERROR = "found", "survived", "error"
STATES = {FAILED: FOUND, PASSED: SURVIVED}


def main(words: Sequence[str]) -> int:
    """Run the faults that the arguments name; return 1 if too few are found."""
    options = _parser().parse_args(words)
    faults = [
        fault
        for fault in read_faults()
        if not options.names or {fault.name, fault.area} & set(options.names)
    ]
    if options.list:
        for fault in faults:
            print(f"{fault.area:<12}{fault.name:<44}{fault.wrong}")
        return 0
    results = _earlier(options.results, faults, all_tests=options.all_tests)
    rest = [fault for fault in faults if fault.name not in results]
    with tempfile.TemporaryDirectory(prefix="rdrr-mutation-") as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(options.jobs if rest else 0)]
        for fault, result in _run(rest, copies, options):
            results[fault.name] = result
            print(f"{result['state']:<10}{fault.name:<44}{result['detail'][:100]}", flush=True)
            if options.results:
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
    return _report(faults, results, options.least)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--all-tests", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--least", type=int)
    parser.add_argument("--results", type=Path)
    return parser


def _earlier(path: Path | None, faults: list[Fault], *, all_tests: bool) -> dict[str, dict]:
    """Return the results of faults that were found, unless they or the selection have changed."""
    lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
    known = {(fault.name, fault.digest(), all_tests) for fault in faults}
    results = map(json.loads, lines)
    return {
        result["name"]: result
        for result in results
        if (result["name"], result["digest"], result["all_tests"]) in known
        and result["state"] == FOUND
    }


def _run(
    faults: list[Fault], copies: list[Copy], options: argparse.Namespace
) -> Iterator[tuple[Fault, dict]]:
    if not faults:
        return
    files = sorted({test.split("::")[0] for fault in faults for test in fault.tests})
    ids = copies[0].selected(files, cover=not options.all_tests)
    tests = {fault: [test for test in ids if _is_named(test, fault)] for fault in faults}
    named = {test for group in tests.values() for test in group}
    control = copies[0].pytest(*[test for test in ids if test in named], limit=None)
    if control.code not in STATES:
        sys.exit(f"the tests do not run without a fault:\n{control.out[-2000:]}")
    print(f"{len(named)} tests, {len(control.failed)} of which fail without a fault; "
          f"{control.seconds:.0f} s", flush=True)  # fmt: skip
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def result_of(fault: Fault) -> dict:
        copy = free.get()
        try:
            state, run = _outcome(copy, fault, tests[fault], set(control.failed), options)
        finally:
            free.put(copy)
        detail = ", ".join(run.failed) if state == FOUND else ""
        detail = detail or (run.out.strip().splitlines() or [""])[-1]
        return {
            "name": fault.name, "area": fault.area, "digest": fault.digest(), "state": state,
            "all_tests": options.all_tests, "seconds": round(run.seconds, 1), "detail": detail,
        }  # fmt: skip

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from zip(faults, pool.map(result_of, faults), strict=True)


def _is_named(test: str, fault: Fault) -> bool:
    return any(
        test == name or test.startswith((f"{name}[", f"{name}::", f"{name.rstrip('/')}/"))
        for name in fault.tests
    )


def _outcome(
    copy: Copy, fault: Fault, tests: list[str], broken: set[str], options: argparse.Namespace
) -> tuple[str, Run]:
    failing = broken.intersection(tests)
    if failing or not tests:
        reason = f"fails without a fault: {min(failing)}" if failing else "no test is selected"
        return ERROR, Run(0, (), reason, 0.0)
    with copy.with_fault(fault):
        run = copy.pytest("-x", *tests)
        if run.code == PASSED and options.whole:
            whole = ("tests", "--ignore=tests/mutation")
            run = copy.pytest("-x", *whole, cover=not options.all_tests, limit=None)
    return STATES.get(run.code, ERROR), run


def _report(faults: list[Fault], results: dict[str, dict], least: int | None) -> int:
    """Print the counts of each area and what was not found; return the exit code."""
    survivors = known_survivors()
    states = [FOUND, SURVIVED, ERROR]
    counts = {
        area: Counter(results[fault.name]["state"] for fault in faults if fault.area == area)
        for area in sorted({fault.area for fault in faults})
    }
    print(f"\n{'area':<14}" + "".join(f"{state:>10}" for state in states))
    for area, count in counts.items():
        print(f"{area:<14}" + "".join(f"{count[state]:>10}" for state in states))
    for fault in faults:
        if results[fault.name]["state"] != FOUND:
            print(f"\n{fault.name}: {fault.wrong}\n    {survivors.get(fault.name, 'not known')}")
    total = sum(count[FOUND] for count in counts.values())
    if least is None:
        least = sum(fault.name not in survivors for fault in faults)
    print(f"\n{total} of {len(faults)} faults are found; {least} must be")
    return int(total < least)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
