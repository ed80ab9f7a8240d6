"""Embeddings in the form that other tools expect: `encode`, as sentence-transformers has it.

    from rdrr.embeddings import SentenceEncoder

    with SentenceEncoder("package") as encoder:
        vectors = encoder.encode(["a text", "another text"])

docs/howto/embed.md shows the interfaces of LangChain and LlamaIndex, each in a few lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from rdrr_format.closing import Closing

from rdrr._load import load
from rdrr._load_options import LoadKeywords

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rdrr._text_model import Truncate


class SentenceEncoder(Closing):
    """An embedding model with the methods of sentence-transformers.

    Args:
        path: Folder or URL of the package.
        truncate: Whether the end of texts that do not fit the context is left out, or the most
            tokens of a text. sentence-transformers leaves it out without saying so.
        options: Options of `rdrr.load`.

    Attributes:
        model: The loaded model.
    """

    def __init__(
        self, path: str | Path, *, truncate: Truncate = False, **options: Unpack[LoadKeywords]
    ) -> None:
        self.model, self._truncate = load(path, **options), truncate

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        normalize_embeddings: bool = False,
    ) -> npt.NDArray[np.float32]:
        """Return the embeddings of texts, float32 [number of texts, width]; of one text, [width].

        Args:
            sentences: One text or several.
            prompt_name: Name of a prompt of the package, see `Model.embed`.
            normalize_embeddings: Whether embeddings are divided by their norm, which those of most
                packages are already.

        Raises:
            RdrrError: As `Model.embed` raises it.
        """
        import numpy as np

        embeddings = self.model.embed(sentences, prompt=prompt_name, truncate=self._truncate)
        vectors: npt.NDArray[np.float32] = np.asarray(embeddings)
        if normalize_embeddings:
            norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
            vectors = vectors / np.maximum(norms, np.float32(1e-12))
        return vectors[0] if isinstance(sentences, str) else vectors

    def encode_query(self, sentences: str | Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the embeddings of queries, with the prompt `query` if the package has one."""
        return self.encode(sentences, prompt_name=self._known("query"))

    def encode_document(self, sentences: str | Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the embeddings of documents, with the prompt `document` if there is one."""
        return self.encode(sentences, prompt_name=self._known("document"))

    def _known(self, name: str) -> str | None:
        """Return the name of a prompt if the package has it; None for the default one."""
        block = self.model.package.manifest.inference.output.embedding_postprocessor
        return name if block is not None and name in block.prompts else None

    def get_sentence_embedding_dimension(self) -> int:
        """Return the width of an embedding."""
        from rdrr._embedding import Pooling

        return Pooling(self.model.package).width or self.model.package.graph.output_size

    def similarity(
        self, first: npt.NDArray[np.float32], second: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Return the cosine similarity of each of the first and each of the second embeddings."""
        import numpy as np

        def unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            rows = np.atleast_2d(vectors)
            norms = np.linalg.norm(rows, axis=-1, keepdims=True)
            return np.asarray(rows / np.maximum(norms, np.float32(1e-12)), np.float32)

        return unit(first) @ unit(second).T

    def close(self) -> None:
        """Free the memory of the model."""
        self.model.close()
