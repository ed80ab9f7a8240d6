"""Sequences on a GPU: which ids the cache holds, samplers, readback behind the passes, batches."""
