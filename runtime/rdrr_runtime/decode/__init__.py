"""Decoding strategies, one file each, and what all of them share.

A strategy owns the order of forward passes and says which rows are run. Which token each row gives
is chosen for it (`chooser`), so every strategy has sampling, log-probabilities, constraints and
stop ids; cached prefixes and context shift come from the engine. `strategies` is the table of them.
"""
