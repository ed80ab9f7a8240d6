"""The matrices of multi-head latent attention, which llama.cpp stores in two tensors.

`attn_k_b` holds the matrices that make keys, transposed, and `attn_v_b` those that make values,
both head by head. Hugging Face has the rows of both in one matrix, one head after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.source import SourceTensor

KEYS, VALUES, JOINED = ".k_b_proj.weight", ".v_b_proj.weight", ".kv_b_proj.weight"


@dataclass(frozen=True)
class _Joined:
    """Reads parts of the joined matrix.

    Attributes:
        keys: [heads, latent, rows of keys].
        values: [heads, rows of values, latent].
    """

    keys: SourceTensor
    values: SourceTensor

    def __call__(self, rows: slice, columns: slice) -> npt.NDArray[np.float32]:
        heads, latent, _ = self.keys.shape
        keys = self.keys.read().reshape(heads, latent, -1).swapaxes(1, 2)
        values = self.values.read().reshape(heads, -1, latent)
        whole = np.concatenate([keys, values], axis=1).reshape(-1, latent)
        return np.ascontiguousarray(whole[rows, columns])


def joined_latents(tensors: Iterable[SourceTensor]) -> Iterator[SourceTensor]:
    """Yield the tensors with the two parts of each matrix joined.

    Raises:
        SourceError: A part is missing, or the shapes of the parts do not fit.
    """
    found = {tensor.name: tensor for tensor in tensors}
    for name, tensor in found.items():
        if name.endswith(VALUES) and name.replace(VALUES, KEYS) in found:
            continue
        if not name.endswith(KEYS):
            yield tensor
            continue
        yield _join(tensor, found.get(name.replace(KEYS, VALUES)))


def _join(keys: SourceTensor, values: SourceTensor | None) -> SourceTensor:
    name = keys.name.replace(KEYS, JOINED)
    shape = None if values is None else values.shape
    if values is None or len(keys.shape) != 3 or len(values.shape) != 3:
        raise SourceError(
            "a matrix of latent attention is incomplete",
            where=f"{keys.file}, {keys.name}",
            expected="attn_k_b [heads, latent, rows] and attn_v_b [heads, rows, latent]",
            found=f"{list(keys.shape)} and {shape}",
        )
    heads, latent, rows = keys.shape
    if (values.shape[0], values.shape[2]) != (heads, latent):
        raise SourceError(
            "the parts of a matrix of latent attention do not fit",
            where=f"{keys.file}, {keys.name}",
            expected=f"attn_v_b [{heads}, rows, {latent}]",
            found=list(values.shape),
        )
    joined = (heads * (rows + values.shape[1]), latent)
    decode = _Joined(keys, values)
    return SourceTensor(name, joined, values.dtype, values.file, values.native, decode=decode)
