"""A cache or an executor that machines share (Bazel's remote execution API, or a cache over HTTP): the options."""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tfbuild.errors import UsageError
from tfbuild.plan.request import RunRequest
from tfbuild.util.files import read_named, read_regular
from tfbuild.util.options import given

CACHES = ("grpc", "grpcs", "http", "https")
EXECUTORS = ("grpc", "grpcs")
# The property of each action's key by which a bazelrc separates builders and releases in every cache. Instruction sets
# need none: their flags are in the keys of what is compiled for them alone, so that the next set takes over the host
# tools and all that these make. Unlike --action_env it reaches host tools too, and no repository is fetched again.
SILO = "cache-silo-key"
# The value is printable ASCII except for what is syntax inside quotes in Bazel's files.
HEADER = re.compile(r"[A-Za-z0-9._-]+=[ -&(-\[\]-~]+")
# SCHEME://HOST[:PORT][/PATH]
ADDRESS = re.compile(r"\w+://(?:\[[\da-f:.]+\]|[\w.-]+)(?::([1-9]\d{0,4}))?(?:/[\w.~/%-]*)?", re.ASCII | re.I)


@dataclass(frozen=True, kw_only=True)
class Remote:
    """URLs and their settings. `headers`, `certificate` and `key` are credentials: nothing prints them."""

    cache: str = ""
    executor: str = ""
    instance: str = ""
    properties: tuple[str, ...] = ()
    readonly: bool = False
    fallback: bool = True
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    certificate: Path | None = field(default=None, repr=False)
    key: Path | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The name that messages use."""
        parts = [f"cache {self.cache}" + (", read only" if self.readonly else "")] if self.cache else []
        return "; ".join([*parts, *([f"executor {self.executor}"] if self.executor else [])])

    def secrets(self) -> dict[str, Path]:
        """Return the files that the builder gets unchanged."""
        return {"remote-certificate": self.certificate, "remote-key": self.key} if self.certificate and self.key else {}


# --- the options ------------------------------------------------------------------------------------------------------


def named_remote(request: RunRequest) -> Remote | None:
    """Return what the options name, None without any; raises UsageError, which never quotes a credential."""
    if request.remote_cache.startswith("oci://"):
        raise UsageError(
            "--remote-cache takes no image in a registry any more",
            hint="keep the folder build/host/RELEASE/cache of `invoke wheel --no-container`, or name a cache server",
        )
    if not request.remote_cache and not request.remote_executor:
        if any(name.startswith("remote-") for name, *_ in given(request)):
            raise UsageError(
                "the other --remote-... options need a remote cache or a remote executor",
                hint="--remote-cache grpcs://HOST:PORT",
            )
        return None
    if request.remote_readonly and request.remote_executor:
        raise UsageError(
            "--remote-readonly does not work with --remote-executor: an executor stores its results",
            hint="leave out one of the two",
        )
    if bool(request.remote_client_cert) != bool(request.remote_client_key):
        raise UsageError(
            "a client certificate needs its key", hint="--remote-client-cert FILE --remote-client-key FILE"
        )
    return Remote(
        cache=_url("--remote-cache", request.remote_cache, CACHES),
        executor=_url("--remote-executor", request.remote_executor, EXECUTORS),
        instance=request.remote_instance,
        properties=request.remote_property,
        readonly=request.remote_readonly,
        fallback=request.remote_fallback == "yes",
        headers=_headers(Path(request.remote_header_file)) if request.remote_header_file else (),
        certificate=_pem("--remote-client-cert", request.remote_client_cert),
        key=_pem("--remote-client-key", request.remote_client_key),
    )


def _url(option: str, text: str, schemes: tuple[str, ...]) -> str:
    if not text:
        return ""
    scheme, _, rest = text.partition("://")
    grpc = scheme.startswith("grpc")
    if scheme not in schemes or not is_address(text) or (grpc and "/" in rest.rstrip("/")):
        examples = " or ".join(f"{scheme}://HOST:PORT" for scheme in schemes)
        raise UsageError(f"{option} {text!r} is not a valid address", hint=examples)
    return text.rstrip("/") if grpc else text


def is_address(text: str) -> bool:
    """Whether `text` is SCHEME://HOST[:PORT][/PATH], without characters that are syntax to a shell or to Bazel."""
    match = ADDRESS.fullmatch(text)
    return match is not None and int(match[1] or 1) < 2**16


def _headers(path: Path) -> tuple[tuple[str, str], ...]:
    """Read NAME=VALUE lines, without empty ones and those that begin with #."""
    try:
        lines = read_named(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read --remote-header-file {path}", hint="a text file of NAME=VALUE lines") from error
    rows = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    bad = [number for number, line in rows if not HEADER.fullmatch(line)]
    if bad or not rows:
        raise UsageError(
            f"line {bad[0] if bad else 1} of {path} is not a header",
            hint="NAME=VALUE in printable ASCII, without single quotes and backslashes",
        )
    headers = [line.partition("=") for _, line in rows]
    return tuple((name, value) for name, _, value in headers)


def _pem(option: str, name: str) -> Path | None:
    if not name:
        return None
    with suppress(OSError):
        if b"-----BEGIN " in read_regular(Path(name)):
            return Path(name)
    raise UsageError(f"{option} {name} is not a PEM file", hint="a file with -----BEGIN ... in it")
