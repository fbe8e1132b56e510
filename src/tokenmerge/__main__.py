"""`python -m tokenmerge` is the command `tokenmerge`, for environments whose scripts are not on the path."""

import sys

from tokenmerge.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
