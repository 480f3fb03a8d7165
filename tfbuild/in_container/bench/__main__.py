"""Runs this folder as `python .../in_container/bench [VARIABLE ...]`: a worker without these environment variables.

Or as `... --profile SECONDS FOLDER COMMAND...`, which watches a command.
"""

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if sys.argv[1:2] == ["--profile"]:
        from in_container.bench.script_profile import main as profile

        sys.exit(profile(sys.argv[2:]))
    from in_container.bench.worker import main

    sys.exit(main(sys.argv[1:]))
