"""Run this folder: `python .../smoke` is tfbuild-smoke; with `probe NAME` it runs one probe."""

import os
import sys

if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[0] = os.path.dirname(folder)
    os.environ["TFBUILD_SMOKE"] = folder
    probing = sys.argv[1:2] == ["probe"]
    if probing:
        from smoke.probes import main as run
    else:
        from smoke.command import main as run
    sys.exit(run(sys.argv[2 if probing else 1 :]))
