"""`python -m polyvoc` is the command `polyvoc`."""

from polyvoc.cli import main

main()
