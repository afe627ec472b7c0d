"""`python -m plfl`."""

from plfl.cli.app import main

main()
