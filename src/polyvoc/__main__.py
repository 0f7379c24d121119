"""Run the command line: `python -m polyvoc`."""

from polyvoc.cli.start import main

main()
