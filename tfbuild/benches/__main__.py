"""Runs this folder as `python .../tfbuild/benches [VARIABLE ...]`: a worker without these environment variables."""

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from tfbuild.benches.worker import main

    sys.exit(main(sys.argv[1:]))
