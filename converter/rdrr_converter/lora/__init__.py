"""PEFT's LoRA adapters, merged into a checkpoint while it is read; `merge_adapter` does it.

Nothing is merged ahead of time: each tensor that an adapter changes becomes one that adds the
change to the rows and columns that are asked for.
"""

from __future__ import annotations

from rdrr_converter.lora._merge import merge_adapter

__all__ = ["merge_adapter"]
