"""Run this folder as a program: see main() in worker.py for its words."""

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from in_container.bench.worker import main

    sys.exit(main(sys.argv[1:]))
