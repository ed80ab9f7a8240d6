"""Sampling: its parameters, its random numbers and the sampler of the host.

Both backends share these, so one seed gives one sequence on either.
"""
