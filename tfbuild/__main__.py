"""`python -m tfbuild`."""

from tfbuild.cli.program import main

main()
