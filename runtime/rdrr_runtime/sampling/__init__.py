"""Sampling: parameters, random numbers, log-probabilities and the host's sampler.

Both backends share them, so that the same seed gives the same sequence on either.
"""
