"""Single changes, each measured with and without."""
