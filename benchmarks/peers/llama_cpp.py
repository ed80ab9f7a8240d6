"""A driver that runs llama.cpp through its shared libraries, for measurements only.

The libraries come from the npm package `@node-llama-cpp/linux-x64-vulkan` (3.22.1, llama.cpp
v0.5.0), as a folder or as the package's tarball. `peers.llama_abi` holds the declarations of that
release. The device is always chosen by name, because llama.cpp otherwise falls back to the CPU
without a message.
"""

from __future__ import annotations

import ctypes as c
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from peers.llama_abi import (
    BASE,
    CONTEXT_DEFAULTS,
    GGML,
    LLAMA,
    LOG,
    MODEL_DEFAULTS,
    Ints,
    UnavailableError,
    batch_of,
    check_defaults,
)

__all__ = ["LlamaCpp", "PeerContext", "PeerDevice", "PeerModel", "UnavailableError", "unpacked"]

DEVICE_TYPES = ("CPU", "GPU", "IGPU", "ACCEL")


@dataclass(frozen=True)
class PeerDevice:
    """A device that the libraries offer.

    Attributes:
        name: llama.cpp's short name, such as `Vulkan0`.
        description: The driver's name of the device.
        kind: One of `DEVICE_TYPES`.
        handle: The library's handle.
    """

    name: str
    description: str
    kind: str
    handle: int


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield the folder of the shared libraries in a folder or in the npm package's tarball.

    Raises:
        UnavailableError: `path` does not exist or contains no llama.cpp.
    """
    with TemporaryDirectory(prefix="llama-cpp-") as scratch:
        root = path
        if path.is_file():
            root = Path(scratch)
            with tarfile.open(path) as archive:
                archive.extractall(root, filter="data")
        libraries = sorted(root.rglob("libllama.*so*")) if root.is_dir() else []
        if not libraries:
            raise UnavailableError(f"no libllama at {path}")
        yield libraries[0].parent


def _load(folder: Path, pattern: str) -> c.CDLL:
    paths = sorted(folder.glob(pattern))
    if not paths:
        raise OSError(f"no {pattern} in {folder}")
    return c.CDLL(str(paths[0]), mode=c.RTLD_GLOBAL)


class LlamaCpp:
    """The loaded libraries of llama.cpp.

    Args:
        folder: Folder that contains all the libraries.

    Attributes:
        messages: Warnings and errors that llama.cpp has logged.
        llama: The library libllama.
        version: Version of the release.

    Raises:
        UnavailableError: The libraries do not load, or belong to another release.
    """

    def __init__(self, folder: Path) -> None:
        self.messages: list[str] = []
        self._log = LOG(self._take_message)
        try:
            # In the order of their dependencies: each library needs those loaded before it.
            base = _load(folder, "libggml-base.so*")
            ggml = _load(folder, "libggml.*so*")
            llama = _load(folder, "libllama.*so*")
            for library, prototypes in ((base, BASE), (ggml, GGML), (llama, LLAMA)):
                for name, (result, arguments) in prototypes.items():
                    function = getattr(library, name)
                    function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise UnavailableError(f"the libraries do not load: {error}") from error
        self._base, self._ggml, self.llama = base, ggml, llama
        llama.llama_log_set(self._log, None)
        check_defaults(llama.llama_model_default_params(), MODEL_DEFAULTS)
        check_defaults(llama.llama_context_default_params(), CONTEXT_DEFAULTS)
        self.version = llama.llama_version().decode()
        llama.llama_backend_init()
        ggml.ggml_backend_load_all_from_path(str(folder).encode())

    def _take_message(self, level: int, text: bytes, _: int | None) -> None:
        # Levels 3 and 4 are GGML_LOG_LEVEL_WARN and GGML_LOG_LEVEL_ERROR.
        if level in (3, 4):
            self.messages.append(text.decode(errors="replace").strip())

    def devices(self) -> list[PeerDevice]:
        """Return all devices, including the CPU."""
        devices = []
        for index in range(self._ggml.ggml_backend_dev_count()):
            handle = self._ggml.ggml_backend_dev_get(index)
            base = self._base
            devices.append(
                PeerDevice(
                    base.ggml_backend_dev_name(handle).decode(),
                    base.ggml_backend_dev_description(handle).decode(),
                    DEVICE_TYPES[base.ggml_backend_dev_type(handle)],
                    handle,
                )
            )
        return devices

    def device(self, wanted: str = "Vulkan") -> PeerDevice:
        """Return the first device whose name or description contains `wanted`.

        Raises:
            UnavailableError: There is no such device.
        """
        devices = self.devices()
        for device in devices:
            if wanted.lower() in f"{device.name} {device.description}".lower():
                return device
        names = ", ".join(f"{device.name} ({device.description})" for device in devices) or "none"
        raise UnavailableError(f"llama.cpp has no device named {wanted}; it has {names}")


class PeerModel:
    """A GGUF file loaded into the memory of one device.

    Args:
        library: The loaded libraries.
        path: The GGUF file.
        device: Device that holds all layers.

    Attributes:
        vocab: Size of the vocabulary.

    Raises:
        UnavailableError: llama.cpp refuses the file.
    """

    def __init__(self, library: LlamaCpp, path: Path, device: PeerDevice) -> None:
        self.library = library
        self._devices = (c.c_void_p * 2)(device.handle, None)
        params = library.llama.llama_model_default_params()
        params.devices = c.cast(self._devices, c.POINTER(c.c_void_p))
        params.n_gpu_layers = 9999
        self.handle = library.llama.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise UnavailableError(
                "llama.cpp refuses the model: " + "; ".join(library.messages[-3:])
            )
        vocab = library.llama.llama_model_get_vocab(self.handle)
        self.vocab = library.llama.llama_vocab_n_tokens(vocab)

    def close(self) -> None:
        """Free the memory of the model."""
        self.library.llama.llama_model_free(self.handle)


class PeerContext:
    """A model with a key-value cache, which runs given tokens and samples nothing.

    Args:
        model: The loaded weights.
        context: Tokens that the cache holds.
        flash_attention: Whether llama.cpp uses its fused attention.
        ubatch: Prompt tokens per pass (llama.cpp's micro-batch).
        threads: CPU threads; llama.cpp's default when None. With more threads than free cores,
            threads spin while they wait for each other.
        exact_cache: Whether keys and values are stored in f32 instead of f16.
        outputs: Most tokens of a pass whose logits are computed.
        sequences: Texts that share passes; each has `context / sequences` tokens.

    Raises:
        UnavailableError: llama.cpp refuses the parameters.
    """

    def __init__(
        self,
        model: PeerModel,
        *,
        context: int,
        flash_attention: bool = True,
        ubatch: int = 512,
        threads: int | None = None,
        exact_cache: bool = False,
        outputs: int | None = None,
        sequences: int = 1,
    ) -> None:
        self._llama = llama = model.library.llama
        self.vocab = model.vocab
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, max(2048, ubatch), ubatch
        params.flash_attn_type, params.n_seq_max = int(flash_attention), sequences
        if exact_cache:
            params.type_k = params.type_v = 0
        if outputs is not None:
            params.n_outputs_max = params.n_outputs_max_per_seq = outputs
        if threads is not None:
            params.n_threads = params.n_threads_batch = threads
        self.handle = llama.llama_init_from_model(model.handle, params)
        if not self.handle:
            reason = "; ".join(model.library.messages[-3:])
            raise UnavailableError(f"llama.cpp refuses the context: {reason}")
        self._prompt: tuple[int, ...] = ()

    def rewind(self, length: int) -> None:
        """Remove everything from position `length` on from the cache.

        Raises:
            UnavailableError: llama.cpp cannot remove it.
        """
        memory = self._llama.llama_get_memory(self.handle)
        if not self._llama.llama_memory_seq_rm(memory, 0, length, -1):
            raise UnavailableError(f"llama.cpp cannot rewind to {length}")

    def prefill(self, ids: Sequence[int]) -> float:
        """Run a prompt from an empty cache; return the seconds until its logits are on the host."""
        self.rewind(0)
        self._prompt = tuple(ids)
        start = time.perf_counter()
        self._run(ids)
        self._llama.llama_synchronize(self.handle)
        return time.perf_counter() - start

    def decode(self, ids: Sequence[int], length: int) -> float:
        """Run `ids` one after another after `length` cached tokens; return the seconds.

        A recurrent state cannot be rewound: the prompt is then run again, which is not timed.

        Raises:
            UnavailableError: The cache cannot be rewound, and the prompt has another length.
        """
        self._return_to(length)
        llama, handle = self._llama, self.handle
        tokens = (c.c_int32 * 1)()
        batch = llama.llama_batch_get_one(tokens, 1)
        start = time.perf_counter()
        for token in ids:
            tokens[0] = token
            if llama.llama_decode(handle, batch):
                raise UnavailableError("llama_decode failed")
            llama.llama_synchronize(handle)
        return time.perf_counter() - start

    def batch(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """Run prompts, then tokens of all of them in shared passes; return the seconds.

        Args:
            prompts: The ids of each text; the tokens after them are given, none is sampled.
            tokens: Tokens of each text after its prompt.

        Raises:
            UnavailableError: llama.cpp does not run a pass.
        """
        memory = self._llama.llama_get_memory(self.handle)
        for number in range(len(prompts)):
            self._llama.llama_memory_seq_rm(memory, number, 0, -1)
        start = time.perf_counter()
        for number, prompt in enumerate(prompts):
            positions = np.arange(len(prompt), dtype=np.int32)
            self._pass(np.array(prompt, np.int32), positions, np.full_like(positions, number))
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        numbers = np.arange(len(prompts), dtype=np.int32)
        last = np.array([prompt[-1] for prompt in prompts], np.int32)
        for step in range(tokens):
            self._pass(last, lengths + np.int32(step), numbers)
        return time.perf_counter() - start

    def _pass(self, tokens: Ints, positions: Ints, numbers: Ints) -> None:
        """Run tokens of sequences, and wait for the logits of each sequence's last one."""
        outputs = np.append(numbers[1:] != numbers[:-1], True).astype(np.int8)
        batch = batch_of(tokens, positions, numbers, outputs)
        if self._llama.llama_decode(self.handle, batch):
            raise UnavailableError("llama_decode failed")
        self._llama.llama_synchronize(self.handle)

    def _return_to(self, length: int) -> None:
        """Rewind to a position; where that is impossible, run the prompt of that length again."""
        try:
            self.rewind(length)
        except UnavailableError:
            if len(self._prompt) != length:
                raise
            self.prefill(self._prompt)

    def logits(self, at: int = -1) -> npt.NDArray[np.float32]:
        """Return the logits after the last token, or after that of an index, float32 [vocab]."""
        pointer = self._llama.llama_get_logits_ith(self.handle, at)
        return np.ctypeslib.as_array(pointer, (self.vocab,)).copy()

    def all_logits(self, ids: Sequence[int], rows: int) -> npt.NDArray[np.float32]:
        """Run tokens from an empty cache, `rows` a pass; return the logits after each of them.

        Raises:
            UnavailableError: llama.cpp does not run a pass.
        """
        self.rewind(0)
        logits = []
        for first in range(0, len(ids), rows):
            part = ids[first : first + rows]
            tokens, wanted = (
                (c.c_int32 * len(part))(*part),
                (c.c_int8 * len(part))(*[1] * len(part)),
            )
            batch = self._llama.llama_batch_get_one(tokens, len(part))
            batch.logits = c.cast(wanted, c.c_void_p)
            if self._llama.llama_decode(self.handle, batch):
                raise UnavailableError("llama_decode failed")
            logits += [self.logits(at) for at in range(len(part))]
        return np.stack(logits)

    def close(self) -> None:
        """Free the memory of the context."""
        self._llama.llama_free(self.handle)

    def _run(self, ids: Sequence[int]) -> None:
        for first in range(0, len(ids), 2048):
            part = ids[first : first + 2048]
            tokens = (c.c_int32 * len(part))(*part)
            batch = self._llama.llama_batch_get_one(tokens, len(part))
            if self._llama.llama_decode(self.handle, batch):
                raise UnavailableError("llama_decode failed")
