"""Run this folder: `python .../smoke` is tfbuild-smoke; with `probe NAME` it runs one probe."""

import os
import sys

if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[0] = os.path.dirname(folder)
    os.environ["TFBUILD_SMOKE"] = folder
    if sys.argv[1:2] == ["probe"]:
        from smoke.probes import PROBES, open_channel

        PROBES[sys.argv[2]](open_channel())
    else:
        from smoke.command import main

        sys.exit(main(sys.argv[1:]))
