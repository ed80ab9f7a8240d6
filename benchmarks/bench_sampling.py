"""Measure the time to sample a token on the GPU, compared with argmax and with the host's sampler.

    python benchmarks/bench_sampling.py [--vocab 262144] [--samples 200] [--adapter NAME]

The logits are random and stay on the GPU, so that only sampling is timed: many samples in one
submission, and medians over rounds in which all variants alternate. Before it is timed, each
variant must sample the same token ids as the host does with the same seed. The host's time includes
reading back the logits. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena, arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device, open_device
from rdrr_device.pipelines import BoundDispatch
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.sampling.argmax import SCRATCH_BYTES, argmax
from rdrr_runtime.phases.sampling.sample import sample
from rdrr_runtime.phases.sampling.sample_buffers import SampleBuffers
from rdrr_runtime.records import pack_params, pack_step, searches_of
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.sampler import Sampler

SEED = 7
CHECKED = 16  # tokens that are compared with the host's
ROUNDS = 5
VARIANTS: Mapping[str, SamplingParams] = {
    "temperature": SamplingParams(temperature=1.0, seed=SEED),
    "min-p": SamplingParams(temperature=1.0, min_p=0.05, seed=SEED),
    "top-k": SamplingParams(temperature=1.0, top_k=40, seed=SEED),
    "top-p": SamplingParams(temperature=1.0, top_p=0.9, seed=SEED),
    "all": SamplingParams(
        temperature=0.8,
        top_k=40,
        top_p=0.9,
        min_p=0.02,
        repeat_penalty=1.1,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        seed=SEED,
    ),
}


@dataclass(frozen=True)
class Bench:
    """Logits on the GPU and on the host, with the buffers that sample from them.

    Attributes:
        device: The GPU.
        state: State of the decode steps, with the ring of sampled ids.
        logits: The logits on the host, float32 [vocab].
        gpu_logits: The same logits on the GPU.
        buffers: Buffers of the sampler.
    """

    device: Device
    state: State
    logits: npt.NDArray[np.float32]
    gpu_logits: BufferSlice
    buffers: SampleBuffers

    @staticmethod
    def make(device: Device, buffers: Arena, vocab: int) -> Bench:
        """Return a bench with random logits and new buffers."""
        logits = 3 * np.random.default_rng().standard_normal(vocab, dtype=np.float32)
        state = State.create(buffers, 1, CHECKED)
        gpu_logits = buffers.upload("logits", logits)
        return Bench(device, state, logits, gpu_logits, SampleBuffers.create(buffers, vocab))

    def begin(self, options: SamplingParams) -> tuple[BoundDispatch, ...]:
        """Reset the sampler and return the dispatches that sample one token."""
        params = pack_params(options, SEED, masked=False)
        self.device.write(self.state.step, pack_step([0], [0]))
        self.device.write(self.buffers.params, params)
        self.device.clear(self.buffers.counts)
        return self.bind(
            sample(self.buffers, self.state, self.gpu_logits, searches_of(options), "sample")
        )

    def bind(self, phases: Sequence[Phase]) -> tuple[BoundDispatch, ...]:
        """Return each phase as a bound dispatch."""
        return tuple(self.device.bind(as_dispatch(phase)) for phase in phases)

    def check(self, name: str, options: SamplingParams) -> None:
        """Sample `CHECKED` token ids on the GPU and on the host, and compare them.

        Raises:
            SystemExit: The ids differ.
        """
        self.device.submit(self.begin(options), 1, times=CHECKED)
        sampled = self.device.read(self.state.ring).view(np.uint32).tolist()
        sampler, ids = Sampler(options), list[int]()
        for _ in range(CHECKED):
            ids.append(sampler.choose(self.logits, ids))
        if sampled != ids:
            raise SystemExit(f"{name}: the GPU samples {sampled}, the host {ids}")

    def gpu(self, dispatches: tuple[BoundDispatch, ...], samples: int) -> float:
        """Run some dispatches `samples` times and return the seconds per run."""
        self.device.wait()
        start = time.perf_counter()
        self.device.submit(dispatches, 1, times=samples)
        self.device.wait()
        return (time.perf_counter() - start) / samples

    def sample(self, options: SamplingParams, samples: int) -> float:
        """Return the seconds per sampled token on the GPU."""
        return self.gpu(self.begin(options), samples)

    def host(self, options: SamplingParams) -> float:
        """Return the seconds of one sample on the host, including reading back the logits."""
        sampler = Sampler(options)
        start = time.perf_counter()
        logits = self.device.read(self.gpu_logits).view(np.float32)[: len(self.logits)]
        sampler.choose(logits)
        return time.perf_counter() - start

    def argmax(self, buffers: Arena) -> tuple[BoundDispatch, ...]:
        """Return the dispatches of the argmax, as greedy decoding uses it."""
        phases = argmax(
            self.state,
            self.gpu_logits,
            buffers.empty("argmax", SCRATCH_BYTES),
            vocabulary=len(self.logits),
            label="argmax",
        )
        return self.bind(phases)


def measure(device: Device, vocab: int, samples: int) -> dict[str, float]:
    """Return the microseconds per sample by variant; `host: NAME` is the variant on the host."""
    with arena(device, "bench") as buffers:
        bench = Bench.make(device, buffers, vocab)
        for name, options in VARIANTS.items():
            bench.check(name, options)
        greedy = bench.argmax(buffers)
        runs: dict[str, Callable[[], float]] = {"argmax": lambda: bench.gpu(greedy, samples)}
        for name, options in VARIANTS.items():
            runs[name] = partial(bench.sample, options, samples)
            runs[f"host: {name}"] = partial(bench.host, options)
        rounds = [{name: run() for name, run in runs.items()} for _ in range(ROUNDS)]
    return {name: 1e6 * median(times[name] for times in rounds) for name in runs}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vocab", type=int, default=262_144, help="size of the vocabulary")
    parser.add_argument("--samples", type=int, default=200, help="samples per submission")
    parser.add_argument("--adapter", help="use the adapter whose name contains this")
    given = parser.parse_args()
    device = open_device(given.adapter)
    times = measure(device, given.vocab, given.samples)
    for name, value in times.items():
        print(f"{name:20} {value:10.1f} us")
    record = {"adapter": device.info.name, "vocab": given.vocab, "microseconds": times}
    print(json.dumps(record))
    device.close()


if __name__ == "__main__":
    main()
