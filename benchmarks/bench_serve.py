"""Measure `rdrr serve` under load, beside `generate_batch` with the same texts in the same run.

    python benchmarks/bench_serve.py --shape llama-1b --clients 1 8 32

The package has random weights. Each client is a thread of another process, which sends one streamed
completion after the other over loopback; prompts have 64 to 512 tokens, of which all share the
first ones with `--shared`. The table shows new tokens per second of all clients together, their
ratio to `generate_batch` with the same prompts, a text of each client at a time, and to llama.cpp's
batches (`--peer`: the first of these batches with given tokens, without a server and without
sampling), the time to the first token, and the time between two events of a stream. The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
from _prepared import Clock, gguf_file, package
from _script import add_adapter, finish, table
from configured_shapes import ALL_SHAPES

CONTEXT, LEAST, MOST = 1024, 64, 512
SHARED_SEED = 1 << 32
WARM_TEXTS = 2
"""Texts of each client before it is measured."""


def prompts(count: int, vocabulary: int, seed: int, shared: int = 0) -> list[list[int]]:
    """Return prompts of random ids and lengths.

    Args:
        count: Number of prompts.
        vocabulary: Number of ids.
        seed: Seed of lengths and ids.
        shared: Ids with which all prompts begin, whatever the seed; shorter ones share all but one.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(LEAST, MOST + 1, count)
    beginning = np.random.default_rng(SHARED_SEED).integers(300, vocabulary, shared)
    texts = []
    for size in sizes:
        text = rng.integers(300, vocabulary, size)
        length = min(shared, size - 1)
        text[:length] = beginning[:length]
        texts.append(text.tolist())
    return texts


def prompts_of(client: int, options: argparse.Namespace, vocabulary: int) -> list[list[int]]:
    """Return the prompts of a client, the first `WARM_TEXTS` of which are not measured."""
    return prompts(WARM_TEXTS + options.texts, vocabulary, 1 + client, options.shared)


def batches(clients: int, options: argparse.Namespace, vocabulary: int) -> list[list[list[int]]]:
    """Return the prompts that are measured, in batches of a prompt of each client."""
    work = [prompts_of(client, options, vocabulary)[WARM_TEXTS:] for client in range(clients)]
    return [list(batch) for batch in zip(*work, strict=True)]


def batch_rate(model: Any, work: Sequence[Sequence[Sequence[int]]], tokens: int) -> float:
    """Return new tokens per second of `generate_batch` with batches one after the other."""
    options = {"max_tokens": tokens, "sequences": min(32, len(work[0]))}
    model.generate_batch(work[0], **options)
    start = time.perf_counter()
    answers = [answer for batch in work for answer in model.generate_batch(batch, **options)]
    return sum(len(answer.token_ids) for answer in answers) / (time.perf_counter() - start)


def peer_rates(options: argparse.Namespace, work: Path, vocabulary: int) -> dict[int, float]:
    """Return new tokens per second of llama.cpp with the same prompts, without a server."""
    from peers.llama_cpp import LlamaCpp, PeerContext, PeerModel, unpacked

    rates = {}
    with ExitStack() as stack:
        library = LlamaCpp(stack.enter_context(unpacked(options.peer)))
        path = gguf_file(work, options.shape, options.quantize, Clock())
        model = PeerModel(library, path, library.device(options.peer_device))
        stack.callback(model.close)
        for clients in options.clients:
            slots = {"context": CONTEXT * clients, "sequences": clients, "outputs": clients}
            context = PeerContext(model, **slots)
            texts = batches(clients, options, vocabulary)[0]
            context.batch(texts, options.tokens)
            rates[clients] = clients * options.tokens / context.batch(texts, options.tokens)
            context.close()
    return rates


@contextmanager
def served(path: Path, options: argparse.Namespace) -> Iterator[int]:
    """Run the server in another process and yield its port."""
    command = [sys.executable, "-m", "rdrr", "serve", str(path), "--port", "0", "--slots", "32"]
    command += ["--context", str(CONTEXT), "--backend", "wgpu"]
    command += ["--adapter", options.adapter] if options.adapter else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "is served at" in line:
                    yield int(line.rsplit(":", 1)[1].split("/")[0])
                    break
            else:
                raise RuntimeError("the server has ended")
        finally:
            process.terminate()


def play(port: int, work: Sequence[Sequence[int]], tokens: int) -> list[list[float]]:
    """Send completions one after the other; return when each event of each came, from its start."""
    times = []
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    for prompt in work:
        body = {"prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "stream": True}
        start = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body))
        lines = (line for line in connection.getresponse() if line.startswith(b"data: {"))
        times.append([time.perf_counter() - start for _ in lines])
    return times


def run_clients(port: int, clients: int, options: argparse.Namespace) -> None:
    """Run the clients and print what they measured, as JSON."""
    results: list[list[list[float]]] = [[] for _ in range(clients)]
    ready = threading.Barrier(clients + 1)

    def client(number: int) -> None:
        work = prompts_of(number, options, options.vocabulary)
        play(port, work[:WARM_TEXTS], options.tokens)
        ready.wait()
        results[number] = play(port, work[WARM_TEXTS:], options.tokens)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    every = [events for result in results for events in result]
    first = [events[0] for events in every]
    gaps = [gap for events in every for gap in np.diff(events).tolist()]
    figures = {"seconds": seconds, "first": spread(first), "gap": spread(gaps)}
    print(json.dumps({**figures, "texts": len(every)}))


def spread(seconds: Sequence[float]) -> list[float]:
    """Return the median and the 99th percentile in milliseconds."""
    return [round(1000 * float(np.percentile(seconds, part)), 1) for part in (50, 99)]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of each number of clients."""
    import rdrr

    with tempfile.TemporaryDirectory() as scratch:
        work = options.work or Path(scratch)
        path = package(work, options.shape, "row", Clock(), quantize=options.quantize)
        with rdrr.load(path, backend="wgpu", context=CONTEXT, adapter=options.adapter) as model:
            vocabulary = model.package.manifest.architecture.vocab_size
            adapter = model.info.adapter
            rates = {
                clients: batch_rate(model, batches(clients, options, vocabulary), options.tokens)
                for clients in options.clients
            }
        rows = []
        with served(path, options) as port:
            for clients in options.clients:
                words = ["--client", str(port), "--clients", str(clients)]
                words += ["--texts", str(options.texts), "--tokens", str(options.tokens)]
                words += ["--vocabulary", str(vocabulary), "--shared", str(options.shared)]
                done = subprocess.run(
                    [sys.executable, __file__, *words], check=True, capture_output=True, text=True
                )
                figures = json.loads(done.stdout.splitlines()[-1])
                rate = figures["texts"] * options.tokens / figures["seconds"]
                rows.append({"clients": clients, "rate": rate, "batch": rates[clients], **figures})
        if options.peer is not None:
            for row, rate in zip(rows, peer_rates(options, work, vocabulary).values(), strict=True):
                row["peer"] = rate
    facts = {"adapter": adapter, "shape": options.shape, "quantize": options.quantize}
    return show({**facts, "rows": rows})


def show(record: dict[str, Any]) -> dict[str, Any]:
    """Print the table of a record and return the record."""
    print(f"\n{record['shape']}, {record['quantize']}, on {record['adapter']}")
    head = (
        "clients",
        "tokens/s",
        "of generate_batch",
        "of llama.cpp",
        "first token, ms",
        "between events, ms",
    )
    rows = [
        (
            str(row["clients"]),
            f"{row['rate']:.0f}",
            f"{row['rate'] / row['batch']:.2f}",
            f"{row['rate'] / row['peer']:.2f}" if "peer" in row else "",
            f"{row['first'][0]} (99 %: {row['first'][1]})",
            f"{row['gap'][0]} (99 %: {row['gap'][1]})",
        )
        for row in record["rows"]
    ]
    table(head, rows)
    return record


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shape", choices=tuple(ALL_SHAPES), default="llama-1b", help="shape of the model")
    add("--quantize", default="q4_k_m", help="quantization of the weights")
    add("--clients", type=int, nargs="+", default=[1, 8, 32], help="clients at a time")
    add("--texts", type=int, default=4, help="texts of each client that are measured")
    add("--tokens", type=int, default=128, help="new tokens of each text")
    add("--shared", type=int, default=0, help="ids with which all prompts begin")
    add("--peer", type=Path, help="llama.cpp's libraries: npm tarball or folder")
    add("--peer-device", default="Vulkan", help="part of the name of llama.cpp's device")
    add("--work", type=Path, help="folder for the files that are made")
    add("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    add("--vocabulary", type=int, help=argparse.SUPPRESS)
    add_adapter(parser)
    options = parser.parse_args()
    if options.client:
        run_clients(options.client, options.clients[0], options)
        return 0
    return finish(lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
