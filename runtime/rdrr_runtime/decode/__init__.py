"""Decoding strategies, one file each, and what all of them share.

A strategy decides which forward passes run, in which order, and over which rows. It does not choose
tokens: the `chooser` runs the rows and chooses a token for each. That is why every strategy
    supports
sampling, log-probabilities, constraints and stop ids. Cached prefixes and context shift come from
the engine. The table of strategies is `strategies`.
"""
