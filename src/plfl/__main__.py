"""`python -m plfl`."""

from plfl.cli import main

main()
