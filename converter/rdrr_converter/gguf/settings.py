"""Settings that a GGUF states in its metadata and a checkpoint in its configuration.

Each setting is stated once, with both directions: how the metadata is read as keys of Hugging
Face's configuration, and how those keys are written as metadata. An architecture lists its settings
in the order in which they are written; a later one wins. Keys of the metadata are without the name
of the architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdrr_converter.gguf.metadata import GgufMetadata

Config = Mapping[str, Any]
Entries = dict[str, Any]
Notes = tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """One setting, or several that belong together.

    Attributes:
        read: Returns keys of the configuration, given the metadata and the configuration that
            follows from the keys that all architectures have.
        write: Returns metadata, given the configuration.
        notes: Returns what users of the file have to know, given the configuration.
    """

    read: Callable[[GgufMetadata, Config], dict[str, Any]] = lambda _read, _config: {}
    write: Callable[[Config], Entries] = lambda _config: {}
    notes: Callable[[Config], Notes] = lambda _config: ()


def fixed(**values: object) -> Setting:
    """Return keys of the configuration that have these values in every file."""
    return Setting(read=lambda _read, _config: dict(values))


def _key(
    theirs: str,
    ours: str,
    value: Callable[[GgufMetadata], Any],
    stored: Callable[[Any], Any] = lambda value: value,
) -> Setting:
    def write(config: Config) -> Entries:
        return {} if config.get(ours) is None else {theirs: stored(config[ours])}

    return Setting(lambda read, _: {ours: value(read)}, write)


def size(theirs: str, ours: str) -> Setting:
    """Return a positive integer that every file states."""
    return _key(theirs, ours, lambda read: read.size(theirs))


def value(theirs: str, ours: str, default: Any = None) -> Setting:
    """Return a value with a default; one of 0 or false is the default too, if there is one."""
    if default is None:
        return _key(theirs, ours, lambda read: read.get(theirs))
    return _key(theirs, ours, lambda read: read.get(theirs) or default)


def number(theirs: str, ours: str, default: float) -> Setting:
    """Return a positive number with a default."""
    return _key(theirs, ours, lambda read: read.number(theirs) or default, float)


def flag(theirs: str, ours: str) -> Setting:
    """Return a flag that is false by default."""
    return _key(theirs, ours, lambda read: bool(read.get(theirs)), bool)


def state_sizes(heads: str, width: str, groups: str, state: str, kernel: str) -> Setting:
    """Return the sizes of a recurrent state, by the keys of the configuration.

    Args:
        heads: Number of heads, of values in linear attention.
        width: Elements of a head.
        groups: Number of groups, or of key heads.
        state: Elements of a state for each element of a head.
        kernel: Taps of the convolution.
    """

    def read_sizes(read: GgufMetadata, _: Config) -> dict[str, Any]:
        count = read.size("ssm.time_step_rank")
        return {
            heads: count,
            width: read.size("ssm.inner_size") // count,
            groups: read.size("ssm.group_count"),
            state: read.size("ssm.state_size"),
            kernel: read.size("ssm.conv_kernel"),
        }

    def write_sizes(config: Config) -> Entries:
        return {
            "ssm.conv_kernel": config[kernel],
            "ssm.group_count": config[groups],
            "ssm.inner_size": config[heads] * config[width],
            "ssm.state_size": config[state],
            "ssm.time_step_rank": config[heads],
        }

    return Setting(read_sizes, write_sizes)


def _write_window(config: Config) -> Entries:
    window = config.get("sliding_window")
    return {"attention.sliding_window": window} if window else {}


def _note_window(config: Config) -> Notes:
    window = config.get("sliding_window")
    if not window:
        return ()
    return (f"llama.cpp ignores the sliding window of {window} tokens for this architecture",)


WRITTEN_WINDOW = Setting(write=_write_window)
"""The window, if there is one."""

IGNORED_WINDOW = Setting(write=_write_window, notes=_note_window)
"""A window that llama.cpp ignores, as it does for most architectures."""


def notes_on_window(config: Config, settings: Sequence[Setting]) -> Notes:
    """Return a note on a window that a file states, where llama.cpp computes without it.

    The model was trained with it, and transformers computes with it, so it is obeyed.
    """
    window = config.get("sliding_window")
    if not window or IGNORED_WINDOW not in settings:
        return ()
    return (
        f"the file states a sliding window of {window:,} tokens, which is obeyed; llama.cpp ignores"
        " it for this architecture, so that its results differ in longer texts",
    )


WITHOUT_BIASES = fixed(attention_bias=False)
"""No biases, since no file states them; those that exist are used in any case."""


ROTATED_PART = Setting(
    lambda _, config: {"partial_rotary_factor": config.get("partial_rotary_factor", 1.0)}
)
"""The rotated part of a head, which is the whole head if the file does not state it."""

TANH_GELU = Setting(
    notes=lambda _: ("llama.cpp computes the tanh form of GELU for this architecture",)
)
"""The exact GELU of published models, which is not in the metadata."""


def period_of(flags: Sequence[bool], periods: Iterable[int]) -> int | None:
    """Return the first of some periods n at which every n-th layer is false and all others true.

    Args:
        flags: A flag for each layer.
        periods: The periods to try.

    Returns:
        The period; None if the layers follow none of them.
    """
    layers = range(1, len(flags) + 1)
    fitting = (n for n in periods if list(flags) == [layer % n != 0 for layer in layers])
    return next(fitting, None)


def rope_sections(config: Config) -> list[int]:
    """Return how many rotated pairs belong to each of three positions, and 0 for the fourth.

    The three positions of a token of text are equal, so any division that covers all pairs will do.
    """
    rotated = int(config["head_dim"] * (config.get("partial_rotary_factor") or 1.0))
    # The rotated // 2 pairs in three parts as equal as possible: the first ones get what is left.
    return [*((rotated // 2 + 2 - axis) // 3 for axis in range(3)), 0]
