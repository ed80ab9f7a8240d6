"""The exit code after an interruption; those of errors are in `rdrr_format.errors`."""

INTERRUPTED = 130
"""After Ctrl-C: 128 plus the number of the signal, as shells report it."""
