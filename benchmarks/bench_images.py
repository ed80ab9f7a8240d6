"""Measure a model that sees on a GPU: its tower, the first token of a mixed prompt, and decoding.

    python benchmarks/bench_images.py --shape qwen3-vl-2b --webgpu wgpu,dawn [--phases]

The model has a published shape and random weights, its tower in F16. The image is square, already
cut into patches; a time of the tower includes the upload of the patches and the readback of the
features, and `passes` are its passes alone. Before anything is timed the features are compared with
those of the exact path. `mixed` is the first token of a prompt with the image in the middle, its
features known, and `text` that of a prompt of as many tokens; both are decoded from. torch runs the
tower of transformers in F16 with attention of torch, if it has CUDA. `--phases` prints what each
kind of phase of the tower takes. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _prepared import Clock, package
from _script import keep_busy, prepare_environment, table
from _shape_families import ConfiguredShape
from configured_shapes import CONFIGURED
from rdrr_device.device import Device
from rdrr_manifests.package import Package, open_package
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.gpu_tower import GpuTower
from rdrr_runtime.images.patches import ImagePatches

TEXT = 32
"""Tokens of text before the image, and after it."""


def random_image(found: Package, side: int) -> ImagePatches:
    """Return a square image of random values as patches of a package's tower."""
    vision = found.manifest.vision
    assert vision is not None, "shapes of this script have towers"
    patches = side // 16
    values = np.random.default_rng(0).standard_normal((patches**2, vision.patch_inputs))
    return ImagePatches(values.astype(np.float32), (1, patches, patches))


def milliseconds(run: Callable[[], object], options: argparse.Namespace) -> float:
    """Return the median of the times of a call, on a GPU that is busy before each."""
    times = []
    for _ in range(options.repeat):
        keep_busy(run, options.busy)
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return round(median(times), 2)


def passes(tower: GpuTower, device: Device, patches: int) -> Callable[[], None]:
    """Return a call that runs the passes of a tower on the image that it has."""
    buffers = tower._buffers
    assert buffers is not None, "an image was encoded"
    merged = tower._graph.vision.merge_size**2

    def run() -> None:
        for part, prepared in buffers._prepared:
            buffers._executor.run(prepared, patches // merged if part.is_merged else patches)
        device.wait()

    return run


def phase_times(tower: GpuTower, device: Device, patches: int) -> list[tuple[str, int, float]]:
    """Return each kind of phase of a tower, their number, and the milliseconds of all of them."""
    buffers = tower._buffers
    assert buffers is not None, "an image was encoded"
    groups, merged = defaultdict[str, list[Any]](list), tower._graph.vision.merge_size**2
    for part, prepared in buffers._prepared:
        for phase, bound in zip(part.phases, prepared, strict=True):
            kind = f"{phase.name} {re.sub(r'[0-9]+', '', phase.label)}"
            groups[kind].append((bound, patches // merged if part.is_merged else patches))
    times = []
    for kind, bounds in groups.items():
        launches, rows = tuple(bound for bound, _ in bounds), bounds[0][1]

        def run(times: int, launches: Any = launches, rows: int = rows) -> float:
            start = time.perf_counter()
            device.submit(launches, rows, times=times)
            device.wait()
            return time.perf_counter() - start

        run(1)
        seconds = median((run(6) - run(1)) / 5 for _ in range(3))
        times.append((kind, len(launches), round(1e3 * seconds, 2)))
    return sorted(times, key=lambda row: -row[2])


def torch_tower(shape: ConfiguredShape, image: ImagePatches) -> Callable[[], object]:
    """Return the tower of transformers on CUDA, from patches on the host to features there.

    Raises:
        ImportError: transformers is missing.
        RuntimeError: torch has no CUDA device.
    """
    import torch
    from transformers import AutoConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    if not torch.cuda.is_available():
        raise RuntimeError("torch has no CUDA device")
    config = AutoConfig.for_model("qwen3_vl", vision_config=dict(shape.tower or {})).vision_config
    config._attn_implementation = "sdpa"
    with torch.device("cuda"):
        tower = Qwen3VLVisionModel(config).half().eval()
    grid = torch.tensor([image.grid]).cuda()

    def run() -> object:
        with torch.no_grad():
            output = tower(torch.from_numpy(image.patches).cuda().half(), grid)
        features = [output.pooler_output, *output.deepstack_features]
        return [part.float().cpu() for part in features]

    return run


def tower_rows(
    loaded: Package, device: Device, image: ImagePatches, options: argparse.Namespace
) -> tuple[dict[str, Any], Any]:
    """Return the figures of a tower on a device, and the features of the image."""
    from rdrr_runtime.compile.choice.hints import resolve

    with closing(GpuTower(loaded, device)) as tower:
        features = tower.encode(image)
        figures: dict[str, Any] = {
            "tower_ms": milliseconds(lambda: tower.encode(image), options),
            "passes_ms": milliseconds(passes(tower, device, len(image.patches)), options),
        }
        if options.phases:
            rows = phase_times(tower, device, len(image.patches))
            table(("phase", "launches", "ms"), rows)
    exact = resolve({"run flag": {"computePrecision": "f32"}})
    with closing(GpuTower(loaded, device, exact)) as tower:
        expected = tower.encode(image).embeddings
    error = np.abs(features.embeddings - expected).max() / np.abs(expected).max()
    return figures | {"error": float(f"{error:.2g}")}, features


def model_rows(
    loaded: Package, device: Device, features: Any, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of prompts with an image and without."""
    count = len(features.embeddings)
    backend = GpuBackend(loaded, context=count + 2 * TEXT + options.tokens + 8, device=device)
    with closing(backend):
        assert backend.images is not None, "the package sees"
        text = np.random.default_rng(1).integers(3, 259, count + 2 * TEXT).tolist()
        mixed = [*text[:TEXT], *backend.images.add(features), *text[-TEXT:]]
        figures: dict[str, Any] = {}
        for name, ids in (("mixed", mixed), ("text", text)):
            first = milliseconds(lambda ids=ids: backend.greedy(ids, 0, 1), options)  # type: ignore[misc]
            more = milliseconds(
                lambda ids=ids: backend.greedy(ids, 0, options.tokens + 1),  # type: ignore[misc]
                options,
            )
            rate = round(1e3 * options.tokens / (more - first), 1)
            figures |= {f"{name}_first_ms": first, f"{name}_tokens_per_s": rate}
        return figures | {"gpu_gb": round(device.memory.live / 1e9, 2)}


def measure(options: argparse.Namespace, work: Path) -> dict[str, dict[str, Any]]:
    """Return the figures of each runner."""
    from rdrr._webgpu import open_device

    folder = package(work, options.shape, "row", Clock(), quantize=options.quantize)
    figures: dict[str, dict[str, Any]] = {}
    for name in options.webgpu.split(","):
        with open_package(folder) as loaded, closing(open_device(options.adapter, name)) as device:
            image = random_image(loaded, options.side)
            rows, features = tower_rows(loaded, device, image, options)
            if not options.tower_only:
                rows |= model_rows(loaded, device, features, options)
            figures[f"rdrr {name}"] = rows
    try:
        run = torch_tower(CONFIGURED[options.shape], image)
        run()
        figures["torch F16"] = {"tower_ms": milliseconds(run, options)}
    except (ImportError, RuntimeError) as error:
        print(f"torch F16: not run: {error}")
    return figures


def columns(figures: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the names of all figures in their order."""
    yield from dict.fromkeys(name for rows in figures.values() for name in rows)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    seeing = [name for name, shape in CONFIGURED.items() if shape.tower is not None]
    add("--shape", choices=seeing, default="qwen3-vl-2b", help="shape of the model")
    add("--quantize", default="q4_k_m", help="type of the text model's weights")
    add("--side", type=int, default=1024, help="height and width of the image in pixels")
    add("--tokens", type=int, default=64, help="tokens to decode")
    add("--tower-only", action="store_true", help="leave the text model out")
    add("--phases", action="store_true", help="print what each kind of phase of the tower takes")
    add("--webgpu", default="wgpu", help="wgpu, dawn or both, separated by a comma")
    add("--adapter", metavar="NAME", help="use the adapter whose name contains this")
    add("--repeat", type=int, default=5, help="rounds to measure")
    add("--busy", type=float, default=0.4, help="seconds to run before each measurement")
    add("--work", type=Path, help="folder to keep the files in")
    options = parser.parse_args()
    prepare_environment()
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        figures = measure(options, options.work or Path(scratch))
    names = list(columns(figures))
    rows = [(runner, *(row.get(name, "") for name in names)) for runner, row in figures.items()]
    table((f"{options.shape}, {options.side} x {options.side}", *names), rows)
    print(json.dumps({"benchmark": "images", "shape": options.shape, "figures": figures}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
