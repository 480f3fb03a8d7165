"""Runs this folder: `python .../smoke` is tfbuild-smoke; `probe NAME` serves its children and the host."""

import os
import sys

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[0] = os.path.dirname(here)
    os.environ["TFBUILD_SMOKE"] = here
    probing = sys.argv[1:2] == ["probe"]
    if probing:
        from smoke.probes import main as run
    else:
        from smoke.command import main as run
    sys.exit(run(sys.argv[2 if probing else 1 :]))
