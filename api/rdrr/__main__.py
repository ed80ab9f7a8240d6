"""Run the command `rdrr` as `python -m rdrr`."""

from rdrr.cli import main

main()
