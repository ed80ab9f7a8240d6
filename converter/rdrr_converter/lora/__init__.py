"""PEFT's LoRA adapters, which `merge_adapter` merges into a checkpoint while it is read.

Nothing is merged ahead of time. Each tensor that the adapter changes is replaced by one that adds
the change to the rows and columns being read.
"""

from __future__ import annotations

from rdrr_converter.lora._merge import merge_adapter

__all__ = ["merge_adapter"]
