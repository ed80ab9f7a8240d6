"""`python -m rdrr` is `rdrr`."""

from rdrr.cli import main

main()
