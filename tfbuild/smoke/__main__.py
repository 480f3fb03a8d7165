"""Runs this folder: `python .../smoke` is tfbuild-smoke; `probe NAME` and `worker` serve its children and the host."""

import os
import sys

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[0] = os.path.dirname(here)
    os.environ["TFBUILD_SMOKE"] = here
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "probe":
        from smoke.probes import main as run
    elif command == "worker":
        from smoke.worker import main as run
    else:
        from smoke.inside import main as run
    sys.exit(run(sys.argv[2:] if command in ("probe", "worker") else sys.argv[1:]))
