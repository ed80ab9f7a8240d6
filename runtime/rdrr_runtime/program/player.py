"""A player of programs: it runs a program file with the package's shards on a device.

It knows the schema of programs and nothing of the compiler: no model, no kernel, no phase. Prompts
run in the passes for prompts; decode passes are submitted ahead of the readback of their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_format.closing import Closing
from rdrr_format.errors import GenerationError, UsageError
from rdrr_manifests.package import Package

from rdrr_runtime.program.checks import number
from rdrr_runtime.program.generation import PlayedGeneration
from rdrr_runtime.program.loaded import LoadedProgram
from rdrr_runtime.program.schema import Program, RowsPass, Sampler, Sampling
from rdrr_runtime.records import (
    entries_of,
    pack_entries,
    pack_params,
    pack_segments,
    pack_step,
    searches_of,
)
from rdrr_runtime.sampling.finite import check_hidden, check_logits
from rdrr_runtime.sampling.logprobs import Logprobs
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import fresh_seed

F32 = npt.NDArray[np.float32]


class Player(Closing):
    """A program with its weights on a device; a `with` block frees its memory.

    Args:
        program: The program.
        package: The package that it was made for.
        device: The device.
        context: Slots of the key-value cache; the smallest context of the program when None.
        trusts: Whether kernels that the program calls trusted run without the checks of their
            indices; only for programs that this machine made.
        owns_device: Whether the device is closed with the player.

    Raises:
        UsageError: The program does not serve the context.
        FormatError: The program contradicts itself, or a tensor is not the one it was made for.
        DeviceError: The device lacks what the program needs, or memory.
        ShardError: Bytes of a tensor are missing.
    """

    def __init__(
        self,
        program: Program,
        package: Package,
        device: Device,
        *,
        context: int | None = None,
        trusts: bool = False,
        owns_device: bool = False,
    ) -> None:
        self.context = program.contexts.least if context is None else context
        self._loaded = LoadedProgram(program, package, device, self.context, trusts=trusts)
        self.program = self._loaded.program
        self.device, self._owns_device = device, owns_device

    def generate(
        self,
        ids: Sequence[int],
        *,
        max_tokens: int = 128,
        sampling: SamplingParams | None = None,
        logprobs: Logprobs | None = None,
    ) -> Iterator[int]:
        """Yield the ids that continue a prompt, as soon as they are read; the last may be an end.

        Args:
            ids: Token ids of the prompt.
            max_tokens: Most new ids; there are fewer if the context fills up.
            sampling: How ids are chosen; the most probable ones when None.
            logprobs: Receives the log-probabilities of each id before it is yielded.

        Raises:
            UsageError: The program generates no text, or records too few log-probabilities.
            GenerationError: The prompt is empty or too long, has an id that is not in the
                vocabulary, or the logits are not finite.
            DeviceError: The device is lost.
        """
        sampler, options = self.program.sampler, sampling or SamplingParams()
        if sampler is None:
            raise UsageError("the program generates no text", where=self.program.model)
        self._check_ids(ids, self.context - 1)
        options.check_ids(self.program.vocabulary)
        sampled = None if options.is_greedy else self._begin(sampler, options, ids)
        run = PlayedGeneration(self._loaded, sampled, logprobs)
        self._prefill(ids, run)
        for token_id in run.decode(min(max_tokens, self.context - len(ids))):
            yield token_id
            if token_id in self.program.ends:
                return

    def hidden(self, ids: Sequence[int]) -> F32:
        """Return the hidden states of a text after the final norm, float32 [ids, width].

        Raises:
            UsageError: The program has no pass for them.
            GenerationError: The text is empty or too long, has an id that is not in the
                vocabulary, or a hidden state is not finite.
            DeviceError: The device is lost.
        """
        listed = self.program.hidden
        if listed is None:
            raise UsageError("the program makes no hidden states", where=self.program.model)
        return check_hidden(self._rows("hidden", listed, ids))

    def logits(self, ids: Sequence[int]) -> F32:
        """Return the logits behind each id of a text, float32 [ids, vocabulary].

        Raises:
            UsageError: The program was made without `scores`.
            GenerationError: The text is empty or too long, has an id that is not in the
                vocabulary, or the logits are not finite.
            DeviceError: The device is lost.
        """
        listed = self.program.scores
        if listed is None:
            raise UsageError(
                "the program has no pass for the logits behind each token",
                where=self.program.model,
                hint="export it again with `scores`",
            )
        return check_logits(self._rows("scores", listed, ids))

    def close(self) -> None:
        """Free the memory on the device."""
        self._loaded.close()
        if self._owns_device:
            self.device.close()

    def _rows(self, name: str, listed: RowsPass, ids: Sequence[int]) -> F32:
        """Run a text and return its rows, float32 [ids, width]."""
        self._check_ids(ids, self.context)
        phases = self._loaded.bound((name,), listed.phases)
        dtype = np.dtype({"F16": np.float16, "F32": np.float32}[listed.dtype])
        parts = []
        for start in range(0, len(ids), number(listed.rows)):
            some = ids[start : start + number(listed.rows)]
            self._write_step(some, start)
            if listed.segments is not None:
                # The text is one segment, whose tokens all have the first type.
                words = pack_segments([0], [len(some)], [0] * len(some))
                self.device.write(self._range(listed.segments), words)
            self.device.submit(phases, len(some))
            data = self.device.read(self._range(listed.result), 0, listed.stride * len(some))
            rows = data.reshape(len(some), listed.stride)[:, : listed.width * dtype.itemsize]
            parts.append(rows.copy().view(dtype).astype(np.float32))
        return np.concatenate(parts)

    def _range(self, index: int) -> BufferSlice:
        return self._loaded.ranges[index]

    def _check_ids(self, ids: Sequence[int], most: int) -> None:
        if not 0 < len(ids) <= most:
            raise GenerationError(
                "the prompt is empty or does not fit the context",
                expected=f"1 to {most} tokens",
                found=len(ids),
            )
        if not 0 <= min(ids) <= max(ids) < self.program.vocabulary:
            raise GenerationError(
                "the prompt has an id that is not in the vocabulary",
                expected=f"below {self.program.vocabulary}",
                found=max(ids),
            )

    def _begin(self, sampler: Sampler, options: SamplingParams, seen: Sequence[int]) -> Sampling:
        """Write what sampling needs, and return the phases that sample."""
        device, seed = self.device, fresh_seed() if options.seed is None else options.seed
        device.write(self._range(sampler.params), pack_params(options, seed, masked=False))
        device.clear(self._range(sampler.counts))
        device.clear(self._range(sampler.bias))
        for words in pack_entries(entries_of(options, seen), sampler.most_entries):
            device.write(self._range(sampler.entries), words)
            device.submit(self._loaded.bound(("scatter",), [sampler.scatter]), 1)
        searches = searches_of(options)
        return next(s for s in sampler.samplings if (s.top_k, s.top_p) == searches)

    def _prefill(self, ids: Sequence[int], run: PlayedGeneration) -> None:
        """Run a prompt in the fewest passes, and choose the first new id."""
        start, passes = 0, self.program.passes
        while start < len(ids):
            left = len(ids) - start
            chosen = next((listed for listed in passes if left <= listed.rows), passes[-1])
            some = ids[start : start + chosen.rows]
            self._write_step(some, start)
            start += len(some)
            is_last = start == len(ids)
            body = self._loaded.bound((chosen.name,), chosen.body)
            self.device.submit(run.to_token(chosen) if is_last else body, len(some))

    def _write_step(self, ids: Sequence[int], start: int) -> None:
        slots = list(range(start, start + len(ids)))
        self.device.write(self._range(self.program.step), pack_step(ids, slots))
