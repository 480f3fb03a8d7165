"""GPUs that an engine can give to containers, by its own words (`docker info`). Pure; no GPU was at hand."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from docker.types import DeviceRequest

# Devices of the Container Device Interface, which `nvidia-ctk cdi generate` names by index, by UUID, and "all" of them:
# https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
CDI = "nvidia.com/gpu="
INDEX = re.compile(re.escape(CDI) + r"[0-9]+(:[0-9]+)?")
RUNTIME = "nvidia"
NONE = "the engine offers no GPU: docker info names neither the runtime nvidia nor a CDI device nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What to ask for all GPUs with, and by which way; without any the `reason`."""

    requests: tuple[DeviceRequest, ...] = ()
    way: str = ""
    reason: str = ""


def offered(info: Mapping[str, Any]) -> Offer:
    """By CDI where the engine has discovered such devices (API 1.50 and newer tell), else as `--gpus all` asks."""
    found = [device.get("ID", "") for device in info.get("DiscoveredDevices") or () if device.get("Source") == "cdi"]
    if ids := _every(name for name in found if name.startswith(CDI)):
        return Offer(requests=(DeviceRequest(driver="cdi", device_ids=ids),), way=f"CDI: {', '.join(ids)}")
    if RUNTIME in (info.get("Runtimes") or {}):
        return Offer(requests=(DeviceRequest(count=-1, capabilities=[["gpu"]]),), way=f"the runtime {RUNTIME}")
    return Offer(reason=NONE)


def _every(names: Iterable[str]) -> list[str]:
    """Names for each GPU once: the same one has an index and a UUID."""
    known = sorted(set(names))
    if f"{CDI}all" in known:
        return [f"{CDI}all"]
    return [name for name in known if INDEX.fullmatch(name)] or known
