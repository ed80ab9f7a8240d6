"""Check every architecture against transformers, and write the table of what converts.

    python benchmarks/check_architectures.py --only qwen3 --jobs 2
    python benchmarks/check_architectures.py --markdown docs/reference/architectures.md --record

The models are the tiny random ones of the tests, so what others add there is picked up. Each is
built in transformers in float32, converted as f32, f16 and q4_k_m, run by both backends, and read
from and written to a GGUF where llama.cpp has the architecture. `--record` writes the results that
`rdrr architectures` shows. The exit code is 1 if a check failed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from _architecture_checks import LIMITS, REQUIRED, Outcome, Subject, check, subjects
from _script import table
from rdrr_converter.architectures import ARCHITECTURES, ArchitectureRule
from rdrr_converter.architectures.base import MASKED
from rdrr_converter.architectures.checked import CHECKED_FILE, CheckedArchitecture, read_checked

HEADINGS = {
    "cpu": "cpu",
    "cpu_cached": "cpu, cached",
    "wgpu": "wgpu",
    "wgpu_cached": "wgpu, cached",
    "wgpu_batch": "wgpu, batch",
    "f16": "f16",
    "q4_k_m": "Q4_K_M",
    "gguf_in": "GGUF in",
    "gguf_out": "GGUF out",
}

INTRODUCTION = """# Architectures

This page is written by `benchmarks/check_architectures.py --markdown`. Every model is a tiny random
one, built by transformers {transformers} in float32 with the configuration of the tests, converted,
and run on `{adapter}` and by the CPU backend. A number is max|a - b| / max|b| over the logits of a
prompt of {tokens} tokens, the largest over the models of an architecture, where b is from
transformers unless the table below says otherwise. Rounding decides between two experts that are
almost equally probable, so prompts for mixtures are chosen without such tokens, and the number is
a quantile over the tokens. Where attention does not scale its scores (Gemma 3n and 4), the random
norms of keys are multiplied by head_dim^-0.5; [Numerics](../explanation/numerics.md) says why.
How fast families decode beside llama.cpp, where that was measured, is in
[Performance](../PERFORMANCE.md).

| column | what is compared | limit |
| --- | --- | --- |
| cpu, wgpu | f32 package, all tokens in one pass | {cpu:g} |
| cached | the last tokens one by one, after a prefill | {cpu:g} |
| batch | three sequences of different lengths in one pass | {cpu:g} |
| f16 | f16 package, wgpu with an f16 cache and cpu on the same weights | {f16:g} |
| Q4_K_M | Q4_K_M package, wgpu and cpu on the same blocks | {q4:g} |
| GGUF in | a GGUF made with gguf-py, converted | {cpu:g} |
| GGUF out | a package exported as GGUF, and that converted again | {cpu:g} |
"""


def families(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Return the outcomes by the name of the architecture, in alphabetical order."""
    by_name: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_name.setdefault(outcome.architecture or outcome.model_type, []).append(outcome)
    return dict(sorted(by_name.items()))


def summary(outcomes: Sequence[Outcome]) -> CheckedArchitecture:
    """Return the largest error of each check over the models of an architecture.

    A check of a GGUF counts if at least one of the models passed it and none was wrong.
    """
    errors: dict[str, float] = {}
    for name in HEADINGS:
        values = [outcome.errors[name] for outcome in outcomes if name in outcome.errors]
        is_complete = len(values) == len(outcomes) or (name not in REQUIRED and values)
        if is_complete and max(values) <= LIMITS[name]:
            errors[name] = float(f"{max(values):.1e}")
    return CheckedArchitecture(tuple(outcome.subject for outcome in outcomes), errors)


def markdown(checked: Mapping[str, CheckedArchitecture], facts: Mapping[str, str]) -> str:
    """Return the page of the table."""
    rules = {rule.name: rule for rule in ARCHITECTURES}
    head = INTRODUCTION.format(**facts, cpu=LIMITS["cpu"], f16=LIMITS["f16"], q4=LIMITS["q4_k_m"])
    names = ("architecture", "classes", *HEADINGS.values())
    lines = [head, _row(names), _row(["---"] * len(names))]
    for name, entry in sorted(checked.items()):
        classes = ", ".join(f"`{each}`" for each in rules[name].classes) if name in rules else ""
        cells = [f"{entry.errors[key]:.0e}" if key in entry.errors else "-" for key in HEADINGS]
        lines.append(_row((name, classes, *cells)))
    encoders = sorted(name for name in rules if _is_encoder(rules[name]))
    lines.append(
        f"\nEncoders predict no tokens: {', '.join(encoders)}. `tests/end_to_end/test_encoders.py` "
        "compares their embeddings\non both backends, and their heads on the CPU, with those of "
        "transformers, within 1e-05."
    )
    rest = sorted(set(rules) - set(checked) - set(encoders))
    if rest:
        lines.append(f"\nThe command has no model for: {', '.join(rest)}.")
    return "\n".join(lines) + "\n"


def _is_encoder(rule: ArchitectureRule) -> bool:
    """Return whether an architecture has a head for masked tokens instead of an output head."""
    return any(head.ending == MASKED for head in rule.heads)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def run(chosen: Sequence[Subject], seed: int, jobs: int) -> Iterator[Outcome]:
    """Check models in parallel processes, and yield each outcome when it is there."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(_check_by_name, subject.name, seed) for subject in chosen}
        for done in as_completed(waiting):
            yield done.result()


def _check_by_name(name: str, seed: int) -> Outcome:
    return check(next(subject for subject in subjects() if subject.name == name), seed)


def choose(all_subjects: Sequence[Subject], only: Sequence[str]) -> list[Subject]:
    """Return the models whose name, model type or architecture is among the words."""
    by_type = {kind: rule.name for rule in ARCHITECTURES for kind in (rule.name, *rule.model_types)}
    return [
        subject
        for subject in all_subjects
        if not only
        or {subject.name, subject.model_type, subject.model_type.removesuffix("_text")} & set(only)
        or by_type.get(subject.model_type) in only
    ]


def record(checked: Mapping[str, CheckedArchitecture], facts: Mapping[str, str]) -> None:
    """Write the file that `rdrr architectures` reads."""
    data = {
        "facts": dict(facts),
        "architectures": {name: entry.as_dict() for name, entry in sorted(checked.items())},
    }
    CHECKED_FILE.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _facts() -> dict[str, str]:
    import transformers
    from _architecture_checks import TOKENS
    from rdrr_device.adapters import list_adapters

    adapters = list_adapters()
    name = adapters[0].name if adapters else "no adapter"
    return {"transformers": transformers.__version__, "adapter": name, "tokens": str(TOKENS)}


def _missing(outcomes: Mapping[str, Sequence[Outcome]]) -> list[ArchitectureRule]:
    return [rule for rule in ARCHITECTURES if rule.name not in outcomes]


def _show(outcome: Outcome, seconds: float) -> None:
    cells = " ".join(f"{name} {value:.1e}" for name, value in outcome.errors.items())
    verdict = f"FAILED {', '.join(outcome.faults)}" if outcome.faults else "good"
    print(
        f"{outcome.subject} ({outcome.architecture}): {verdict}: {cells} [{seconds:.0f} s]",
        flush=True,
    )
    for name, why in outcome.refusals.items():
        print(f"    {name}: {why}", flush=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--only", action="append", default=[], metavar="NAME", help="architecture or model type")
    add("--jobs", type=int, default=1, metavar="N", help="processes")
    add("--seed", type=int, help="seed of weights and ids; random by default")
    add("--markdown", type=Path, metavar="FILE", help="write the table as a page")
    add("--record", action="store_true", help="write what `rdrr architectures` shows")
    options = parser.parse_args()
    seed = options.seed
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    chosen = choose(subjects(), options.only)
    if not chosen:
        parser.error(f"no model is called {', '.join(options.only)}")
    print(f"{len(chosen)} models, seed {seed}", flush=True)
    outcomes, start = [], time.perf_counter()
    for outcome in run(chosen, seed, options.jobs):
        outcomes.append(outcome)
        _show(outcome, time.perf_counter() - start)
    by_name = families(outcomes)
    checked = {
        name: summary(group)
        for name, group in by_name.items()
        if not any(outcome.faults for outcome in group)
    }
    facts = _facts()
    known = {rule.name for rule in ARCHITECTURES}
    # Of architectures that did not run now, earlier results are kept; failed ones are dropped.
    kept = {n: entry for n, entry in read_checked().items() if n not in by_name and n in known}
    every = {**kept, **checked}
    if options.record:
        record(every, facts)
    if options.markdown:
        options.markdown.write_text(markdown(every, facts), encoding="utf-8")
    print()
    rows = [
        (name, *(f"{entry.errors[key]:.0e}" if key in entry.errors else "-" for key in HEADINGS))
        for name, entry in sorted(checked.items())
    ]
    table(("architecture", *HEADINGS.values()), rows)
    if not options.only:
        for rule in _missing(by_name):
            print(f"{rule.name}: no model to check it with")
    faults = {outcome.subject: list(outcome.faults) for outcome in outcomes if outcome.faults}
    print(
        json.dumps(
            {
                "benchmark": "architectures",
                "seed": seed,
                "facts": facts,
                "faults": faults,
                "rows": [
                    outcome.as_dict()
                    for outcome in sorted(outcomes, key=lambda outcome: outcome.subject)
                ],
            }
        )
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
