"""Run this folder as a program.

`python .../in_container/bench [VARIABLE ...]` is a worker that unsets these environment variables;
`python .../in_container/bench --profile SECONDS FOLDER COMMAND...` profiles a command.
"""

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from in_container.smoke.isolated import add_site_packages

    add_site_packages()
    if sys.argv[1:2] == ["--profile"]:
        from in_container.bench.script_profile import main as profile

        sys.exit(profile(sys.argv[2:]))
    from in_container.bench.worker import main

    sys.exit(main(sys.argv[1:]))
