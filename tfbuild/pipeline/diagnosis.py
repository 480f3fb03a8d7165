"""Find the cause of a failed build in its last lines, and what to do about it."""

import re
from dataclasses import dataclass

from tfbuild.errors import BadInput, BadMirror, BuildFailed, TfbuildError, Unsupported, UsageError


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A `pattern` in the last lines, and the error that it means; `message` and `hint` may use its groups.

    The output of a script is matched at the start of a line: the builder's last line quotes the script itself.
    """

    pattern: str
    error: type[TfbuildError]
    message: str
    hint: str


# What apt, curl, git, pip, Bazelisk and Bazel print of a download that failed. They come before what follows from that:
# a package that could not be downloaded, for example, is reported as missing.
DOWNLOADS = (
    r"\n\s*E: Failed to fetch (?P<why>[^\n]*)",
    r"\n\s*(?P<why>curl: \(\d+\) [^\n]*)",
    r"\n\s*fatal: unable to access (?P<why>[^\n]*)",
    r"\n\s*pip\._vendor\.[\w.]*exceptions\.(?P<why>[^\n]*)",
    r"\n\s*ERROR: Could not install packages due to an OSError: (?P<why>HTTPS?Connection[^\n]*)",
    r"\n\s*ERROR: (?P<why>HTTP error \d+ while getting \S+)",
    # pip does not compare a wheel's length with what was announced. /mnt has wheels that were not downloaded.
    r"\n\s*ERROR: (?P<why>Wheel '[^'\n]*' located at (?!/mnt/)\S+ is invalid)",
    r"\n\s*WARNING: Retrying [^\n]*? after (?P<why>connection broken by [^\n]*)(?=[\s\S]*\n\s*ERROR: No matching)",
    r"\n(?!.*WARNING)[^\n]*Error downloading (?P<why>[^\n]*)",
    r"\n[^\n]*could not download Bazel: (?P<why>(?![^\n]*not found)[^\n]*)",
)
DOWNLOAD_HINT = (
    "check the network, the proxy variables and --ca-cert; the same command continues: earlier steps are kept"
)
# What the kernel says of files that were damaged, or put in the place of others, and where the builder's caches are.
DAMAGE = (
    "(?:Not a directory|Is a directory|File exists|Permission denied|Operation not permitted|Input/output error"
    "|Structure needs cleaning|Read-only file system)"
)
CACHES = "/mnt/(?:cache|pip)/"
EMPTY_CACHES = "docker builder prune --filter type=exec.cachemount"
CLEAR_CACHES = "`{empty_caches}` empties the builder's caches"
# WORKSPACE's check says it, or the script that distributions put before Bazel.
REFUSED_BAZEL = (
    r"\n\s*(?P<what>Current Bazel version is \S+, expected at least \S+)",
    r"ERROR: (?P<what>The project you're trying to build requires Bazel \S+)",
)
# What templates/*.sh, the distribution and Bazelisk print; the first match counts.
CAUSES = (
    # Before the downloads: Bazel may have been about to put one into its cache.
    Cause(
        pattern=rf"\n\s*(?P<what>[^\n]*(?:{CACHES}[^\n]*{DAMAGE}|{DAMAGE}[^\n]*{CACHES})[^\n]*)",
        error=BuildFailed,
        message="a cache of the builder is damaged: {what}",
        hint=f"{CLEAR_CACHES}, and the same command fills them again",
    ),
    # git's own last line says which of the two it is.
    Cause(
        pattern=r"(?P<last>[^\n]*)\n\s*tfbuild: (?P<what>\S+ has no tag \S+, or does not answer)",
        error=BadInput,
        message="{what}: {last}",
        hint="--source with a tree or an archive of that release, or --mirror with one that has it",
    ),
    Cause(
        pattern=r"\n\s*tfbuild: (?P<what>the tag \S+ is the commit \w+, and not \w+)",
        error=BadInput,
        message="{what}",
        hint="this is not the release's own repository, or its tag was moved: use another --mirror, or --source",
    ),
    Cause(
        pattern=r"\n\s*tfbuild: (?P<what>this is not TensorFlow's source: it has no \S+)",
        error=BadInput,
        message="{what}",
        hint="an archive has one folder on top, which is TensorFlow's root",
    ),
    Cause(
        pattern=r"\n\s*tfbuild: \d+-(?P<what>\S+ does not apply to this tree)",
        error=BadInput,
        message="{what}",
        hint="make it from this release's own tree (git diff); an earlier patch, or a fix that the plan names, may "
        "have changed the same lines",
    ),
    Cause(
        pattern=r"Error downloading \[(?P<where>[^\],]*)[^\n]*: Checksum was (?P<got>\w+) but wanted (?P<wanted>\w+)",
        error=BuildFailed,
        message="{where} is not what TensorFlow pins: its sha256 is {got}, not {wanted}",
        hint="the file on the server changed after the release, or something changed it on the way: get the file with "
        "that sha256 elsewhere (--mirror)",
    ),
    *(
        Cause(pattern=pattern, error=BuildFailed, message="a download failed: {why}", hint=DOWNLOAD_HINT)
        for pattern in DOWNLOADS
    ),
    Cause(
        pattern=r"DO NOT MATCH THE HASHES[\s\S]*?\n\s*(?P<what>\S+) from (?P<where>\S+)[^\n]*"
        r"\n\s*Expected sha256 (?P<expected>\w+)\n\s*Got\s+(?P<got>\w+)",
        error=BuildFailed,
        message="{where} is not the {what} that PyPI has: its sha256 is {got}, not {expected}",
        hint="the same command downloads it again; for a wheel that the index made itself, download it and name the "
        "file: --wheel FILE",
    ),
    # pip says the same of an index that it cannot read.
    Cause(
        pattern=r"\(from versions: none\)\n\s*ERROR: No matching distribution found for (?P<what>[^\n]*)",
        error=BuildFailed,
        message="pip found no {what} for this Python and platform, or could not read its index",
        hint=DOWNLOAD_HINT,
    ),
    Cause(
        pattern=r"\n\s*FATAL: couldn't connect to server \(\d+\) after (?P<seconds>\d+) seconds",
        error=BuildFailed,
        message="the machine is too busy: Bazel's own server did not start within {seconds} s",
        hint="run fewer builds at once; the same command continues: what is compiled is kept",
    ),
    # What Bazel prints before it compiles anything.
    Cause(
        pattern=r"no such package '@+(?P<name>[\w.+-]+)//(?P<package>[^']*)': BUILD file not found",
        error=BadInput,
        message="the repository {name} has no BUILD file for @{name}//{package}; nothing was compiled",
        hint="an override-repository folder needs what the tree adds to the archive that it replaces: its build_file, "
        "as BUILD.bazel, and its patches",
    ),
    Cause(
        pattern=r"no such target '@+(?P<name>[\w.+-]+)//(?P<target>[^']+)': target",
        error=BadInput,
        message="the repository {name} has no //{target}, which this tree uses; nothing was compiled",
        hint="does the override-repository folder have the version that the tree names, with the tree's patches?",
    ),
    Cause(
        pattern=r"Unexpected error reading (?:config|\.blazerc) file '(?P<what>[^'\n]+)'(?P<why>[^\n]*)",
        error=BadInput,
        message="Bazel cannot read {what}{why}; nothing was compiled",
        hint="correct .bazelrc in the tree of --source, or take the release's own tree",
    ),
    Cause(
        pattern=r"ERROR: Config value '(?P<name>[\w.+,-]+)' is not defined in any",
        error=Unsupported,
        message="this TensorFlow has no --config={name}; nothing was compiled",
        hint="leave out --config {name}, or plan with --target cpu: its x86-64 builds have oneDNN too",
    ),
    Cause(
        pattern=r"ERROR: (?:--\S+ :: )?Unrecognized option: (?P<name>\S+)",
        error=UsageError,
        message="this Bazel does not know {name}; nothing was compiled",
        hint="leave it out, or choose another --bazel",
    ),
    Cause(
        pattern=r"ERROR: [^\n]*no such (?P<what>target|package) '(?P<name>//[^']+)'",
        error=Unsupported,
        message="this TensorFlow has no {what} {name}; nothing was compiled",
        hint="is --source a tree of this release?",
    ),
    Cause(
        pattern=r"\n\s*tfbuild: (?P<what>the fix (?P<fix>\S+) does not apply to this tree)",
        error=BadInput,
        message="{what}",
        hint="--without-fix {fix} where the tree already has that fix, or does not need it",
    ),
    Cause(
        pattern=r"Could not find any (?P<what>[\w., -]+?) matching version '(?P<version>[^'\n]*)' in any subdirectory",
        error=Unsupported,
        message="the base image has no {what} of version {version!r} where configure.py looks for it",
        hint="--base with an image that has the development packages of CUDA, cuDNN and NCCL; --cuda and cudnn name "
        "their versions",
    ),
    *(
        Cause(
            pattern=pattern,
            error=Unsupported,
            message="this tree refuses the Bazel: {what}; nothing was compiled",
            hint="leave out --bazel, or name a version that the tree takes; --bazel VERSION=PATH must name Bazel "
            "itself, not a wrapper script",
        )
        for pattern in REFUSED_BAZEL
    ),
    Cause(
        pattern=r"(?P<last>[^\n]*)\n\s*tfbuild: (?P<what>this tree's configure.py failed)",
        error=BadInput,
        message="{what}: {last}",
        hint="correct the tree, or leave out --source; the full output is in the log",
    ),
    Cause(
        pattern=r"\n\s*tfbuild: neither this base image nor its distribution has (?P<what>Python [\d.]+)",
        error=Unsupported,
        message="neither the base image nor its distribution has {what}",
        hint="--base with an image that has it, or another --python",
    ),
    Cause(
        pattern=r"\n\s*E: (?:Unable to locate package|Package '?) ?(?P<what>(?:gcc|g\+\+|clang|lld)-\d+)",
        error=Unsupported,
        message="the base image's distribution has no {what}",
        hint="--compiler with one that it has, or --base with an image of another distribution",
    ),
    Cause(
        pattern=r"\n\s*tfbuild: the bundle's system lacks (?P<what>[^\n]*)",
        error=BadMirror,
        message="the wheel's libraries need {what}, which the bundle's system lacks",
        hint="compile without --system-lib, or build on a machine with a network",
    ),
    Cause(
        pattern=r"apt-get: (?:command )?not found",
        error=Unsupported,
        message="the base image has no apt-get: it is not based on Debian or Ubuntu",
        hint="--base with an image that is",
    ),
    Cause(
        pattern=r"/bazel-(?P<version>[\w.]+)-linux[^\n]*\n[^\n]*could not download Bazel:[^\n]*not found",
        error=BuildFailed,
        message="there is no Bazel {version} where Bazelisk looks for it",
        hint="--bazel with a version that exists, or --mirror with one that has it",
    ),
    *(
        Cause(
            pattern=pattern,
            error=BuildFailed,
            message="{what} was not created: the tree's rule does not make it, or its result in the cache is damaged",
            hint=f"if this tree compiled before: {CLEAR_CACHES}, and the same command compiles it again",
        )
        for pattern in (
            r"ERROR: [^\n]*output '(?P<what>[^'\n]+)' was not created",
            r"ERROR: [^\n]*error while parsing \.d file: \S*?(?P<what>[^/\s]+\.d) \(No such file",
        )
    ),
)


def explain(error: BuildFailed, empty_caches: str = EMPTY_CACHES) -> TfbuildError:
    """Return the error that names the cause, where the last lines show it; else `error` itself.

    `empty_caches`: the command that empties the builder's caches.
    """
    for cause in CAUSES:
        if match := re.search(cause.pattern, error.reason):
            groups = {name: text.strip() for name, text in match.groupdict().items()}
            hint = cause.hint.format(**groups, empty_caches=empty_caches)
            return cause.error(cause.message.format(**groups), hint=f"{hint}; {error.hint}")
    return error


# What pip, apt, curl, git, Bazelisk, Bazel and the build's own scripts print of a failed download, in phrases that no
# compiler prints. Warnings do not count: all of these tools retry, or try elsewhere.
BROKEN = re.compile(
    r"(?!.*WARNING).*(?:IncompleteRead|Connection broken|No matching distribution|DO NOT MATCH THE HASHES"
    r"|Unable to locate package|no installation candidate|Failed to fetch|Hash Sum mismatch|curl: \(\d+\)"
    r"|does not have a Release file|is expired \(invalid since|fatal: repository '.*' not found"
    r"|could not download Bazel|Error downloading|cannot be had|(?:Client|Server) Error|HTTP error \d)"
)


def explain_mirror(error: BuildFailed, url: str) -> BadMirror | None:
    """Return the error that names the mirror at `url` if a download through it failed; else None."""
    line = next((line.strip() for line in error.reason.splitlines() if BROKEN.match(line)), "")
    if not line:
        return None
    return BadMirror(
        f"the mirror {url} lacks something, or broke off: {line}\n{error.reason}",
        hint="the mirror must serve all of https://HOST/PATH at its own HOST/PATH; then the same command continues",
    )
