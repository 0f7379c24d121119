"""Run the command line: `python -m polyvoc`."""

from polyvoc.cli.main import main

main()
