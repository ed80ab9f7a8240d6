"""The byte level of the format: dtypes, block codecs, layouts, shards, hashes and stores.

This package knows how numbers are laid out in files. It does not know what a tensor means
(`rdrr_manifests`), where it came from (`rdrr_converter`) or how it is executed (`rdrr_runtime`).
"""
