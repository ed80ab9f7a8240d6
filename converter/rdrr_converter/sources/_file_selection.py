"""Which of a repository's files are the checkpoint: one set of weights and what explains it.

Repositories hold the same weights several times over (safetensors, PyTorch, other frameworks).
The order of preference is that of the readers in `sources`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatch

from rdrr_format.bounded_json import parse_json
from rdrr_format.errors import FormatError

from rdrr_converter.sources import gguf, safetensors, torch_pickle
from rdrr_converter.sources._directories import INDEX_BOUNDS

AUXILIARY_PATTERNS = ("*.json", "*.jinja", "*.model")
"""Small files: configurations, indices, tokenizers, chat templates."""

ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
"""Weights of an adapter, in the order that `lora` looks for them."""

PROBED_NAMES = (
    "config.json",
    "adapter_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    safetensors.INDEX,
    safetensors.SINGLE,
    torch_pickle.INDEX,
    torch_pickle.SINGLE,
    *ADAPTERS,
)
"""Names to ask for where nothing lists them."""

_KINDS = (
    (safetensors.INDEX, safetensors.SINGLE),
    (torch_pickle.INDEX, torch_pickle.SINGLE),
)


@dataclass(frozen=True)
class CheckpointFiles:
    """Files of a checkpoint.

    Attributes:
        auxiliary: Small files.
        weights: Files of weights, all of one kind; none where there are none that can be read.
    """

    auxiliary: tuple[str, ...]
    weights: tuple[str, ...]


def select_files(
    names: Collection[str], read: Callable[[str], bytes], file: str | None = None
) -> CheckpointFiles:
    """Choose.

    Args:
        names: All files of the folder.
        read: Content of one of them; called for an index only.
        file: The file of weights to take; chosen when None.
    """
    if file is not None and file.endswith(gguf.SUFFIX):
        return CheckpointFiles((), gguf.part_names(file))
    auxiliary = tuple(
        sorted(n for n in names if any(fnmatch(n, form) for form in AUXILIARY_PATTERNS))
    )
    return CheckpointFiles(auxiliary, (file,) if file is not None else _weights(names, read))


def _weights(names: Collection[str], read: Callable[[str], bytes]) -> tuple[str, ...]:
    for index, single in _KINDS:
        if index in names:
            return _indexed(read(index))
        if single in names:
            return (single,)
    for name in ADAPTERS:
        if name in names:
            return (name,)
    return tuple(sorted(name for name in names if name.endswith(gguf.SUFFIX)))


def _indexed(content: bytes) -> tuple[str, ...]:
    """The shards an index names; none if it is damaged, which its reader says better."""
    try:
        shards = set(parse_json(content, INDEX_BOUNDS)["weight_map"].values())
    except (FormatError, KeyError, TypeError, AttributeError):
        return ()
    return tuple(sorted(name for name in shards if isinstance(name, str)))
