"""The command line: one Invoke task a verb. Each selects, calls and prints; what they do is in tfbuild/.

Data goes to stdout, everything else to stderr.
"""

import functools
import signal
import sys
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

from invoke.context import Context
from invoke.tasks import task

# Invoke keeps Python from writing byte code, so that each command would compile all of tfbuild again.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

from tfbuild.cli import calls  # noqa: E402
from tfbuild.errors import Interrupted, UsageError  # noqa: E402
from tfbuild.facts import targets  # noqa: E402

# The options of every verb that plans, in the order of `invoke --help VERB`. Invoke takes an option's type from its
# default and ignores annotations.
PLAN: dict[str, tuple[Any, str]] = {
    "target": (targets.default(), targets.spelled(titles=True)),
    "release": ("", "TensorFlow release, 2.21.0 or 2.21 (default: the newest that plans)"),
    "python": ("", "Python of the image, 3.11 (default: the newest of the release that a base image has)"),
    "cpu": ("", "the image's CPU: host, a level (x86-64-v3), a name (haswell), a list (avx2,fma) or a recorded file"),
    "cpuinfo": ("", "read `host` from this recording (/proc/cpuinfo, sysctl -a, CPUID leaves, py-cpuinfo's JSON)"),
    "compiler": ("", "gcc-12, clang-18 (default: the surest for the release that a base image has)"),
    "prefer-vector-width": ("", "128, 256 or 512 bits, for loops that the compiler vectorises (default: measured)"),
    "platform": ("", "linux/amd64 or linux/arm64 (default: this machine's)"),
    "wheel": ("", "official, or a wheel file (default: build from source)"),
    "source": ("", "TensorFlow's source: a tree, or an archive (default: the release's tag on GitHub)"),
    "source-sha256": ("", "what the archive given as --source must have"),
    "threading": ("", "openmp or threadpool, for oneDNN in a build from source"),
    "compute-capabilities": (
        "",
        f"of the GPUs that {targets.options('cuda')} is for: 8.0,9.0 (default: the official wheel's)",
    ),
    "cuda": ("", "CUDA to compile with, 12.8 (default: the release's own, or one that compiles for the GPUs)"),
    "cudnn": ("", "cuDNN to compile with, 9.8 (default: the release's own, or one that goes with the CUDA)"),
    "bazel": ("", "force this Bazel version"),
    "config": ([], "one more Bazel --config (again for more)"),
    "bazel-flag": ([], "one more Bazel flag (again for more)"),
    "patch": ([], "a unified diff for TensorFlow's tree (again for more, in their order)"),
    "override-repository": ([], "NAME=FOLDER in place of an external repository (again for more)"),
    "system-lib": ([], "take this library from the system: curl, or NAME=PACKAGE,PACKAGE (again for more)"),
    "configure": ([], "NAME=VALUE, an answer for configure.py: TF_ENABLE_XLA=0 (again for more)"),
    "without-fix": ([], "leave out this fix for a known failure, which the plan names (again for more)"),
    "with-headers": (False, "keep TensorFlow's headers, so that custom ops can be compiled"),
}
TIMED: dict[str, tuple[Any, str]] = {
    "no-throughput": (False, "verify without the comparison of speed, half a minute; the report says so"),
}
JSON = {"json": (False, "print JSON to stdout")}
ENGINE: dict[str, tuple[Any, str]] = {
    "engine": ("", "another engine: ssh://HOST, tcp://HOST:PORT or a Docker context (default: the client's own)"),
    "builder": ("", "a buildx builder by its name, for the build itself (default: the engine's own)"),
}
MAKE: dict[str, tuple[Any, str]] = {
    **ENGINE,
    "base": ("auto", "auto (a registry, else bootstrap), bootstrap (mmdebstrap), registry, or an image's name"),
    "ca-cert": ("", "a company's CA certificates in PEM (default: SSL_CERT_FILE, when set)"),
    "mirror": ("", "a bundle's folder, or a URL: what is at https://HOST/PATH is asked for at URL/HOST/PATH"),
    "network": ("", "of the build's steps: host, none or default"),
}
COMPILE: dict[str, tuple[Any, str]] = {
    "jobs": ("", "actions that Bazel runs at once (default: by processors and memory)"),
    "time-limit": ("", "5h30m: then the compile stops, keeps its cache and leaves with code 75"),
    "need-disk": ("", "gigabytes that must be free; 0: do not look (default: 86 for a compile)"),
    "remote-cache": ("", "grpc://HOST:PORT, grpcs://, http:// or https://: a Bazel cache that machines share"),
    "remote-executor": ("", "grpc://HOST:PORT or grpcs://: runs actions elsewhere (then give --jobs too)"),
    "remote-instance": ("", "the instance's name there, where it has one"),
    "remote-header-file": ("", "file of NAME=VALUE lines: headers that hold credentials"),
    "remote-client-cert": ("", "PEM file to be known by there (with --remote-client-key)"),
    "remote-client-key": ("", "its key"),
    "remote-property": ([], "NAME=VALUE that the executor chooses workers by (again for more)"),
    "remote-readonly": (False, "take from the remote cache, put nothing there (for untrusted jobs)"),
    "no-cache": (False, "build every stage again (downloads and Bazel's cache stay where BuildKit keeps them)"),
}

Body = Callable[..., None]


def _positional(body: Body, options: dict[str, tuple[Any, str]]) -> tuple[list[Parameter], list[str]]:
    """What the verb takes without an option; the names of those that stand for its `*words`.

    Invoke has no "one or more", nor a word that may be missing: there are as many as on the command line.
    """
    known = list(signature(body).parameters.values())
    many = next((parameter.name for parameter in known if parameter.kind is parameter.VAR_POSITIONAL), "")
    count = max(1, _words(body.__name__, options)) if many else 0
    words = [f"{many}_{number + 1}" if number else many for number in range(count)]
    plain = [parameter for parameter in known if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    if _called(body.__name__) and not _words(body.__name__, options):
        plain = [parameter for parameter in plain if parameter.default is parameter.empty]
    plain = [parameter.replace(default=parameter.empty) for parameter in plain]
    return [*plain, *(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in words)], words


def _called(name: str) -> bool:
    """The command line has the verb, and not only to ask for its help, which shows all that it takes."""
    return name in sys.argv and not {"--help", "-h"} & {*sys.argv[: sys.argv.index(name)]}


def _words(name: str, options: dict[str, tuple[Any, str]]) -> int:
    """How many words on the command line are neither options of the verb nor their values."""
    valued = {f"--{option}" for option, (default, _) in options.items() if not isinstance(default, bool)}
    behind = sys.argv[sys.argv.index(name) + 1 :] if name in sys.argv else []
    values = sum(word in valued for word in behind)
    return sum(not word.startswith("-") for word in behind) - values


def verb(*groups: dict[str, tuple[Any, str]]) -> Callable[[Body], Any]:
    """An Invoke task that takes the options of `groups` and hands them over as keywords."""
    options = {name: row for group in groups for name, row in group.items()}

    def wrap(body: Body) -> Any:
        known, words = _positional(body, options)

        @functools.wraps(body)
        def run(*args: Any, **kwargs: Any) -> None:
            given = [kwargs.pop(name) for name in words]
            # Invoke takes it for the word that the verb needs where that is not there yet.
            if {"--help", "-h"} & {word for word in (*given, *kwargs.values()) if isinstance(word, str)}:
                raise UsageError("--help comes before the verb", hint=f"invoke --help {body.__name__}")
            # What a CI system ends cleans up as after Ctrl-C.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                body(*args, *given, **kwargs)
                sys.stdout.flush()
            except BrokenPipeError:
                calls.leave_where_nobody_reads()
                raise
            except KeyboardInterrupt:
                raise Interrupted("interrupted; what ran was stopped and taken down") from None

        more = [
            Parameter(name.replace("-", "_"), Parameter.KEYWORD_ONLY, default=default)
            for name, (default, _) in options.items()
        ]
        run.__signature__ = Signature([*known, *more])  # type: ignore[attr-defined]
        lists = [name.replace("-", "_") for name, (default, _) in options.items() if isinstance(default, list)]
        helps = {name: text for name, (_, text) in options.items()}
        return task(run, help=helps, iterable=lists, auto_shortflags=False)

    return wrap


@verb({"cpuinfo": ("", "read this recording in place of this machine")}, JSON)
def detect(_: Context, **options: Any) -> None:
    """This CPU's features and level, and what the official wheel leaves unused on it."""
    calls.detect(**options)


@verb(
    {name: PLAN[name] for name in ("cpu", "cpuinfo", "prefer-vector-width", "platform")},
    {
        "compiler": ("", "gcc-12, clang-18 (default: the release's own, gcc-12 where none is named)"),
        "release": ("", "leave out what breaks this TensorFlow release (default: of no release)"),
    },
    JSON,
)
def copts(_: Context, **options: Any) -> None:
    """The Bazel copts for a CPU and a compiler, in one line that can be pasted."""
    calls.copts(**options)


@verb(
    {name: PLAN[name] for name in ("cpu", "cpuinfo", "compiler", "platform")},
    {"release": ("", "TensorFlow release, 2.21.0 or 2.21 (default: the newest)")},
    JSON,
)
def explain(_: Context, **options: Any) -> None:
    """Every CPU feature: in the CPU, in which level, kept as which flag or why not, used by what."""
    calls.explain(**options)


@verb(
    {
        "images": ("3", "the most builds"),
        "skip-unreachable": (False, "go on without the hosts that cannot be read"),
        "timeout": ("20", "seconds for each ssh host"),
        "ssh-config": ("", "for ssh, in place of ~/.ssh/config"),
    },
    JSON,
)
def fleet(_: Context, *hosts: str, **options: Any) -> None:
    """The fewest images that cover HOSTS...: recorded cpuinfo files, folders, lists of ssh hosts."""
    calls.fleet(hosts, **options)


@verb(PLAN, JSON)
def plan(_: Context, **options: Any) -> None:
    """The resolved build, with no engine near."""
    calls.plan(**options)


@verb(PLAN, {"output": ("", "folder of the build context (default: build/IDENTIFIER/context)")}, JSON)
def dockerfile(_: Context, **options: Any) -> None:
    """Write the build context: a folder that plain `docker build` accepts."""
    calls.dockerfile(**options)


@verb(
    PLAN,
    MAKE,
    COMPILE,
    {
        "reverify": (False, "verify again, though nothing changed since the stored report"),
        "no-verify": (False, "build only; the image keeps the name IDENTIFIER-unverified"),
        **TIMED,
        "dry-run": (False, "plan and render, start nothing"),
    },
    JSON,
)
def build(_: Context, **options: Any) -> None:
    """Detect, plan, render, build, verify, tag, report."""
    calls.build(**options)


@verb(PLAN, MAKE, COMPILE, {"output": ("dist", "folder for the wheel")}, JSON)
def wheel(_: Context, **options: Any) -> None:
    """Compile the wheel alone, with a JSON beside it that says how."""
    calls.wheel(**options)


@verb(
    PLAN,
    MAKE,
    {
        "output": ("bundle", "the folder; what is in it is not downloaded again"),
        "wheel-only": (False, "what `invoke wheel` downloads, without what its image would"),
        "need-disk": COMPILE["need-disk"],
        "dry-run": (False, "plan, start nothing"),
    },
    JSON,
)
def bundle(_: Context, **options: Any) -> None:
    """Download all that a build does into one folder, from which `--mirror FOLDER` builds without a network."""
    calls.bundle(**options)


@verb(
    MAKE,
    {
        "registry": ("", "check the IMAGE that this repository (HOST/PATH) has; no layer is downloaded for that"),
        "pull": (False, "with --registry: download it too, compare its SBOM with its files, and verify it in full"),
        "context": ("", "with --registry: was it made from the context of this digest (`invoke dockerfile --json`)?"),
        "signed": (
            "",
            "with --registry: demand a signature that cosign finds good by these options: '--key cosign.pub'",
        ),
        **TIMED,
    },
    JSON,
)
def verify(_: Context, image: str, **options: Any) -> None:
    """Prove that IMAGE is what its labels claim, or (--registry) what its provenance and SBOM describe."""
    calls.verify(image, **options)


@verb({"engine": ENGINE["engine"]}, {"output": ("", "write it to this file (default: stdout)")}, JSON)
def sbom(_: Context, image: str, **options: Any) -> None:
    """The software bill of materials of IMAGE as CycloneDX 1.6, read out of its files."""
    calls.sbom(image, **options)


@verb({"engine": ENGINE["engine"]}, {"full": (False, "read all of the code, not a sample: minutes")}, JSON)
def inspect(_: Context, subject: str, **options: Any) -> None:
    """What SUBJECT (a wheel, an image or a library) was compiled for, by its machine code; nothing of it is run."""
    calls.inspect(subject, **options)


REGISTRY: dict[str, tuple[Any, str]] = {
    "registry": ("", "the repository: HOST/PATH, ghcr.io/us/tfbuild (default: TFBUILD_REGISTRY, when set)"),
    "ca-cert": MAKE["ca-cert"],
}


@verb(
    {"engine": ENGINE["engine"]},
    REGISTRY,
    {
        "force": (False, "move the fixed tag, though it is another image in the registry"),
        "sign": (False, "sign it with cosign, which must be installed, by the identity that you or the CI has"),
        "sign-options": ("", "sign it by these options of `cosign sign`: '--key cosign.key'"),
        "dry-run": (False, "only ask the registry whether it takes a push; IMAGE need not be there yet"),
        "indexes": (False, "push no image: finish the push of one that is there but for its release's indexes"),
    },
    JSON,
)
def push(_: Context, image: str, **options: Any) -> None:
    """Publish IMAGE, which must be verified, with its SBOM and provenance, and in its release's indexes."""
    calls.push(image, **options)


@verb(
    {"engine": ENGINE["engine"]},
    REGISTRY,
    {name: PLAN[name] for name in ("target", "cpuinfo")},
    {
        "release": ("", "2.21.0 or 2.21 (default: any; the largest instruction set decides, then the newest release)"),
        "python": ("", "Python of the image (default: the newest)"),
        "signed": ("", "demand a signature that cosign finds good by these options: '--key cosign.pub'"),
        "dry-run": (False, "choose, and download nothing"),
    },
    JSON,
)
def pull(_: Context, **options: Any) -> None:
    """Pull the best image of a registry that this host can run, and say why not the others."""
    calls.pull(**options)


@verb({"engine": ENGINE["engine"]}, REGISTRY, JSON)
def images(_: Context, **options: Any) -> None:
    """The images here and in the registry: size, age, instruction set, verified or not, whether this host runs them."""
    calls.images(**options)


@verb(
    {
        "keep": (
            [],
            "keep only identifiers that fit this glob, again for more (default: all but failed and unverified)",
        ),
        "dry-run": (False, "show what would go, and remove nothing"),
        "yes": (False, "do not ask"),
    },
    {"engine": ENGINE["engine"]},
    JSON,
)
def prune(_: Context, **options: Any) -> None:
    """Remove images of tfbuild's from the engine: failed, unverified and unnamed ones, or all but some. Asks first."""
    calls.prune(**options)


@verb(
    {
        "only": ([], "this experiment (again for more)"),
        "quick": (False, "about a minute: one case or two of the main experiments"),
        "full": (False, "up to fifty minutes: every case, the narrowest intervals"),
        "budget": ("", "5m: seconds, minutes or hours that the whole run may take (default: 5m)"),
        "model": ([], "this whole model, such as resnet50, at its real size and on JPEGs too (again for more)"),
        "batch-size": ("", "items a step of --model (default: each model's own)"),
        "command": (
            "",
            "'python train.py': watch a script of your own by TensorFlow's profiler, and name its bottleneck",
        ),
        "mount": ("", "the folder in which --command runs, and which it can only read (default: the current one)"),
        "against": ("", "another image of the same release, which the experiments `isa` and `all` compare with"),
        "name": ("", "of the report: reports/NAME.json (default: bench-IDENTIFIER, in place of an older one)"),
        "pyperf": ("", "write all samples to this file too, for python -m pyperf stats or compare_to"),
        "list": (False, "only say what can be measured, and why"),
        "dry-run": (False, "only say what would be measured, and for how long"),
    },
    JSON,
)
def bench(_: Context, image: str = "", **options: Any) -> None:
    """Measure the performance guide's claims in IMAGE on this machine. --list and --dry-run need none."""
    calls.bench(image, **options)


@verb(
    {
        "fail-if": ([], "'throughput<0.95': then leave with code 28 (or cpu, or an experiment's name; again for more)"),
        "html": ("", "write it to this file too, as a page that needs no network"),
    },
    JSON,
)
def compare(_: Context, *reports: str, **options: Any) -> None:
    """Benchmarks side by side, each against the first of REPORTS...: images, machines or releases."""
    calls.compare(reports, **options)


@verb(
    {
        "env-file": ("", "write the environment there, for docker run --env-file"),
        "html": ("", "write the whole report to this file, as a page that needs no network"),
        "pyperf": ("", "write all samples to this file, for python -m pyperf stats or compare_to"),
    },
    JSON,
)
def advise(_: Context, report: str, **options: Any) -> None:
    """Settings and lines of code for this machine, each with the gain that the benchmark REPORT has for it."""
    calls.advise(report, **options)


@verb({"stop": (False, "stop the engine that tfbuild started"), "json": JSON["json"]})
def engine(_: Context, **options: Any) -> None:
    """Make sure that a container engine answers; install and start Debian's where none does and this is root."""
    calls.engine(**options)


@verb(
    {
        "release": ([], "TensorFlow release, again for more (default: the newest of each way)"),
        "target": ([], f"{targets.spelled()}, again for more (default: {' and '.join(targets.of_matrix())})"),
        "python": ([], "Python, again for more (default: all that the release and the base images have)"),
        "cpu": ([], "instruction set of builds from source, again for more (default: the platform's levels)"),
        "platform": ([], "linux/amd64 or linux/arm64 (default: both)"),
        "wheel": ([], "official or source (default: both)"),
        "fleet": ("", "builds from source for the images in this file: invoke fleet HOSTS --json > FILE"),
        "only": ([], "keep rows whose identifier fits this glob, again for more: '*-mkl-py3.12-*'"),
        "changed": ("", "keep rows whose files differ from this state of the repository: origin/main"),
        "format": ("json", "json, github, gitlab or bake"),
        "runner": ([], "WHEEL[:PLATFORM]=LABEL: the CI's machine for such rows, again for more: source=my-large"),
        "output": ("build/bake", "bake's folder for the build contexts"),
    }
)
def matrix(_: Context, **options: Any) -> None:
    """The rows of a CI matrix: every combination that can be built, in a stable order."""
    calls.matrix(Path(__file__).parent, **options)


@verb({"check": (False, "compare docs/support.md only, and fail where it is stale")}, JSON)
def support(_: Context, **options: Any) -> None:
    """Which release builds for which Python, target and platform, how certain, on what evidence, as Markdown."""
    calls.support(Path(__file__).parent, **options)


@verb({"check": (False, "compare only, and fail where a file is stale")})
def dockerfiles(_: Context, **options: Any) -> None:
    """Write the committed build contexts under dockerfiles/ again."""
    calls.dockerfiles(Path(__file__).parent / "dockerfiles", **options)


@verb({"check": (False, "compare only, and fail where a page is stale")})
def docs(_: Context, **options: Any) -> None:
    """Write the generated pages again: docs/support.md and docs/reference/exit-codes.md."""
    calls.docs(Path(__file__).parent, **options)


@verb(
    {
        "pure": (False, "only the tests that need neither an engine nor sshd nor a browser"),
        "nightly": (False, "only those that take long and change seldom, which the others leave out"),
    }
)
def test(_: Context, path: str = "", **options: Any) -> None:  # noqa: PT028 - no test
    """Lint, types, generated files and all tests but the nightly ones; or every test of one folder or file, PATH."""
    calls.test(Path(__file__).parent, path, **options)
