"""When an engine of tfbuild's own throws build cache away: layers long before Bazel's cache mounts.

Debian's 20.10 keeps everything until the disk is full (60 GB in a day of tests). Docker's default policy, where it is
switched on, is no better here: it takes cache mounts that were not used for two days first, and with them what an
interrupted compile goes on from (docs.docker.com, build garbage collection, "default policies").
"""

import json
from pathlib import Path
from typing import Any

from tfbuild.errors import EngineMissing

# The configuration of the machine's own engine, where there is one: its mirrors and proxies hold for ours too.
SYSTEM = Path("/etc/docker/daemon.json")
# Of the disk, for the whole of the build cache: beyond the first share layers and sources go, the least lately used
# first; beyond the second everything does.
LAYERS_SHARE, ALL_SHARE = 0.2, 0.5
# What BuildKit calls the records that a build makes again in minutes.
CHEAP = ("regular", "source.local", "source.git.checkout", "internal")


def policy(disk: int) -> dict[str, Any]:
    """The value of "builder" in daemon.json for a disk of so many bytes. Sizes there have no decimal units."""
    layers, everything = (str(int(disk * share)) for share in (LAYERS_SHARE, ALL_SHARE))
    rules = [{"keepStorage": layers, "filter": [f"type={kind}"]} for kind in CHEAP]
    return {"gc": {"enabled": True, "policy": [*rules, {"keepStorage": everything, "all": True}]}}


def write(path: Path, disk: int, system: Path = SYSTEM) -> Path:
    """Writes the engine's configuration to `path`: the machine's own, and the policy where that says nothing of it.

    Raises EngineMissing where the machine's own cannot be read, as dockerd itself would.
    """
    try:
        given = json.loads(system.read_text(encoding="utf-8")) if system.is_file() else {}
        known = {"builder": policy(disk), **given}
    except (ValueError, TypeError) as error:
        raise EngineMissing(f"{system} cannot be read: {error}", hint="mend it, or move it away") from None
    path.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    return path
