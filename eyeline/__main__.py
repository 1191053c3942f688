"""`python -m eyeline` is the command line."""

from eyeline.cli import main

main()
