"""Measure the embeddings of an encoder on a GPU, with llama.cpp and torch in the same run.

    python benchmarks/bench_embed_speed.py --webgpu wgpu,dawn --peer PATH

The encoder has the shape of all-MiniLM-L6 and random weights, stored as F16; speed does not depend
on their values. Every runner gets the token ids of the same texts of 16 to 256 tokens and returns
the mean of each text's hidden states on the host. torch runs the same layers in F16 on CUDA, with
texts of similar length padded to the longest; llama.cpp reads the exported GGUF. The runners
alternate, and each is kept busy before it is timed. The embeddings of all are compared first. A
runner that is not there is listed with the reason. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from _prepared import Clock, gguf_file, package
from _script import keep_busy, prepare_environment, table

F32 = npt.NDArray[np.float32]
Texts = Sequence[Sequence[int]]
Embed = Callable[[Texts], F32]
SHORTEST, LONGEST = 16, 256
PADDED_TOKENS = 32768
"""Tokens of a pass of torch, with padding; more are no faster."""


def random_texts(count: int, vocab: int, rng: np.random.Generator) -> list[list[int]]:
    """Return token ids of texts whose lengths are equally probable."""
    lengths = rng.integers(SHORTEST, LONGEST + 1, count)
    return [rng.integers(0, vocab, length).tolist() for length in lengths]


@contextmanager
def rdrr_runner(folder: Path, implementation: str, adapter: str | None) -> Iterator[Embed]:
    """Yield what rdrr runs on one implementation of WebGPU."""
    import rdrr
    from rdrr._embedding import Pooling
    from rdrr_runtime.packing import EncodedText

    webgpu: Any = implementation
    with rdrr.load(folder, webgpu=webgpu, adapter=adapter) as model:
        pooling = Pooling(model.package)

        def embed(texts: Texts) -> F32:
            order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
            rows = np.empty((len(texts), model.package.graph.output_size), np.float32)
            with model._engine.lend() as backend:
                given = [EncodedText(texts[index]) for index in order]
                for index, mean in zip(order, backend.means(given, pooling.part()), strict=True):
                    rows[index] = mean
            return pooling.finish(rows)

        yield embed


@contextmanager
def peer_runner(library: Any, path: Path, device: str, *, flash: bool) -> Iterator[Embed]:
    """Yield what llama.cpp runs."""
    from peers.llama_cpp import PeerModel
    from peers.llama_embeddings import PeerEmbedder

    model = PeerModel(library, path, library.device(device))
    embedder = PeerEmbedder(model, tokens=8192, texts=128, flash_attention=flash)
    yield embedder.embed
    embedder.close()
    model.close()


def torch_runner(folder: Path) -> Embed:
    """Return what torch runs on CUDA in F16.

    Raises:
        RuntimeError: torch has no CUDA device.
    """
    import torch
    from rdrr_manifests.package import open_package
    from torch.nn import functional

    if not torch.cuda.is_available():
        raise RuntimeError("torch has no CUDA device")
    with open_package(folder) as opened:
        sizes = opened.manifest.architecture
        weights = {
            name: torch.from_numpy(opened.dequantize(name)).half().cuda()
            for name in opened.manifest.tensors
        }
    eps = opened.manifest.inference.normalization.rms_norm_eps
    hidden, heads = sizes.hidden_size, sizes.num_attention_heads

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        pair = weights[f"{name}.weight"].flatten(), weights[f"{name}.bias"].flatten()
        return functional.layer_norm(x, (hidden,), *pair, eps)

    def by_head(x: Any) -> Any:
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    def layer(x: Any, stem: str, mask: Any) -> Any:
        q, k, v = (by_head(linear(x, f"{stem}.self_attn.{part}_proj")) for part in "qkv")
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        mixed = mixed.transpose(1, 2).reshape(x.shape)
        x = norm(x + linear(mixed, f"{stem}.self_attn.o_proj"), f"{stem}.input_layernorm")
        inner = functional.gelu(linear(x, f"{stem}.mlp.up_proj"))
        out = linear(inner, f"{stem}.mlp.down_proj")
        return norm(x + out, f"{stem}.post_attention_layernorm")

    def run(texts: Texts) -> Any:
        width = max(map(len, texts))
        ids, there = np.zeros((len(texts), width), np.int64), np.zeros((len(texts), width), bool)
        for row, text in enumerate(texts):
            ids[row, : len(text)], there[row, : len(text)] = text, True
        known = torch.from_numpy(there).cuda()
        mask = None if there.all() else known[:, None, None, :]
        x = weights["model.embed_tokens.weight"][torch.from_numpy(ids).cuda()]
        x = x + weights["model.embed_positions.weight"][:width]
        x = norm(x + weights["model.embed_types.weight"][0], "model.embed_norm")
        for index in range(sizes.num_layers):
            x = layer(x, f"model.layers.{index}", mask)
        shares = known.unsqueeze(-1).float()
        return (x.float() * shares).sum(1) / shares.sum(1)

    def embed(texts: Texts) -> F32:
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        rows = np.empty((len(texts), hidden), np.float32)
        with torch.no_grad():
            done, results = 0, []
            while done < len(order):
                count = max(1, PADDED_TOKENS // len(texts[order[done]]))
                some = order[done : done + count]
                results.append((some, run([texts[index] for index in some])))
                done += count
            for some, result in results:
                rows[some] = result.cpu().numpy()
        return rows

    return embed


def open_runners(options: argparse.Namespace, work: Path, stack: ExitStack) -> dict[str, Embed]:
    """Return the runners that this machine has, by their names; print why others are missing."""
    clock = Clock()
    folder = package(work, options.shape, "row", clock, quantize="f16")
    runners: dict[str, Embed] = {}
    for name in options.webgpu.split(","):
        runners[f"rdrr {name}"] = stack.enter_context(rdrr_runner(folder, name, options.adapter))
    if options.peer is not None:
        from peers.llama_cpp import LlamaCpp, unpacked

        library = LlamaCpp(stack.enter_context(unpacked(options.peer)))
        path = gguf_file(work, options.shape, "f16", clock)
        for flash in (True, False):
            runner = peer_runner(library, path, options.peer_device, flash=flash)
            name = "llama.cpp, flash attention" if flash else "llama.cpp"
            runners[name] = stack.enter_context(runner)
    try:
        runners["torch F16"] = torch_runner(folder)
    except RuntimeError as error:
        print(f"torch F16: not run: {error}")
    return runners


def unit(rows: F32) -> F32:
    """Return rows divided by their norms."""
    scaled: F32 = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return scaled


def agreement(runners: dict[str, Embed], texts: Texts) -> dict[str, float]:
    """Return the least cosine similarity of each runner's embeddings and the first one's."""
    first, *_ = (unit(run(texts)) for run in runners.values())
    return {name: float((first * unit(run(texts))).sum(1).min()) for name, run in runners.items()}


def texts_a_second(
    runners: dict[str, Embed], texts: Texts, repeat: int, busy: float
) -> dict[str, float]:
    """Return the median of the texts a second of each runner, in alternating rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(repeat):
        for name, run in runners.items():
            keep_busy(lambda run=run: run(texts), busy)  # type: ignore[misc]
            start = time.perf_counter()
            run(texts)
            seconds[name].append(time.perf_counter() - start)
    return {name: round(len(texts) / median(times), 1) for name, times in seconds.items()}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shape", default="minilm", help="shape of the encoder")
    add("--batches", default="1,32,1024", help="numbers of texts, separated by commas")
    add("--webgpu", default="wgpu", help="wgpu, dawn or both, separated by a comma")
    add("--adapter", metavar="NAME", help="use the adapter whose name contains this")
    add("--peer", type=Path, help="llama.cpp's libraries: npm tarball or folder")
    add("--peer-device", default="Vulkan", help="part of the name of llama.cpp's device")
    add("--repeat", type=int, default=5, help="rounds to measure")
    add("--busy", type=float, default=0.4, help="seconds to run before each measurement")
    add("--work", type=Path, help="folder to keep the files in")
    options = parser.parse_args()
    prepare_environment()
    rng = np.random.default_rng(0)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        runners = open_runners(options, options.work or Path(scratch), stack)
        vocab = 1000  # ids of both shapes
        similar = agreement(runners, random_texts(20, vocab, rng))
        rates = {
            int(count): texts_a_second(
                runners, random_texts(int(count), vocab, rng), options.repeat, options.busy
            )
            for count in options.batches.split(",")
        }
    columns = [f"{count} texts" for count in rates]
    rows = [(name, *(rate[name] for rate in rates.values()), similar[name]) for name in runners]
    table(("texts a second", *columns, "least cosine"), rows)
    print(json.dumps({"benchmark": "embed-speed", "rates": rates, "least_cosine": similar}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
