"""The GPUs that an engine can give to containers, by its `docker info`. Written without access to a GPU."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from docker.types import DeviceRequest

from tfbuild.engine.containers import ContainerRun
from tfbuild.errors import TfbuildError, UnknownImage

# Devices of the Container Device Interface, which `nvidia-ctk cdi generate` names by index, by UUID, and as "all":
# https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
CDI = "nvidia.com/gpu="
INDEX = re.compile(re.escape(CDI) + r"[0-9]+(:[0-9]+)?")
RUNTIME = "nvidia"
MOST_REASON = 300
NONE = "the engine offers no GPU: docker info names neither the runtime nvidia nor a CDI device nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The `requests` for all GPUs, and the `way` in which the engine offers them; without any, the `reason`."""

    requests: tuple[DeviceRequest, ...] = ()
    way: str = ""
    reason: str = ""


def offered(info: Mapping[str, Any]) -> Offer:
    """Use CDI where the engine lists such devices (API 1.50 and newer), else what `--gpus all` requests."""
    devices = [device.get("ID", "") for device in info.get("DiscoveredDevices") or () if device.get("Source") == "cdi"]
    if ids := _each_once(name for name in devices if name.startswith(CDI)):
        return Offer(requests=(DeviceRequest(driver="cdi", device_ids=ids),), way=f"CDI: {', '.join(ids)}")
    if RUNTIME in (info.get("Runtimes") or {}):
        return Offer(requests=(DeviceRequest(count=-1, capabilities=[["gpu"]]),), way=f"the runtime {RUNTIME}")
    return Offer(reason=NONE)


def why_none(offer: Offer, start: Callable[[], ContainerRun]) -> str:
    """Return why containers get no GPU here, or "" if they get one. `start` runs a trial container with GPUs."""
    if not offer.requests:
        return offer.reason
    try:
        trial = start()
    except UnknownImage:
        raise
    except TfbuildError as error:
        return not_started(offer, error.reason)
    except TimeoutError as error:
        return not_started(offer, str(error))
    return not_started(offer, trial.stderr) if trial.exit_code else ""


def not_started(offer: Offer, output: str) -> str:
    """Return the reason why a container with the offered GPUs does not start, by the last line of its output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = lines[-1][:MOST_REASON] if lines else "it exited without output"
    return f"the engine offers GPUs ({offer.way}), but a container that has them does not start: {reason}"


def _each_once(names: Iterable[str]) -> list[str]:
    """Return one name per GPU: each has an index and a UUID."""
    ids = sorted(set(names))
    if f"{CDI}all" in ids:
        return [f"{CDI}all"]
    return [name for name in ids if INDEX.fullmatch(name)] or ids
