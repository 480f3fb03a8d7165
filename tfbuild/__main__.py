"""`python -m tfbuild`."""

from tfbuild.cli.program import main

if __name__ == "__main__":
    main()
