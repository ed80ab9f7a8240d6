"""Exit codes beside those of the errors (1 and 2)."""

INTERRUPTED = 130
"""After Ctrl-C, as of a shell."""
