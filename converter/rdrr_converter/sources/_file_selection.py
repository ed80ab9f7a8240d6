"""Select the files of a repository that make up the checkpoint.

Repositories often hold the same weights in several formats (safetensors, PyTorch, other
frameworks). One of them is selected, in the order of preference of the readers in `sources`,
together with the small files that describe it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatch

from rdrr_format.bounded_json import parse_json
from rdrr_format.errors import FormatError
from rdrr_format.file_names import is_plain_name

from rdrr_converter.gguf import source as gguf
from rdrr_converter.sources import safetensors, torch_pickle
from rdrr_converter.sources._directories import INDEX_BOUNDS

AUXILIARY_PATTERNS = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")
"""Patterns of small files: configurations, indices, tokenizers, chat templates."""

ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
"""Weight files of a LoRA adapter, in the order in which `rdrr_converter.lora` looks for them."""

MODULES = "modules.json"
"""List of the modules of an embedding model, which are in folders of their own."""

IN_MODULES = ("config.json", safetensors.SINGLE)
"""Files that the folder of a module may have."""

PROBED_NAMES = (
    "config.json",
    "adapter_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "chat_template.jinja",
    "chat_template.json",
    MODULES,
    "config_sentence_transformers.json",
    safetensors.INDEX,
    safetensors.SINGLE,
    torch_pickle.INDEX,
    torch_pickle.SINGLE,
    *ADAPTERS,
)
"""Names to look for on servers that cannot list their files."""

_KINDS = (
    (safetensors.INDEX, safetensors.SINGLE),
    (torch_pickle.INDEX, torch_pickle.SINGLE),
)


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a checkpoint.

    Attributes:
        auxiliary: Small files, such as the configuration and the tokenizer.
        weights: Weight files, all of one kind; empty if there are none that can be read.
    """

    auxiliary: tuple[str, ...]
    weights: tuple[str, ...]


def select_files(
    names: Collection[str], read: Callable[[str], bytes], file: str | None = None
) -> CheckpointFiles:
    """Select the files of a checkpoint from those of a folder.

    Args:
        names: All files of the folder.
        read: Returns the content of a file; called only for an index.
        file: The weight file to select; None to choose by the order of preference.
    """
    if file is not None and file.endswith(gguf.SUFFIX):
        return CheckpointFiles((), gguf.part_names(file))
    auxiliary = tuple(
        sorted(n for n in names if any(fnmatch(n, form) for form in AUXILIARY_PATTERNS))
    )
    return CheckpointFiles(auxiliary, (file,) if file is not None else _weights(names, read))


def module_folders(content: bytes) -> tuple[str, ...]:
    """Return the folders that a `modules.json` names; none if it is damaged.

    Its reader reports a damaged file.
    """
    try:
        # The file is an array, and the limits of the parser are those of an object.
        listed = parse_json(b'{"modules": ' + content + b"}", INDEX_BOUNDS)["modules"]
        folders = [entry["path"] for entry in listed]
    except (FormatError, KeyError, TypeError):
        return ()
    return tuple(
        folder for folder in folders if isinstance(folder, str) and folder and is_plain_name(folder)
    )


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
    """Return the shards that an index names; none if it is damaged, which its reader reports."""
    try:
        shards = set(parse_json(content, INDEX_BOUNDS)["weight_map"].values())
    except (FormatError, KeyError, TypeError, AttributeError):
        return ()
    return tuple(sorted(name for name in shards if isinstance(name, str)))
