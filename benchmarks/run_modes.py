"""Measure everything in docs/MODES.md with one command: make packages, run scripts, report.

    python benchmarks/run_modes.py OUT [--work DIR] [--peer PATH] [--only STEPS] [--quick]

Each step is one command in its own process, whose JSON object is written to OUT/NAME.json. A step
that fails or takes too long is reported, and the remaining steps still run. The weights are random,
the shapes those of SmolLM 135M in F16 and Gemma 3 1B in Q4_K_M. Only the packages that the steps
need are made. `--quick` tries all steps on tiny shapes. The last line is one JSON object with the
steps that ran and those that failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from _prepared import Clock, gguf_file, package
from _script import prepare_environment

PACKAGES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = MappingProxyType(
    {
        "small-f16": ("small", "row", {"quantize": "f16"}),
        "q4-row": ("large", "row", {"quantize": "q4_k_m"}),
        "q4-col": ("large", "blocks-column", {"quantize": "q4_k_m", "q4k_layout": "column"}),
        "q4-fused": ("large", "fused", {"quantize": "q4_k_m", "fuse_gate_up": True}),
        "q4-flat": ("large", "flat", {"quantize": "q4_k_m", "q4k_layout": "flat"}),
    }
)
"""The packages by name: key of `SHAPE_OF`, name for `_prepared.package`, conversion options."""

SHAPE_OF = {"small": "smollm-135m", "large": "gemma3-1b"}
QUICK = {"small": "tiny", "large": "tiny-gemma3"}
KERNEL_SHAPES = ("gemma3-1b", "llama-1b")
STEP_SECONDS = 200
"""Default time limit of a step."""


@dataclass(frozen=True)
class Step:
    """One command to run.

    Attributes:
        name: Name of the step and of its JSON file.
        program: File name of a script in this folder, or `rdrr bench`.
        words: Arguments of the program; `{name}` is replaced by the path of a package or file.
    """

    name: str
    program: str
    words: tuple[str, ...]


_OTHERS = ("--package", "column={q4-col}", "--package", "flat={q4-flat}")
_WEIGHT_ABLATIONS = (
    "w4a16-fused,int8-products,f16-activations,fused-ops,fused-ops-prefill,column-major,"
    "doppler-col-over-flat,doppler-col-over-row,doppler-prefill,gate-up-fusion"
)
_TEN_ROUNDS = ("--tokens", "64", "--repeat", "10")

MODES, ABLATIONS, SPEED = "bench_modes.py", "bench_ablations.py", "rdrr bench"
STEPS = (
    Step("modes-small", MODES, ("{small-f16}", "--mode", "all", *_TEN_ROUNDS)),
    Step("modes-large", MODES, ("{q4-row}", "--mode", "all", *_TEN_ROUNDS)),
    Step("ablations-small", ABLATIONS, ("{small-f16}", "--ablation", "all", *_TEN_ROUNDS)),
    Step(
        "ablations-large",
        ABLATIONS,
        (
            "{q4-row}",
            "--ablation",
            _WEIGHT_ABLATIONS,
            *_OTHERS,
            "--package",
            "fused={q4-fused}",
            *_TEN_ROUNDS,
        ),
    ),
    *(
        Step(f"kernels-{shape}", "bench_kernels.py", ("--shape", f"{{{shape}}}"))
        for shape in KERNEL_SHAPES
    ),
    Step("speed-small", SPEED, ("{small-f16}", "--json")),
    Step("speed-large", SPEED, ("{q4-row}", "--json")),
)

EXTERNAL = Step(
    "external",
    "bench_llama_cpp.py",
    ("--llama-cpp", "{peer}", "--gguf", "{gguf}", "--package", "{q4-row}"),
)
"""The step that runs only with `--peer`."""

SIZED = (MODES, ABLATIONS, SPEED, EXTERNAL.program)
"""Programs that have the options of a workload's size."""


def prepare(work: Path, shapes: Mapping[str, str], steps: Sequence[Step]) -> dict[str, str]:
    """Make the files that the steps need and that are missing; return their paths by name."""
    words = " ".join(word for step in steps for word in step.words)
    clock = Clock()
    paths = {
        name: str(package(work, shapes[size], kind, clock, **options))
        for name, (size, kind, options) in PACKAGES.items()
        if f"{{{name}}}" in words
    }
    if EXTERNAL in steps:
        paths["gguf"] = str(gguf_file(work, shapes["large"], "q4_k_m", clock))
    return paths


def command(step: Step, paths: Mapping[str, str], more: Sequence[str]) -> list[str]:
    """Return the command line of a step.

    Args:
        step: The step.
        paths: Paths that replace `{name}` in its arguments.
        more: Further arguments for the programs in `SIZED`.
    """
    if step.program == SPEED:
        program = ["-m", "rdrr", "bench"]
    else:
        program = [str(Path(__file__).with_name(step.program))]
    words = list(step.words)
    for name, path in paths.items():
        words = [word.replace(f"{{{name}}}", path) for word in words]
    return [sys.executable, *program, *words, *(more if step.program in SIZED else ())]


def run(words: Sequence[str], limit: float = STEP_SECONDS) -> dict[str, Any]:
    """Run a command and return the JSON object on its last line, or `{"failed": reason}`.

    Args:
        words: The command line.
        limit: Time limit in seconds.
    """
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {limit:.0f} s"}
    if done.returncode:
        return {"failed": done.stderr.strip()[-400:] or f"exit code {done.returncode}"}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _gpu(row: Mapping[str, Any], side: Mapping[str, Any]) -> str:
    """Format the GPU milliseconds of one side of an ablation in the measured phase."""
    key = "gpu_decode_ms_per_token" if row["phase"] == "decode" else "gpu_prefill_ms"
    return f"{side[key]:.3f}" if side[key] is not None else "-"


def lines(name: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that report a step.

    Args:
        name: Name of the step.
        figures: Its JSON object.
    """
    if "failed" in figures:
        yield f"{name}: FAILED {figures['failed']}"
    for key, mode in figures.get("modes", {}).items():
        median = mode["ms_per_token"]["median"]
        work, tokens = mode["work"], mode["tokens"]
        yield (
            f"{name} {key}: {median:.3f} ms/token, GPU {mode['gpu_ms_per_token'] or 0:.3f} ms "
            f"(kernels {mode['gpu_kernels_ms_per_token'] or 0:.3f}, "
            f"smallest pass {mode['gpu_smallest_pass_us'] or 0:.2f} us), "
            f"{work['submits'] / tokens:.2f} submits, {work['buffer_creates'] / tokens:.2f} buffers"
        )
    for ratio in figures.get("ratios", ()):
        yield (
            f"{name} {ratio['name']}: {ratio['median']:.2f} "
            f"({ratio['least']:.2f} to {ratio['most']:.2f}) gate {ratio['gate']} "
            f"published {ratio['published']} {ratio['verdict']}"
        )
    for gain in figures.get("interval_model", ()):
        yield (
            f"{name} gain of {gain['name']} over {gain['over']}: {gain['predicted']:.2f} predicted "
            f"from {gain['encode_ms']:.3f} ms to record, {gain['gpu_ms']:.3f} ms of GPU and "
            f"{gain['sync_ms']:.3f} ms of waiting; {gain['measured']:.2f} measured"
        )
    for row in figures.get("ablations", ()):
        if "not_run" in row:
            yield f"{name} {row['name']}: not run, {row['not_run']}"
            continue
        ratio, (slow, fast) = row["ratio"], row["sides"]
        yield (
            f"{name} {row['name']} ({row['phase']}): {ratio['median']:.2f} "
            f"({ratio['least']:.2f} to {ratio['most']:.2f}), {row['slow']} "
            f"{slow['ms']['median']:.3f} ms, {row['fast']} {fast['ms']['median']:.3f} ms, "
            f"GPU {_gpu(row, slow)} and {_gpu(row, fast)}, "
            f"gate {ratio['gate']} published {ratio['published']} {ratio['verdict']}"
        )
    for product in figures.get("products", ()):
        if product["matrix"] in ("gate-up", "head") and "not_run" not in product:
            yield (
                f"{name} {product['matrix']} {product['kernel']}: "
                f"{product['microseconds']['median']:.1f} us, "
                f"{product['gigabytes_per_second']:.0f} GB/s, "
                f"{100 * product['share_of_copy']:.0f} % of a memory copy"
            )
    for runner, rates in figures.get("runners", {}).items():
        decode = rates["decode_tokens_per_second"]["median"]
        yield f"{name} {runner}: {decode:.1f} tokens/s"
    for runner, why in figures.get("not_run", {}).items():
        yield f"{name} {runner}: not run, {why}"
    if "gpu_time_spread" in figures:
        spread, verdict = figures["gpu_time_spread"], figures["gpu_time_verdict"]
        yield f"{name} GPU time of kernels differs by {spread} {verdict}"
    if "decode_tokens_per_second" in figures:
        decode = figures["decode_tokens_per_second"]["median"]
        first = figures["time_to_first_token_ms"]["median"]
        yield f"{name}: {decode:.0f} tokens/s, first token {first:.1f} ms"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("out", type=Path, help="folder for the JSON files")
    add(
        "--work",
        type=Path,
        help="folder that keeps checkpoints and packages; a temporary one by default",
    )
    add("--peer", type=Path, help="llama.cpp's libraries: npm tarball or folder")
    add("--only", help="names of the steps to run, separated by commas")
    add(
        "--step-seconds",
        type=float,
        default=STEP_SECONDS,
        help="time limit of each step, in seconds",
    )
    add("--quick", action="store_true", help="tiny shapes and few tokens, to try the script")
    options = parser.parse_args()
    prepare_environment()
    options.out.mkdir(parents=True, exist_ok=True)
    more = ("--prompt-tokens", "8", "--tokens", "5", "--repeat", "1") if options.quick else ()
    steps = [*STEPS, EXTERNAL] if options.peer is not None else [*STEPS]
    if options.only:
        names = options.only.split(",")
        steps = [step for step in steps if step.name in names]
    report: list[str] = []
    failed: list[str] = []
    with ExitStack() as stack:
        work = options.work or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="modes-"))
        )
        work.mkdir(parents=True, exist_ok=True)
        paths = prepare(work, QUICK if options.quick else SHAPE_OF, steps)
        paths |= {shape: "tiny" if options.quick else shape for shape in KERNEL_SHAPES}
        paths |= {"peer": str(options.peer)}
        for step in steps:
            start = time.perf_counter()
            figures = run(command(step, paths, more), options.step_seconds)
            (options.out / f"{step.name}.json").write_text(
                json.dumps(figures, indent=1) + "\n", encoding="utf-8"
            )
            report += lines(step.name, figures)
            failed += [step.name] if "failed" in figures else []
            seconds = time.perf_counter() - start
            print(f"{step.name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    print("\n".join(report))
    print(json.dumps({"steps": [step.name for step in steps], "failed": failed}))


if __name__ == "__main__":
    main()
