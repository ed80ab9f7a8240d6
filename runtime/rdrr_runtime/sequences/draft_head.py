"""The draft head of a model on the GPU, which shares the matrices of the model.

The head is a second plan on the device of the model, with a cache and a step of its own. Its passes
read the hidden states that the model's passes have kept, so nothing passes through the host. Each
of its passes leaves its own hidden state where the next one reads it, and the argmax advances its
step, so it proposes several tokens in one submission.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import DeviceArena
from rdrr_manifests.package import Package

from rdrr_runtime.backend import Row
from rdrr_runtime.exec.executor import Executor
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.exec.prepared import PreparedPasses
from rdrr_runtime.sequences.gpu_sequences import (
    PASSES_PER_SUBMISSION,
    GpuSequences,
    PassPart,
    submit_and_collect,
)
from rdrr_runtime.sequences.passes import SinglePasses
from rdrr_runtime.sequences.sampler import GpuSampler

F32 = npt.NDArray[np.float32]


class GpuDraftHead:
    """A draft head on the device of its model, see `rdrr_runtime.draft_backend.DraftHead`.

    Args:
        model: The plan of the model.
        package: The package of the model, which has a head.
        executor: Runs the head's passes.

    Attributes:
        rows: Most rows of a call.
        seen: See `DraftHead.seen`.

    Raises:
        ShardError: Bytes of a tensor are missing.
        DeviceError: There is too little memory.
    """

    def __init__(self, model: Plan, package: Package, executor: Executor) -> None:
        self.rows = model.keep_hidden().slots
        self.seen: list[int] = []
        self._arena = DeviceArena(executor.device, f"{package.manifest.model_id} draft head")
        try:
            plan = model.draft_head(package, self._arena)
        except BaseException:
            self._arena.dispose()
            raise
        prepared = PreparedPasses(plan, executor)
        prepared.keeps_hidden = True
        vocabulary = plan.graph.vocab_size
        sampler = partial(GpuSampler, executor, self._arena, plan.state, vocabulary)
        self._sequence = GpuSequences(
            executor, plan.state, SinglePasses(prepared), vocabulary, sampler
        )

    def fill(self, ids: Sequence[int], base: int) -> None:
        """Run rows only to store their keys and values."""
        self._sequence.run(ids, base, lambda prepared: prepared.body)

    def logits(self, ids: Sequence[int], base: int) -> F32:
        """Return the logits after the last row, f32 [1, vocab], see `DraftHead.logits`."""
        prepared = self._sequence.run(ids, base, lambda prepared: prepared.to_logits)
        assert prepared is not None, "a single sequence has passes of its own"
        return self._sequence.read_logits(prepared, 1)

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run rows, feed back the most probable token of each pass, and return `count` new ids."""
        to_token: PassPart = self._sequence.to_token(False)

        def first() -> int:
            self._sequence.run(ids, base, to_token)
            return 1

        rows = (Row(ids[-1], 0, base + len(ids) - 1),)
        feed = self._sequence.feed(rows, first, per_submission=PASSES_PER_SUBMISSION)
        return submit_and_collect(feed, count)[0]

    def close(self) -> None:
        """Free GPU memory."""
        self._arena.dispose()
