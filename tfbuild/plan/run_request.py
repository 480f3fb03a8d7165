"""How to build, as users ask for it: an option is one field here, with all that is known of it; see `request.py`."""

import re
from dataclasses import dataclass
from functools import partial

from tfbuild.plan.request import ENGINE
from tfbuild.util.options import LOOKED_UP, TEXT, option

RESOURCES = "Time, disk and memory"
REMOTE = "Remote cache and execution"
IMAGE = "Verification and reuse"
INSTANCE = re.compile(r"[A-Za-z0-9._/-]*")
# Printable ASCII except for what is syntax inside quotes in Bazel's files.
PROPERTY = re.compile(r"[A-Za-z0-9._-]+=[!-&(-\[\]-~]+")

# Options of a remote cache, which only a compile uses.
_remote = partial(option, group=REMOTE, compiles=True)


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """How to build it, as it was requested, in the order in which messages name the options.

    `tfbuild.pipeline.run.run_of` makes a `Run` of it. Nothing here reaches the image, or its identifier.
    """

    engine: str = option(
        "",
        "container engine: ssh://HOST, tcp://HOST:PORT or a Docker context (default: Docker's current one)",
        "ADDRESS",
        group=ENGINE,
        pattern=TEXT,
    )
    ca_cert: str = option(
        "",
        "PEM file with a company's CA certificates (default: SSL_CERT_FILE, when set)",
        "FILE",
        group=ENGINE,
        pattern=TEXT,
    )
    mirror: str = option(
        "",
        "where to download from: a bundle's file, or a URL that serves https://HOST/PATH at URL/HOST/PATH",
        "FILE|URL",
        group=ENGINE,
        pattern=TEXT,
    )
    network: str = option("", "network of the build's steps: host, none or default", group=ENGINE, pattern=LOOKED_UP)
    jobs: str = option(
        "",
        "number of actions that Bazel runs at once (default: derived from processors and memory)",
        "N",
        group=RESOURCES,
        pattern=LOOKED_UP,
        compiles=True,
    )
    time_limit: str = option(
        "",
        "stop the compile after this time, such as 5h30m, keep its cache and exit with code 75",
        "TIME",
        group=RESOURCES,
        pattern=LOOKED_UP,
    )
    need_disk: str = option(
        "",
        "gigabytes that must be free; 0 skips the check (default: depends on the release)",
        "GB",
        group=RESOURCES,
        pattern=LOOKED_UP,
    )
    remote_cache: str = _remote(
        "",
        "Bazel cache shared by machines: grpc://HOST:PORT, grpcs://, http:// or https://",
        "URL",
        pattern=LOOKED_UP,
    )
    remote_executor: str = _remote(
        "",
        "run actions remotely: grpc://HOST:PORT or grpcs:// (--jobs: as many as its workers take at once)",
        "URL",
        pattern=LOOKED_UP,
        rare=True,
    )
    remote_instance: str = _remote(
        "",
        "instance name at the remote cache or executor, if it has one",
        "NAME",
        pattern=INSTANCE,
        what="an instance name",
        form="main",
        rare=True,
    )
    remote_header_file: str = _remote(
        "",
        "file of NAME=VALUE lines: headers with credentials",
        "FILE",
        pattern=TEXT,
    )
    remote_client_cert: str = _remote(
        "",
        "PEM file with the client certificate (with remote-client-key)",
        "FILE",
        pattern=TEXT,
        rare=True,
    )
    remote_client_key: str = _remote(
        "",
        "PEM file with the key of remote-client-cert",
        "FILE",
        pattern=TEXT,
        rare=True,
    )
    remote_property: tuple[str, ...] = _remote(
        (),
        "NAME=VALUE, by which the executor chooses workers (repeatable)",
        "NAME=VALUE",
        pattern=PROPERTY,
        what="NAME=VALUE for an executor",
        form="container-image=docker://...",
        rare=True,
    )
    remote_fallback: str = _remote(
        "yes",
        "no: actions that the executor cannot run are errors, and are not run locally (default: yes)",
        "yes|no",
        pattern=re.compile("yes|no"),
        what="yes or no",
        form="no",
        rare=True,
    )
    remote_readonly: bool = _remote(
        False,
        "read the remote cache, but write nothing to it (for untrusted jobs)",
        rare=True,
    )
    no_cache: bool = option(
        False,
        "rebuild every stage, on the base image of today (a newer BuildKit also starts with an empty Bazel cache)",
        group=RESOURCES,
    )
    reverify: bool = option(False, "verify again, even though nothing changed since the stored report", group=IMAGE)
    no_verify: bool = option(False, "only build; the image is named IDENTIFIER-unverified", group=IMAGE)
    no_throughput: bool = option(
        False, "skip the speed comparison, which takes half a minute; the report says so", group=IMAGE
    )
    reuse: str = option(
        "",
        "take TensorFlow from this image, built earlier from the same context, or from this wheel, compiled earlier by "
        "the same plan (`invoke wheel`): nothing is compiled",
        "IMAGE",
        group=IMAGE,
        pattern=TEXT,
    )


@dataclass(frozen=True, kw_only=True)
class WheelRequest:
    """How to compile a wheel, beside a `RunRequest`: what `wheel` and `plan` have, and the verbs for images do not."""

    no_container: bool = option(
        False, "compile on this machine itself (Debian, Ubuntu), without a container engine and without root"
    )
