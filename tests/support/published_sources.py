"""Which of the published configurations were compared with public text, and with what.

The others are written from transformers' defaults and from memory. A comparison covers the values
that the text states; keys that the text leaves out are not confirmed. Two names were corrected by
it: the values are those of the instruct models of Kimi-K2 and Llama-4-Scout, and the base model of
Llama-4-Scout has another context length and rope.
"""

from __future__ import annotations

from collections.abc import Mapping

WHOLE = "a copy of the published config.json, in a report or a log of another project"
TEST = "the test of another runtime that states the model's config.json"
VALUES = "a table or constants of another project that name the model, without every key"

COMPARED: Mapping[str, str] = {
    "Phi-4-mini": WHOLE,
    "SmolVLM2-500M": WHOLE,
    "DeepSeek-V2-Lite": WHOLE,
    "Kimi-K2-Instruct": WHOLE,
    "GLM-4.5-Air": WHOLE,
    "Hy-MT2-7B": WHOLE,
    "LFM2-1.2B": WHOLE,
    "MiniMax-M2.5": WHOLE,
    "Nemotron-3-Nano-30B-A3B": WHOLE,
    "Nemotron-3-Super-120B-A12B": TEST,
    "gpt-oss-20b": TEST,
    "GLM-4.7-Flash": TEST,
    "ERNIE-4.5-21B-A3B": TEST,
    "Seed-OSS-36B": TEST,
    "SmolLM3-3B": TEST,
    "gemma-2-27b": TEST,
    "gemma-4-26B-A4B": TEST,
    "glm-4-9b-chat-hf": TEST,
    "helium-1-preview-2b": TEST,
    "Olmo-3-1025-7B": TEST,
    "starcoder2-3b": TEST,
    "Minitron-4B": TEST,
    "granite-3.1-2b": TEST,
    "Qwen1.5-MoE-A2.7B": TEST,
    "dots.llm1": TEST,
    "K-EXAONE-236B-A23B": TEST,
    "Solar-Open-100B": TEST,
    "Llama-4-Scout-17B-16E-Instruct": TEST,
    "gemma-3n-E4B": TEST,
    "gemma-4-E2B": VALUES,
    "gemma-4-31B": VALUES,
    "EXAONE-4.0-1.2B": VALUES,
    "EXAONE-4.0-32B": VALUES,
    "Ministral-3-3B-Instruct-2512": VALUES,
    "c4ai-command-r-plus": VALUES,
}
"""The kind of text by the name of the configuration."""
