"""Compare the embeddings of a checkpoint, and their speed, with those of sentence-transformers.

    python benchmarks/bench_embed.py CHECKPOINT [--count 1000] [--type q8_0] [--backend wgpu]

The texts are sentences in several scripts, an empty one, and texts of several sentences, some of
which are longer than the context; there the end is left out on both sides. Without the package
sentence-transformers the judge is the same formula on transformers' hidden states: the mean of the
tokens, normalized. For each type the table has the largest difference of an element, the smallest
and the mean cosine similarity, and the share of texts whose nearest other text is the same. The
speed is that of the CPU backend in float32 beside the judge, alternating, for batches of 1, 32 and
1,000 texts of up to 128 tokens. On a machine with other work the ratio of CPU seconds says more
than that of elapsed seconds. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import rdrr
from _script import table
from rdrr._sample_texts import sample_texts

F32 = npt.NDArray[np.float32]
TYPES: tuple[Any, ...] = ("f32", "f16", "q8_0", "q4_k_m")
EXACT: dict[str, Any] = {"kernel_hints": {"computePrecision": "f32"}, "kv_dtype": "f32"}
ROUNDS, LONGEST = 5, 128
BATCHES = 1, 32, 1000


def judge_of(checkpoint: Path, limit: int) -> tuple[str, Callable[[Sequence[str]], F32]]:
    """Return the name of the judge, and what it computes of texts of at most `limit` tokens."""
    try:
        from sentence_transformers import (  # type: ignore[import-not-found, unused-ignore]
            SentenceTransformer,
        )
    except ImportError:
        return "transformers", _mean_of_tokens(checkpoint, limit)
    model = SentenceTransformer(str(checkpoint), device="cpu")
    model.max_seq_length = limit

    def encode(texts: Sequence[str]) -> F32:
        vectors: F32 = model.encode(list(texts), batch_size=32, show_progress_bar=False)
        return vectors

    return "sentence-transformers", encode


def _mean_of_tokens(checkpoint: Path, limit: int) -> Callable[[Sequence[str]], F32]:
    import torch
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def encode(texts: Sequence[str]) -> F32:
        parts: dict[int, Any] = {}
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        for start in range(0, len(order), 32):
            some = order[start : start + 32]
            given = tokenizer(
                [texts[index] for index in some],
                padding=True,
                truncation=True,
                max_length=limit,
                return_tensors="pt",
            )
            with torch.no_grad():
                states = model(**given).last_hidden_state
            mask = given["attention_mask"].unsqueeze(-1)
            pooled = (states * mask).sum(1) / mask.sum(1)
            rows = torch.nn.functional.normalize(pooled, p=2, dim=1).numpy()
            parts |= dict(zip(some, rows, strict=True))
        return np.stack([parts[index] for index in range(len(texts))])

    return encode


def nearest(vectors: F32) -> npt.NDArray[np.int64]:
    """Return the index of the nearest other text of each."""
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -2.0)
    return np.asarray(similar.argmax(axis=1), np.int64)


def compare(ours: F32, theirs: F32) -> dict[str, float]:
    """Return how much embeddings differ."""
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines = (ours * theirs).sum(axis=1) / norms
    # Two texts may be equally near, up to rounding.
    similar = theirs @ theirs.T
    best, rows = nearest(ours), np.arange(len(ours))
    ties = similar[rows, best] >= similar[rows, nearest(theirs)] - 1e-6
    return {
        "difference": float(np.abs(ours - theirs).max()),
        "least cosine": float(cosines.min()),
        "mean cosine": float(cosines.mean()),
        "same neighbour": float(ties.mean()),
    }


def speeds(
    package: Path, texts: Sequence[str], judge: Callable[[Sequence[str]], F32], threads: int
) -> list[dict[str, Any]]:
    """Return texts a second of the CPU backend and of the judge, alternating, and their ratios."""
    import torch

    torch.set_num_threads(threads)
    rows: list[dict[str, Any]] = []
    with rdrr.load(package, backend="cpu") as model:
        runs: dict[str, Callable[[Sequence[str]], Any]] = {
            "rdrr": lambda part: model.embed(part, truncate=True),
            "judge": judge,
        }
        for batch in BATCHES:
            seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
            for at in range(ROUNDS + 1):
                parts = _batches(texts, batch, at)
                for name, run in runs.items():
                    seconds[name].append(_seconds(run, parts))
            rows.append({"batch": batch, "threads": threads, **_rates(seconds, len(parts) * batch)})
    return rows


def _batches(texts: Sequence[str], size: int, at: int) -> list[Sequence[str]]:
    """Return the batches of a round: ten, or as many as there are texts for."""
    count = max(1, min(10, len(texts) // size))
    first = at * count * size
    return [
        [texts[(first + index * size + offset) % len(texts)] for offset in range(size)]
        for index in range(count)
    ]


def _seconds(
    run: Callable[[Sequence[str]], Any], parts: list[Sequence[str]]
) -> tuple[float, float]:
    """Run batches; return the elapsed seconds and those of the CPU."""
    start, busy = time.perf_counter(), time.process_time()
    for part in parts:
        run(part)
    return time.perf_counter() - start, time.process_time() - busy


def _rates(seconds: dict[str, list[tuple[float, float]]], texts: int) -> dict[str, float]:
    """Return texts a second, and ratios of elapsed and of CPU seconds; the first round warms up."""
    elapsed, busy = (
        {name: median(pair[kind] for pair in pairs[1:]) for name, pairs in seconds.items()}
        for kind in (0, 1)
    )
    return {
        **{name: texts / value for name, value in elapsed.items()},
        "ratio": elapsed["judge"] / elapsed["rdrr"],
        "ratio of CPU seconds": busy["judge"] / busy["rdrr"],
    }


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("checkpoint", type=Path)
    add("--count", type=int, default=1000, help="number of texts")
    add("--type", action="append", default=[], help="quantization; several of the usual ones")
    add("--backend", action="append", default=[], help="cpu or wgpu; cpu by default")
    add("--threads", type=int, default=2, help="threads of both in the comparison of speed")
    add("--no-speed", action="store_true", help="compare embeddings only")
    options = parser.parse_args()
    texts = list(sample_texts(options.count))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        packages: dict[Any, Path] = {kind: Path(folder) / kind for kind in options.type or TYPES}
        for kind, package in packages.items():
            rdrr.convert(options.checkpoint, package, quantize=kind)
        first = next(iter(packages.values()))
        limit = rdrr.open_package(first).manifest.architecture.max_seq_len
        name, judge = judge_of(options.checkpoint, limit)
        theirs = judge(texts)
        for kind, package in packages.items():
            for backend in options.backend or ["cpu"]:
                exact: dict[str, Any] = EXACT if backend == "wgpu" and kind == "f32" else {}
                with rdrr.load(package, backend=backend, **exact) as model:
                    ours = model.embed(texts, truncate=True)
                size = sum(file.stat().st_size for file in package.glob("*.bin"))
                rows.append(
                    {
                        "type": kind,
                        "backend": backend,
                        "MB": round(size / 1e6, 1),
                        "cut": len(ours.truncated),
                        **compare(np.asarray(ours), theirs),
                    }
                )
        _show(rows)
        result: dict[str, Any] = {"benchmark": "embed", "judge": name, "rows": rows}
        if not options.no_speed and "f32" in packages:
            short = [text for text in texts if len(text) < 3 * LONGEST]
            result["speed"] = speeds(packages["f32"], short, judge, options.threads)
            print()
            _show(result["speed"])
    print(json.dumps(result))
    return 0


def _show(rows: list[dict[str, Any]]) -> None:
    table(tuple(rows[0]), [tuple(_shown(value) for value in row.values()) for row in rows])


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
