"""`python -m tilegraph`."""

import sys

from tilegraph.cli import main

if __name__ == "__main__":
    sys.exit(main())
