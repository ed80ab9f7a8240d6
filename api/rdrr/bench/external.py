"""llama.cpp on the devices that its libraries find, and our package, in turns; or why not.

The peer gets its tokens given and samples nothing; its logits reach the host after each token, as
in its own benchmark. Ours chooses tokens on the GPU and reads eight at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rdrr.bench._figures import Ratio, Spread
from rdrr.bench._runs import Options, Workload, generate, load, open_device

if TYPE_CHECKING:
    from rdrr_device.device import Device
    from rdrr_manifests.package import Package
    from rdrr_runtime.gpu import GpuBackend

    from rdrr.bench.llama_cpp import LlamaCpp, PeerContext, PeerModel

DEVICES: Mapping[str, str] = MappingProxyType({"llama.cpp, GPU": "Vulkan", "llama.cpp, CPU": "CPU"})
"""What is measured, and the device's name there."""

OURS = "rdrr"
GATES: Mapping[str, tuple[float, float | None]] = MappingProxyType(
    {"llama.cpp, GPU": (0.36, 0.54), "llama.cpp, CPU": (1.0, None)}
)
"""Least ratio of our decoding to the peer's, and what was published."""

CPU_TOKENS = 16
"""New tokens of a run on the CPU."""


@dataclass
class Rates:
    """Seconds of one runner, round by round, of a prompt and of a decoded token."""

    prefill: list[float]
    decode: list[float]

    def as_dict(self, prompt_tokens: int) -> dict[str, Any]:
        """Tokens a second, for JSON."""
        prefill = Spread.of([prompt_tokens / one for one in self.prefill])
        decode = Spread.of([1 / one for one in self.decode])
        return {
            "prefill_tokens_per_second": prefill.as_dict(),
            "decode_tokens_per_second": decode.as_dict(),
        }


def measure(
    libraries: Path | None,
    gguf: Path | None,
    work: Workload,
    *,
    package: Package | None = None,
    adapter: str | None = None,
) -> dict[str, Any]:
    """What can be measured here; for the rest why not.

    Args:
        libraries: llama.cpp's shared libraries, a folder or the npm package.
        gguf: The model for it.
        work: Prompt, new tokens and rounds.
        package: The same model of ours.
        adapter: Part of our adapter's name.

    Raises:
        DeviceError: A package is given and there is no adapter.
    """
    with ExitStack() as stack:
        found: dict[str, Rates] = {}
        obstacles: dict[str, str] = {}
        names: dict[str, str] = {}
        peers = dict(_peers(libraries, gguf, work, stack, obstacles, names))
        ours = _ours(package, adapter, work, stack) if package is not None else None
        if ours is None:
            obstacles[OURS] = "no --package given"
        for name, context in peers.items():
            _peer_times(context, work, on_cpu="CPU" in name)  # its kernels are compiled here
        for _ in range(work.repeat):
            for name, context in peers.items():
                _round(found, name, *_peer_times(context, work, on_cpu="CPU" in name))
            if ours is not None:
                _round(found, OURS, *_our_times(*ours, work))
        software = ours is not None and ours[1].info.software
        ratios = [
            Ratio.between(
                f"{OURS} over {name}",
                found[name].decode,
                found[OURS].decode,
                gate=GATES[name][0],
                published=GATES[name][1],
            ).as_dict(software=software)
            for name in peers
            if ours is not None
        ]
        return {
            "schema": 1,
            **work.as_dict(),
            "devices": names | ({} if ours is None else {OURS: ours[1].info.name}),
            "runners": {name: one.as_dict(work.prompt_tokens) for name, one in found.items()},
            "not_run": obstacles,
            "ratios": ratios,
        }


def _peers(
    libraries: Path | None,
    gguf: Path | None,
    work: Workload,
    stack: ExitStack,
    obstacles: dict[str, str],
    names: dict[str, str],
) -> Iterator[tuple[str, PeerContext]]:
    """The peer on each of its devices; what is missing goes to `obstacles`."""
    from rdrr.bench.llama_cpp import LlamaCpp, UnavailableError, unpacked

    given = (("--llama-cpp", libraries), ("--gguf", gguf))
    missing = [f"no {name} given" for name, value in given if value is None]
    missing += [f"nothing at {one}" for _, one in given if one is not None and not one.exists()]
    if missing or libraries is None or gguf is None:
        obstacles |= dict.fromkeys(DEVICES, "; ".join(missing))
        return
    try:
        library = LlamaCpp(stack.enter_context(unpacked(libraries)))
    except UnavailableError as error:
        obstacles |= dict.fromkeys(DEVICES, str(error))
        return
    for name, wanted in DEVICES.items():
        try:
            yield name, _peer(library, gguf, wanted, work, stack, names, name)
        except UnavailableError as error:
            obstacles[name] = str(error)


def _peer(
    library: LlamaCpp,
    gguf: Path,
    wanted: str,
    work: Workload,
    stack: ExitStack,
    names: dict[str, str],
    name: str,
) -> PeerContext:
    from rdrr.bench.llama_cpp import PeerContext, PeerModel

    device = library.device(wanted)
    model: PeerModel = PeerModel(library, gguf, device)
    stack.callback(model.close)
    slots = -(-work.context // 256) * 256  # contexts of llama.cpp are whole multiples
    context = PeerContext(model, context=slots, threads=_cores())
    stack.callback(context.close)
    names[name] = f"llama.cpp {library.version} on {device.name} ({device.description})"
    return context


def _cores() -> int:
    """Cores that this process may use; the library's own default is four threads."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _peer_times(context: PeerContext, work: Workload, *, on_cpu: bool) -> tuple[float, float]:
    tokens = min(work.tokens, CPU_TOKENS) if on_cpu else work.tokens
    ids = work.ids(context.vocab)
    prefill = context.prefill(ids)
    given = (ids * -(-tokens // len(ids)))[:tokens]
    return prefill, context.decode(given, len(ids)) / tokens


def _ours(
    package: Package, adapter: str | None, work: Workload, stack: ExitStack
) -> tuple[GpuBackend, Device, int]:
    device = stack.enter_context(open_device(adapter))
    backend = load(package, device, work, Options())
    stack.callback(backend.close)
    vocab = package.manifest.architecture.vocab_size
    _our_times(backend, device, vocab, work)  # kernels are compiled in the first run
    return backend, device, vocab


def _our_times(
    backend: GpuBackend, device: Device, vocab: int, work: Workload
) -> tuple[float, float]:
    from rdrr_runtime.decode.greedy import Greedy

    run = generate(backend, Greedy(), work.ids(vocab), work.tokens, device=device)
    return run.first_seconds, run.decode_seconds / run.decoded


def _round(found: dict[str, Rates], name: str, prefill: float, decode: float) -> None:
    rates = found.setdefault(name, Rates([], []))
    rates.prefill.append(prefill)
    rates.decode.append(decode)
