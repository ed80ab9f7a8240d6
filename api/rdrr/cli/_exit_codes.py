"""The exit code that does not come from an error (those are 1 and 2, see `rdrr_format.errors`)."""

INTERRUPTED = 130
"""After Ctrl-C: 128 plus the number of the signal, as shells report it."""
