"""A player of programs: it runs a program file with the package's shards on a device.

It knows the schema of programs and nothing of the compiler: no model, no kernel, no phase. Prompts
run in the passes for prompts; decode passes are submitted ahead of the readback of their ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.readback import Fetch
from rdrr_format.closing import Closing
from rdrr_format.errors import GenerationError, UsageError
from rdrr_manifests.package import Package

from rdrr_runtime.program.checks import number
from rdrr_runtime.program.loaded import LoadedProgram, Prepared
from rdrr_runtime.program.schema import Logprobs as Recording
from rdrr_runtime.program.schema import Pass, Phase, Program, RowsPass, Sampler, Sampling
from rdrr_runtime.records import entries_of, pack_entries, pack_params, pack_step, searches_of
from rdrr_runtime.sampling.finite import check_hidden, check_ids, check_logits
from rdrr_runtime.sampling.logprobs import Logprobs, record_bytes, unpack
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import fresh_seed

AHEAD = 4
"""Decode passes in a submission, one of which is ahead of the readback of the one before."""

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Choice:
    """How the ids of a generation are chosen, and what is recorded of them.

    Attributes:
        sampling: The phases that sample; None to take the most probable ids.
        recording: Records log-probabilities; None to record nothing.
    """

    sampling: Sampling | None
    recording: Recording | None

    @property
    def name(self) -> tuple[str, ...]:
        """What the phases are known by."""
        searches = self.sampling and (self.sampling.top_k, self.sampling.top_p)
        return str(searches), "recorded" if self.recording else "not recorded"

    def phases(self, chosen: Pass) -> tuple[Phase, ...]:
        """Return the phases behind the head of a pass."""
        phases = chosen.sample if self.sampling is None else self.sampling.phases
        return (*phases, *(self.recording.phases if self.recording else ()))


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
        chosen = None if options.is_greedy else self._begin(sampler, options, ids)
        choice = _Choice(chosen, self._recording(sampler, logprobs))
        self._prefill(ids, choice)
        for token_id in self._decode(min(max_tokens, self.context - len(ids)), choice, logprobs):
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

    def _recording(self, sampler: Sampler, logprobs: Logprobs | None) -> Recording | None:
        """Return what records the log-probabilities that are asked for."""
        recording, most = sampler.logprobs, sampler.logprobs.top if sampler.logprobs else -1
        if logprobs is None:
            return None
        if logprobs.top > most:
            raise UsageError(
                "the program does not record as many log-probabilities",
                where=self.program.model,
                found=logprobs.top,
                hint="export the program again with this version of rdrr",
            )
        return recording

    def _prefill(self, ids: Sequence[int], choice: _Choice) -> None:
        """Run a prompt in the fewest passes, and choose the first new id."""
        start, passes = 0, self.program.passes
        while start < len(ids):
            left = len(ids) - start
            chosen = next((listed for listed in passes if left <= listed.rows), passes[-1])
            some = ids[start : start + chosen.rows]
            self._write_step(some, start)
            start += len(some)
            self.device.submit(self._pass(chosen, choice if start == len(ids) else None), len(some))

    def _write_step(self, ids: Sequence[int], start: int) -> None:
        slots = list(range(start, start + len(ids)))
        self.device.write(self._range(self.program.step), pack_step(ids, slots))

    def _decode(self, count: int, choice: _Choice, logprobs: Logprobs | None) -> Iterator[int]:
        """Yield ids; passes for the next ones are submitted before the ids of the last are read."""
        decode = self._pass(self.program.passes[0], choice)
        waiting: deque[tuple[int, Fetch]] = deque()
        submitted = min(count, 1)
        if submitted:
            waiting.append((1, self._fetch(0, 1, choice.recording)))
        try:
            while waiting:
                some = min(AHEAD, count - submitted)
                if some:
                    self.device.submit(decode, 1, some)
                    waiting.append((some, self._fetch(submitted, some, choice.recording)))
                    submitted += some
                steps, fetch = waiting.popleft()
                data = np.concatenate(fetch.collect())
                ids = data[: 4 * steps].view(np.uint32)
                check_ids(ids)
                yield from self._recorded(ids.tolist(), data[4 * steps :], choice, logprobs)
        finally:
            for _, fetch in waiting:
                fetch.collect()

    def _recorded(
        self,
        ids: Sequence[int],
        records: npt.NDArray[np.uint8],
        choice: _Choice,
        logprobs: Logprobs | None,
    ) -> Iterator[int]:
        """Yield ids, and before each give its log-probabilities to whoever asked for them."""
        if logprobs is None or choice.recording is None:
            yield from ids
            return
        top, vocabulary = choice.recording.top, self.program.vocabulary
        for token in unpack(ids, records, vocabulary=vocabulary, top=top):
            logprobs.tokens.append(replace(token, top=token.top[: logprobs.top]))
            yield token.token_id

    def _fetch(self, first: int, count: int, recording: Recording | None) -> Fetch:
        """Start to read the ids of some steps from the ring, and behind them their records."""
        ring = self._range(self.program.ring)
        rings = [(ring, 4)]
        if recording is not None:
            rings.append((self._range(recording.records), record_bytes(recording.top)))
        steps = ring.size // 4
        pieces = [(first % steps, min(count, steps - first % steps))]
        while sum(some for _, some in pieces) < count:
            pieces.append((0, min(steps, count - sum(some for _, some in pieces))))
        return self.device.fetch(
            *(part.range(size * at, size * some) for part, size in rings for at, some in pieces)
        )

    def _pass(self, chosen: Pass, choice: _Choice | None) -> Prepared:
        """Return a pass ready to run: only its body, or up to the id that is chosen."""
        if choice is None:
            return self._loaded.bound((chosen.name,), chosen.body)
        phases = (*chosen.body, *chosen.head, *choice.phases(chosen))
        return self._loaded.bound((chosen.name, *choice.name), phases)
