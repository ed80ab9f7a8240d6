"""Embeddings of llama.cpp for texts of given tokens, many of them in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from peers.llama_abi import UnavailableError, batch_of
from peers.llama_cpp import PeerModel

F32 = npt.NDArray[np.float32]
Texts = Sequence[Sequence[int]]


class PeerEmbedder:
    """A model that pools the tokens of each text; the file says how.

    Args:
        model: The loaded weights.
        tokens: Most tokens of a pass. llama.cpp allots memory for as many.
        texts: Most texts of a pass.
        threads: CPU threads; llama.cpp's default when None.
        flash_attention: Whether llama.cpp uses its fused attention.

    Raises:
        UnavailableError: llama.cpp refuses the parameters.
    """

    def __init__(
        self,
        model: PeerModel,
        *,
        tokens: int = 8192,
        texts: int = 64,
        threads: int | None = None,
        flash_attention: bool = True,
    ) -> None:
        self._llama = llama = model.library.llama
        params = llama.llama_context_default_params()
        # All tokens of a text must be in one pass, because its attention is not causal.
        params.n_ctx = params.n_batch = params.n_ubatch = tokens
        params.n_seq_max, params.embeddings, params.kv_unified = texts, True, True
        params.flash_attn_type = int(flash_attention)
        if threads is not None:
            params.n_threads = params.n_threads_batch = threads
        self.handle = llama.llama_init_from_model(model.handle, params)
        if not self.handle:
            reason = "; ".join(model.library.messages[-3:])
            raise UnavailableError(f"llama.cpp refuses the context: {reason}")
        self._tokens, self._texts = tokens, texts
        self._width = llama.llama_model_n_embd(model.handle)

    def embed(self, texts: Texts) -> F32:
        """Return the normalized embedding of each text, in their order."""
        rows = np.empty((len(texts), self._width), np.float32)
        for some in self._passes(texts):
            rows[some] = self._run([texts[index] for index in some])
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    def close(self) -> None:
        """Free the memory of the context."""
        self._llama.llama_free(self.handle)

    def _passes(self, texts: Texts) -> Iterator[list[int]]:
        """Yield the indices of the texts of each pass, the longest texts first."""
        some: list[int] = []
        for index in sorted(range(len(texts)), key=lambda index: -len(texts[index])):
            total = sum(len(texts[other]) for other in some) + len(texts[index])
            if some and (len(some) == self._texts or total > self._tokens):
                yield some
                some = []
            some.append(index)
        if some:
            yield some

    def _run(self, texts: Texts) -> F32:
        tokens = np.concatenate([np.asarray(text, np.int32) for text in texts])
        counts = [len(text) for text in texts]
        positions = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
        numbers = np.repeat(np.arange(len(texts), dtype=np.int32), counts)
        outputs = np.ones(len(tokens), np.int8)
        batch = batch_of(tokens, positions, numbers, outputs)
        if self._llama.llama_encode(self.handle, batch):
            raise UnavailableError("llama_encode failed")
        read = self._llama.llama_get_embeddings_seq
        rows = [read(self.handle, index) for index in range(len(texts))]
        return np.stack([np.ctypeslib.as_array(row, (self._width,)).copy() for row in rows])
