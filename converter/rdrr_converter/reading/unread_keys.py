"""The rule that no key of a configuration is ignored silently.

A key that no rule of the architecture reads may ask for something that the package would not
compute, and nothing would say so. Such a key is refused by name, unless the table
`architectures/_ignored_keys.py` knows that it changes nothing, or the user allows it. For the same
reason the configuration must not name another architecture than the one it is read as.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from rdrr_format.errors import ConversionError

from rdrr_converter.architectures import ArchitectureRule, Config, states_another_family
from rdrr_converter.architectures._ignored_keys import is_ignored, is_ignored_in_rope

_SHOWN_CHARACTERS = 60


def check_unread(
    config: Config, rule: ArchitectureRule, allowed: Collection[str]
) -> tuple[str, ...]:
    """Refuse a configuration with keys that have not been read and are not harmless.

    Args:
        config: The configuration, from which everything has been read.
        rule: The architecture.
        allowed: Names of keys to ignore.

    Returns:
        Notes on the keys that were ignored because they are allowed.

    Raises:
        ConversionError: A key was not read, or names another architecture.
    """
    family = states_another_family(config.values, rule)
    if family is not None and family not in allowed:
        error = ConversionError(
            f"the configuration is not that of a {rule.name} model",
            where=config.where,
            expected=f"{family} of {rule.name}",
            found=f"{family}: {_shown(config.values[family])}",
            hint="models of another family usually compute something else, even if all tensors fit",
        )
        error.offer(allow_unread=(*allowed, family))
        raise error
    unread = unread_keys(config, rule)
    refused = {name: value for name, value in unread.items() if name not in allowed}
    if refused:
        error = ConversionError(
            f"the configuration has {'a key' if len(refused) == 1 else f'{len(refused)} keys'} "
            f"that {rule.name} does not use, so the result may be wrong",
            where=config.where,
            expected="only keys that the architecture uses, or that are known to change nothing",
            found=", ".join(f"{name}: {_shown(value)}" for name, value in refused.items()),
            hint="unless they change nothing in this model, it cannot be converted yet",
        )
        error.offer(allow_unread=(*allowed, *refused))
        raise error
    ignored = [name for name in (family, *unread) if name is not None]
    return tuple(f"{name} is ignored, as `allow_unread` says" for name in ignored)


def unread_keys(config: Config, rule: ArchitectureRule) -> dict[str, Any]:
    """Return the values of the keys that were not read and are not harmless, by their paths."""
    return {
        f"{path}.{key}" if path else key: value
        for path, key, value in config.unread()
        if not (
            is_ignored_in_rope(key, value)
            if path
            else key in rule.stated_by_tensors or is_ignored(key, value, config.values)
        )
    }


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
