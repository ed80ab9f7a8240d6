"""Sequences on a GPU: their slots, the step that passes read, the sampler, and the feed of tokens.

A single sequence is a batch of one: it has the same step, sampler and feed, and other passes.
"""
