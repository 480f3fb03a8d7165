"""The build cache policy of tfbuild's own engine: it removes layers long before Bazel's cache mounts.

Debian's 20.10 keeps everything until the disk is full (60 GB in a day of tests). Docker's default policy, where it is
enabled, is no better here: it first removes cache mounts that were unused for two days, from which an interrupted
compile would resume (docs.docker.com, build garbage collection, "default policies").
"""

import json
from pathlib import Path
from typing import Any

from tfbuild.errors import EngineMissing
from tfbuild.util.files import replace_file
from tfbuild.util.terminal import cause

# The configuration of the machine's own engine, if any: its mirrors and proxies apply to ours too.
SYSTEM = Path("/etc/docker/daemon.json")
# Limits of the whole build cache, as shares of the disk: beyond the first, layers and sources are removed, least
# recently used first; beyond the second, everything is.
LAYERS_SHARE, ALL_SHARE = 0.2, 0.5
# BuildKit's types of the records that a build recreates in minutes.
CHEAP = ("regular", "source.local", "source.git.checkout", "internal")


def policy(disk: int) -> dict[str, Any]:
    """Return the value of "builder" in daemon.json for a disk of `disk` bytes. Sizes there have no decimal units."""
    layers, everything = (str(int(disk * share)) for share in (LAYERS_SHARE, ALL_SHARE))
    rules = [{"keepStorage": layers, "filter": [f"type={kind}"]} for kind in CHEAP]
    return {"gc": {"enabled": True, "policy": [*rules, {"keepStorage": everything, "all": True}]}}


def write(path: Path, disk: int, system: Path = SYSTEM) -> Path:
    """Write the engine's configuration to `path`: the machine's own, plus the policy where that sets none.

    Raises EngineMissing where the machine's own is unreadable, as dockerd would refuse it too.
    """
    try:
        machine = json.loads(system.read_text(encoding="utf-8")) if system.is_file() else {}
        configuration = {"builder": policy(disk), **machine}
    except (ValueError, TypeError) as error:
        raise EngineMissing(f"{system} cannot be read: {cause(error)}", hint="correct it, or move it away") from None
    return replace_file(path, json.dumps(configuration, indent=2) + "\n")
