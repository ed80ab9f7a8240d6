"""Pydantic models of all blocks of a manifest; `Manifest` is the root."""

from rdrr_manifests.models.architecture import Architecture
from rdrr_manifests.models.classifier import Classifier
from rdrr_manifests.models.embedding import EmbeddingPostprocessor
from rdrr_manifests.models.experts import MoeConfig
from rdrr_manifests.models.hints import HINT_VALUES, KernelHints, Optimizations, parse_hint
from rdrr_manifests.models.identity import Conversion, QuantizationInfo, Shard
from rdrr_manifests.models.inference import (
    Attention,
    ChatTemplate,
    FeedForward,
    Inference,
    LayerPattern,
    Normalization,
    Output,
    Rope,
)
from rdrr_manifests.models.manifest import MANIFEST_NAME, Manifest
from rdrr_manifests.models.processor import Processor, Tiles, Video
from rdrr_manifests.models.tensors import Role, Span, Tensor
from rdrr_manifests.models.tokenizer import Tokenizer
from rdrr_manifests.models.vision import Vision

__all__ = [
    "HINT_VALUES",
    "MANIFEST_NAME",
    "Architecture",
    "Attention",
    "ChatTemplate",
    "Classifier",
    "Conversion",
    "EmbeddingPostprocessor",
    "FeedForward",
    "Inference",
    "KernelHints",
    "LayerPattern",
    "Manifest",
    "MoeConfig",
    "Normalization",
    "Optimizations",
    "Output",
    "Processor",
    "QuantizationInfo",
    "Role",
    "Rope",
    "Shard",
    "Span",
    "Tensor",
    "Tiles",
    "Tokenizer",
    "Video",
    "Vision",
    "parse_hint",
]
