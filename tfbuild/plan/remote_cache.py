"""A cache or an executor that machines share (Bazel's remote execution API, or a cache over HTTP): the options."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

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
    """What the options name; `executor`: whether there is one. Nothing prints `flags`, which hold credentials.

    `name`: its name in messages; `files`: secrets that the builder gets unchanged.
    """

    name: str
    executor: bool = False
    readonly: bool = False
    flags: tuple[str, ...] = field(default=(), repr=False)
    files: Mapping[str, Path] = field(default_factory=dict, repr=False, hash=False)

    def bazelrc(self, bazel: str) -> str:
        """Return the lines for that Bazel."""
        flags = [*self.flags]
        # Without it, results do not reach the disk cache either (bazelbuild/bazel#15148); Bazel 6 needs no flag.
        if self.readonly and Version(bazel) < Version("6.0.0"):
            flags.append("--incompatible_remote_results_ignore_disk")
        return "".join(f"build {flag}\n" for flag in flags)


# --- the options ------------------------------------------------------------------------------------------------------


def named_remote(request: RunRequest) -> Remote | None:
    """Return what the options name, None without any; raises UsageError, which never quotes a credential."""
    _refuse_combinations(request)
    if not request.remote_cache and not request.remote_executor:
        return None
    names, flags, files = list[str](), list[str](), dict[str, Path]()
    if cache := _url("--remote-cache", request.remote_cache, CACHES):
        names.append(f"cache {cache}" + (", read only" if request.remote_readonly else ""))
        flags.append(f"--remote_cache={cache}")
    if executor := _url("--remote-executor", request.remote_executor, EXECUTORS):
        names.append(f"executor {executor}")
        flags.append(f"--remote_executor={executor}")
        # With the fallback, an action that the executor fails to run is run on this machine. A tree's own .bazelrc
        # keeps actions there: build --spawn_strategy=standalone, older ones genrules too.
        flags += ["--remote_local_fallback"] if request.remote_fallback == "yes" else []
        flags += ["--spawn_strategy=remote,local", "--strategy=Genrule=remote,local"]
    flags += [f"--remote_instance_name={request.remote_instance}"] if request.remote_instance else []
    flags += [f"--remote_default_exec_properties='{item}'" for item in request.remote_property]
    if request.remote_header_file:
        flags += [f"--remote_header='{line}'" for line in _headers(Path(request.remote_header_file))]
    if request.remote_client_cert:
        files["remote-certificate"] = _pem("--remote-client-cert", request.remote_client_cert)
        files["remote-key"] = _pem("--remote-client-key", request.remote_client_key)
        flags += ["--tls_client_certificate=/mnt/remote-certificate", "--tls_client_key=/mnt/remote-key"]
    flags += ["--noremote_upload_local_results"] if request.remote_readonly else []
    return Remote(
        name="; ".join(names),
        executor=bool(executor),
        readonly=request.remote_readonly,
        flags=tuple(flags),
        files=files,
    )


def _refuse_combinations(request: RunRequest) -> None:
    if request.remote_cache.startswith("oci://"):
        raise UsageError(
            "--remote-cache no longer takes an image in a registry",
            hint="keep the folder build/host/RELEASE/cache of `invoke wheel --no-container`, or name a cache server",
        )
    if request.remote_fallback == "no" and not request.remote_executor:
        raise UsageError("--remote-fallback needs a remote executor", hint="--remote-executor grpcs://HOST:PORT")
    named = request.remote_cache or request.remote_executor
    if not named and any(name.startswith("remote-") for name, *_ in given(request)):
        raise UsageError(
            "the other --remote-... options need a remote cache or a remote executor",
            hint="--remote-cache grpcs://HOST:PORT",
        )
    if request.remote_readonly and request.remote_executor:
        raise UsageError(
            "--remote-readonly does not work with --remote-executor: an executor stores its results",
            hint="leave out one of the two",
        )
    if bool(request.remote_client_cert) != bool(request.remote_client_key):
        raise UsageError(
            "a client certificate needs its key", hint="--remote-client-cert FILE --remote-client-key FILE"
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


def _headers(path: Path) -> list[str]:
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
    return [line for _, line in rows]


def _pem(option: str, name: str) -> Path:
    with suppress(OSError):
        if b"-----BEGIN " in read_regular(Path(name)):
            return Path(name)
    raise UsageError(f"{option} {name} is not a PEM file", hint="a file with -----BEGIN ... in it")
