"""Programs: passes that are bound once and replayed, what they cost and what they move.

Which pass runs when is the business of the backends and of `rdrr_runtime.sequences`.
"""
