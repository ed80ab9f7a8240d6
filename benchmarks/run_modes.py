"""Everything of docs/MODES.md in one call: packages made, measured, one small table last.

    python benchmarks/run_modes.py OUT [--work DIR] [--peer PATH] [--only STEPS] [--quick]

Each step is one `rdrr bench` command in a process of its own, whose JSON goes to OUT/NAME.json; a
step that fails or takes too long is named in the table and the others go on. Weights are random,
at true shapes: SmolLM 135M in F16 and Gemma 3 1B in Q4_K_M. Packages are made for the steps that
need them. `--quick` tries all steps on tiny shapes.
"""

from __future__ import annotations

import argparse
import json
import os
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

from shapes import SHAPES
from synthesize import synthesize

PACKAGES: Mapping[str, tuple[str, dict[str, Any]]] = MappingProxyType(
    {
        "small-f16": ("small", {"quantize": "f16"}),
        "q4-row": ("large", {"quantize": "q4_k_m"}),
        "q4-col": ("large", {"quantize": "q4_k_m", "q4k_layout": "column"}),
        "q4-fused": ("large", {"quantize": "q4_k_m", "fuse_gate_up": True}),
        "q4-flat": ("large", {"quantize": "q4_k_m", "q4k_layout": "flat"}),
    }
)
"""Packages by name: which shape, and the options of the conversion."""

SHAPE_OF = {"small": "smollm-135m", "large": "gemma3-1b"}
QUICK = {"small": "tiny", "large": "tiny-gemma3"}
KERNEL_SHAPES = ("gemma3-1b", "llama-1b")
STEP_SECONDS = 200


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        name: Of its JSON file.
        words: What follows `rdrr bench`; `{name}` stands for a package's folder.
    """

    name: str
    words: tuple[str, ...]


_OTHERS = ("--package", "column={q4-col}", "--package", "flat={q4-flat}")
_OF_WEIGHTS = (
    "w4a16-fused,int8-products,f16-activations,fused-ops,fused-ops-prefill,column-major,"
    "doppler-col-over-flat,doppler-col-over-row,doppler-prefill,gate-up-fusion"
)
_TEN = ("--tokens", "64", "--repeat", "10")

STEPS = (
    Step("modes-small", ("{small-f16}", "--mode", "all", *_TEN)),
    Step("modes-large", ("{q4-row}", "--mode", "all", *_TEN)),
    Step("ablations-small", ("{small-f16}", "--ablation", "all", *_TEN)),
    Step(
        "ablations-large",
        ("{q4-row}", "--ablation", _OF_WEIGHTS, *_OTHERS, "--package", "fused={q4-fused}", *_TEN),
    ),
    *(Step(f"kernels-{one}", ("kernels", "--shape", f"{{{one}}}")) for one in KERNEL_SHAPES),
    Step("speed-small", ("{small-f16}",)),
    Step("speed-large", ("{q4-row}",)),
)

EXTERNAL = Step(
    "external",
    ("external", "--llama-cpp", "{peer}", "--gguf", "{gguf}", "--package", "ours={q4-row}"),
)
"""Only with `--peer`."""


def prepare_gguf(work: Path, shape: str) -> None:
    """The large checkpoint as a GGUF file of llama.cpp's types, unless it is there."""
    from _gguf import write_gguf
    from rdrr_converter.convert import convert
    from rdrr_manifests.package import open_package

    path, folder = work / "large.gguf", work / f"{shape}-ggml"
    if path.is_file():
        return
    if not folder.exists():
        convert(work / shape, folder, quantize="q4_k_m", k_tail="ggml", workers=os.cpu_count())
    write_gguf(open_package(folder), path)


def prepare(work: Path, shapes: Mapping[str, str], steps: Sequence[Step]) -> dict[str, Path]:
    """Make what steps need, checkpoints and packages, unless it is there; packages by name."""
    from rdrr_converter.convert import convert

    words = " ".join(word for step in steps for word in step.words)
    found = {}
    for name, (size, options) in PACKAGES.items():
        if f"{{{name}}}" not in words:
            continue
        shape = shapes[size]
        checkpoint, package = work / shape, work / f"{shape}-{name}"
        if not (checkpoint / "model.safetensors.index.json").is_file():
            synthesize(SHAPES[shape], checkpoint)
        if not package.exists():
            start = time.perf_counter()
            convert(checkpoint, package, workers=os.cpu_count(), **options)
            print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        found[name] = package
    return found


def run(
    step: Step, places: Mapping[str, str], more: Sequence[str], limit: float = STEP_SECONDS
) -> dict[str, Any]:
    """The JSON object of a step, or `{"failed": why}`; `places` is what marks stand for."""
    folders = {f"{{{name}}}": place for name, place in places.items()}
    words = []
    for word in step.words:
        for mark, folder in folders.items():
            word = word.replace(mark, folder)
        words.append(word)
    command = [sys.executable, "-m", "rdrr", "bench", *words, *more, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {limit:.0f} s"}
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"failed": done.stderr.strip()[-400:] or f"exit code {done.returncode}"}
    return found if done.returncode == 0 else {"failed": found}


def _gpu(row: Mapping[str, Any], side: Mapping[str, Any]) -> str:
    """GPU time of a side's phase."""
    key = "gpu_decode_ms_per_token" if row["phase"] == "decode" else "gpu_prefill_ms"
    return f"{side[key]:.3f}" if side[key] is not None else "-"


def lines(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    """What the last table says of a step."""
    if "failed" in found:
        yield f"{name}: FAILED {found['failed']}"
    for key, mode in found.get("modes", {}).items():
        median = mode["ms_per_token"]["median"]
        work, tokens = mode["work"], mode["tokens"]
        yield (
            f"{name} {key}: {median:.3f} ms/token, GPU {mode['gpu_ms_per_token'] or 0:.3f} ms "
            f"(kernels {mode['gpu_kernels_ms_per_token'] or 0:.3f}, "
            f"smallest pass {mode['gpu_smallest_pass_us'] or 0:.2f} us), "
            f"{work['submits'] / tokens:.2f} submits, {work['buffer_creates'] / tokens:.2f} buffers"
        )
    for ratio in found.get("ratios", ()):
        yield (
            f"{name} {ratio['name']}: {ratio['median']:.2f} "
            f"({ratio['least']:.2f} to {ratio['most']:.2f}) gate {ratio['gate']} "
            f"published {ratio['published']} {ratio['verdict']}"
        )
    for gain in found.get("interval_model", ()):
        yield (
            f"{name} gain of {gain['name']} over {gain['over']}: {gain['predicted']:.2f} predicted "
            f"from {gain['encode_ms']:.3f} ms to record, {gain['gpu_ms']:.3f} ms of GPU and "
            f"{gain['sync_ms']:.3f} ms of waiting; {gain['measured']:.2f} measured"
        )
    for row in found.get("ablations", ()):
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
    for product in found.get("products", ()):
        if product["matrix"] in ("gate-up", "head") and "not_run" not in product:
            yield (
                f"{name} {product['matrix']} {product['kernel']}: "
                f"{product['microseconds']['median']:.1f} us, "
                f"{product['gigabytes_per_second']:.0f} GB/s, "
                f"{100 * product['share_of_copy']:.0f} % of a copy"
            )
    for runner, rates in found.get("runners", {}).items():
        decode = rates["decode_tokens_per_second"]["median"]
        yield f"{name} {runner}: {decode:.1f} tokens/s"
    for runner, why in found.get("not_run", {}).items():
        yield f"{name} {runner}: not run, {why}"
    if "gpu_time_spread" in found:
        spread, verdict = found["gpu_time_spread"], found["gpu_time_verdict"]
        yield f"{name} GPU time of kernels differs by {spread} {verdict}"
    if "decode_tokens_per_second" in found:
        decode = found["decode_tokens_per_second"]["median"]
        first = found["time_to_first_token_ms"]["median"]
        yield f"{name}: {decode:.0f} tokens/s, first token {first:.1f} ms"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("out", type=Path, help="folder for the JSON files")
    add("--work", type=Path, help="folder for checkpoints and packages, kept")
    add("--peer", type=Path, help="llama.cpp's libraries: the npm tarball or a folder")
    add("--only", help="names of steps, with commas between")
    add("--step-seconds", type=float, default=STEP_SECONDS, help="the most that a step may take")
    add("--quick", action="store_true", help="tiny shapes and few tokens, to try the script")
    options = parser.parse_args()
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    options.out.mkdir(parents=True, exist_ok=True)
    more = ("--prompt-tokens", "8", "--tokens", "5", "--repeat", "1") if options.quick else ()
    shapes = QUICK if options.quick else SHAPE_OF
    steps = [*STEPS, EXTERNAL] if options.peer is not None else [*STEPS]
    if options.only:
        names = options.only.split(",")
        steps = [one for one in steps if one.name in names]
    with ExitStack() as stack:
        work = options.work or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="modes-"))
        )
        work.mkdir(parents=True, exist_ok=True)
        packages = prepare(work, shapes, steps)
        places = {name: str(folder) for name, folder in packages.items()}
        places |= {one: "tiny" if options.quick else one for one in KERNEL_SHAPES}
        places |= {"gguf": str(work / "large.gguf"), "peer": str(options.peer)}
        if EXTERNAL in steps:
            prepare_gguf(work, shapes["large"])
        said: list[str] = []
        for step in steps:
            start = time.perf_counter()
            found = run(step, places, more, options.step_seconds)
            (options.out / f"{step.name}.json").write_text(json.dumps(found, indent=1) + "\n")
            said += lines(step.name, found)
            seconds = time.perf_counter() - start
            print(f"{step.name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    print("\n".join(said))


if __name__ == "__main__":
    main()
