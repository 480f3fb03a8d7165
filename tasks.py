"""The command line: one Invoke task a verb. Each selects, calls and prints; what they do is in tfbuild/.

Data goes to stdout, everything else to stderr.
"""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke.context import Context
from invoke.tasks import task

from tfbuild import cli
from tfbuild.errors import Interrupted

# The options of every verb that plans, in the order of `invoke --help VERB`. Invoke takes an option's type from its
# default and ignores annotations.
PLAN: dict[str, tuple[Any, str]] = {
    "target": ("mkl", "cpu, mkl (oneDNN) or cuda"),
    "release": ("", "TensorFlow release, 2.21.0 or 2.21 (default: the newest whose needed facts are certain)"),
    "python": ("", "Python of the image, 3.11"),
    "cpu": ("", "the CPU that the image is for: host, a level (x86-64-v3), a name (haswell) or a list (avx2,fma)"),
    "cpuinfo": ("", "read `host` from this recorded /proc/cpuinfo"),
    "compiler": ("", "gcc-12, clang-18 (default: the release's own)"),
    "platform": ("", "linux/amd64 or linux/arm64 (default: this machine's)"),
    "wheel": ("", "official, or a wheel file (default: build from source)"),
    "source": ("", "TensorFlow's source: a tree, or an archive (default: the release's tag on GitHub)"),
    "source-sha256": ("", "what the archive given as --source must have"),
    "threading": ("", "openmp or threadpool, for oneDNN in a build from source"),
    "bazel": ("", "force this Bazel version"),
    "config": ([], "one more Bazel --config (again for more)"),
    "bazel-flag": ([], "one more Bazel flag (again for more)"),
    "with-headers": (False, "keep TensorFlow's headers, so that custom ops can be compiled"),
}
JSON = {"json": (False, "print JSON to stdout")}
MAKE: dict[str, tuple[Any, str]] = {
    "base": ("auto", "auto (a registry, else bootstrap), bootstrap (mmdebstrap), registry, or an image's name"),
    "ca-cert": ("", "a company's CA certificates in PEM (default: SSL_CERT_FILE, when set)"),
    "mirror": ("", "URL of a mirror: what is at https://HOST/PATH is asked for at URL/HOST/PATH"),
    "network": ("", "of the build's steps: host, none or default"),
}
COMPILE: dict[str, tuple[Any, str]] = {
    "jobs": ("", "actions that Bazel runs at once (default: by processors and memory)"),
    "time-limit": ("", "5h30m: then the compile stops, keeps its cache and leaves with code 75"),
    "need-disk": ("", "gigabytes that must be free (default: 86 for a compile)"),
    "no-cache": (False, "build every stage again (downloads and Bazel's cache stay)"),
}

Body = Callable[..., None]


def verb(*groups: dict[str, tuple[Any, str]]) -> Callable[[Body], Any]:
    """An Invoke task that takes the options of `groups` and hands them over as keywords."""
    options = {name: row for group in groups for name, row in group.items()}

    def wrap(body: Body) -> Any:
        @functools.wraps(body)
        def run(*args: Any, **kwargs: Any) -> None:
            try:
                body(*args, **kwargs)
            except KeyboardInterrupt:
                raise Interrupted("interrupted; what ran was stopped and taken down") from None

        known = [p for p in inspect.signature(body).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        more = [
            inspect.Parameter(name.replace("-", "_"), inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, (default, _) in options.items()
        ]
        run.__signature__ = inspect.Signature([*known, *more])  # type: ignore[attr-defined]
        lists = [name.replace("-", "_") for name, (default, _) in options.items() if isinstance(default, list)]
        helps = {name: text for name, (_, text) in options.items()}
        return task(run, help=helps, iterable=lists, auto_shortflags=False)

    return wrap


@verb({"cpuinfo": ("", "read this recorded /proc/cpuinfo in place of this machine's")}, JSON)
def detect(_: Context, **options: Any) -> None:
    """This CPU's features and level, and what the official wheel leaves unused on it."""
    cli.detect(**options)


@verb({name: PLAN[name] for name in ("cpu", "cpuinfo", "compiler", "platform")}, JSON)
def copts(_: Context, **options: Any) -> None:
    """The Bazel copts for a CPU and a compiler, in one line that can be pasted."""
    cli.copts(**options)


@verb(PLAN, JSON)
def plan(_: Context, **options: Any) -> None:
    """The resolved build, with no engine near."""
    cli.plan(**options)


@verb(PLAN, {"output": ("", "folder of the build context (default: build/IDENTIFIER/context)")}, JSON)
def dockerfile(_: Context, **options: Any) -> None:
    """Write the build context: a folder that plain `docker build` accepts."""
    cli.dockerfile(**options)


@verb(
    PLAN,
    MAKE,
    COMPILE,
    {
        "reverify": (False, "verify again, though nothing changed since the stored report"),
        "no-verify": (False, "build only; the image keeps the name IDENTIFIER-unverified"),
        "dry-run": (False, "plan and render, start nothing"),
    },
    JSON,
)
def build(_: Context, **options: Any) -> None:
    """Detect, plan, render, build, verify, tag, report."""
    cli.build(**options)


@verb(PLAN, MAKE, COMPILE, {"output": ("dist", "folder for the wheel")}, JSON)
def wheel(_: Context, **options: Any) -> None:
    """Compile the wheel alone, with a JSON beside it that says how."""
    cli.wheel(**options)


@verb(MAKE, JSON)
def verify(_: Context, image: str, **options: Any) -> None:
    """Prove that IMAGE is what its labels claim, and write the report."""
    cli.verify(image, **options)


@verb(
    {
        "only": ([], "this experiment (again for more)"),
        "quick": (False, "about a minute: one case or two of the main experiments"),
        "full": (False, "half an hour: every case, the narrowest intervals"),
        "budget": ("", "5m: seconds, minutes or hours that the whole run may take (default: 5m)"),
        "against": ("", "another image of the same release, which the experiment `isa` compares with"),
        "list": (False, "only say what can be measured, and why"),
        "dry-run": (False, "only say what would be measured, and for how long"),
    },
    JSON,
)
def bench(_: Context, image: str, **options: Any) -> None:
    """Measure the performance guide's claims in IMAGE on this machine."""
    cli.bench(image, **options)


@verb({"fail-if": ([], "'throughput<0.95': then leave with code 28 (again for more; or an experiment's name)")}, JSON)
def compare(_: Context, first: str, second: str, **options: Any) -> None:
    """Two benchmarks side by side: images, machines or releases."""
    cli.compare(first, second, **options)


@verb({"env-file": ("", "write the environment there, for docker run --env-file")}, JSON)
def advise(_: Context, report: str, **options: Any) -> None:
    """Settings and lines of code for this machine, each with the gain that the benchmark REPORT has for it."""
    cli.advise(report, **options)


@verb({"stop": (False, "stop the engine that tfbuild started"), "json": JSON["json"]})
def engine(_: Context, **options: Any) -> None:
    """Make sure that a container engine answers; install and start Debian's where none does and this is root."""
    cli.engine(**options)


@verb({"check": (False, "compare only, and fail where a file is stale")})
def dockerfiles(_: Context, **options: Any) -> None:
    """Write the committed build contexts under dockerfiles/ again."""
    cli.dockerfiles(Path(__file__).parent / "dockerfiles", **options)


@verb({"pure": (False, "only the tests that need no engine")})
def test(_: Context, **options: Any) -> None:
    """Lint, types, generated files and all tests."""
    cli.test(Path(__file__).parent, **options)
