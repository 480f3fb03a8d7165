"""What a failed build's last lines mean: the error of the cause, with what to do, in place of "could not be built"."""

import re
from dataclasses import dataclass

from tfbuild.errors import (
    BadSource,
    BaseUnavailable,
    BuildFailed,
    TfbuildError,
    UnknownCompiler,
    UnknownPython,
    UnknownRelease,
    UsageError,
)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """`pattern` occurs in the last lines; `says` and `hint` may name its groups.

    What a script says begins a line: the builder quotes the script itself in its last word.
    """

    pattern: str
    error: type[TfbuildError]
    says: str
    hint: str


# What templates/*.sh, the distribution and Bazelisk say; the first that fits counts.
CAUSES = (
    Cause(
        pattern=r"\n\s*tfbuild: (?P<what>\S+ has no tag \S+, or does not answer)",
        error=BadSource,
        says="{what}",
        hint="--source with a tree or an archive of that release, or --mirror with one that has it",
    ),
    Cause(
        pattern=r"\n\s*tfbuild: (?P<what>the tag \S+ is the commit \w+, and not \w+)",
        error=BadSource,
        says="{what}",
        hint="this is not the release's own repository, or its tag was moved: take another --mirror, or --source",
    ),
    Cause(
        pattern=r"\n\s*tfbuild: (?P<what>this is not TensorFlow's source: it has no \S+)",
        error=BadSource,
        says="{what}",
        hint="an archive has one folder on top, which is TensorFlow's root",
    ),
    Cause(
        pattern=r"\n\s*tfbuild: \d+-(?P<what>\S+ does not apply to this tree)",
        error=BadSource,
        says="{what}",
        hint="make it from this release's own tree (git diff); an earlier patch, or a fix that the plan names, may "
        "have changed the same lines",
    ),
    # What Bazel says when it begins, 0.26.1 without the quotes. Nothing was compiled by then.
    Cause(
        pattern=r"ERROR: Config value '?(?P<name>[\w.+,-]+)'? is not defined in any",
        error=UnknownRelease,
        says="this TensorFlow has no --config={name}; nothing was compiled",
        hint="leave out --config {name}, or plan with --target cpu: from 2.5 on its x86-64 builds have oneDNN too",
    ),
    Cause(
        pattern=r"ERROR: (?:--\S+ :: )?Unrecognized option: (?P<name>\S+)",
        error=UsageError,
        says="this Bazel does not know {name}; nothing was compiled",
        hint="leave it out, or choose another --bazel",
    ),
    Cause(
        pattern=r"ERROR: [^\n]*no such (?P<what>target|package) '(?P<name>//[^']+)'",
        error=UnknownRelease,
        says="this TensorFlow has no {what} {name}; nothing was compiled",
        hint="is --source a tree of this release?",
    ),
    Cause(
        pattern=r"\n\s*tfbuild: (?P<what>the fix (?P<fix>\S+) does not apply to this tree)",
        error=BadSource,
        says="{what}",
        hint="--without-fix {fix} where the tree has that fix already, or needs none",
    ),
    Cause(
        pattern=r"(?P<last>[^\n]*)\n\s*tfbuild: (?P<what>this tree's configure.py failed)",
        error=BadSource,
        says="{what}: {last}",
        hint="mend the tree, or leave out --source; its whole output is in the log",
    ),
    Cause(
        pattern=r"\n\s*tfbuild: neither this base image nor its distribution has (?P<what>Python [\d.]+)",
        error=UnknownPython,
        says="neither the base image nor its distribution has {what}",
        hint="--base with an image that has it, or another --python",
    ),
    Cause(
        pattern=r"\n\s*E: (?:Unable to locate package|Package '?) ?(?P<what>(?:gcc|g\+\+|clang|lld)-\d+)",
        error=UnknownCompiler,
        says="the base image's distribution has no {what}",
        hint="--compiler with one that it has, or --base with an image of another distribution",
    ),
    Cause(
        pattern=r"apt-get: (?:command )?not found",
        error=BaseUnavailable,
        says="the base image has no apt-get: it is not made of Debian or Ubuntu",
        hint="--base with an image that is",
    ),
    Cause(
        pattern=r"/bazel-(?P<version>[\w.]+)-linux[^\n]*\n[^\n]*could not download Bazel:[^\n]*not found",
        error=BuildFailed,
        says="there is no Bazel {version} where Bazelisk looks for it",
        hint="--bazel with a version that exists, or --mirror with one that has it",
    ),
)


def explain(error: BuildFailed) -> TfbuildError:
    """The error that says the cause, where the last lines tell it; else `error` itself."""
    for cause in CAUSES:
        if found := re.search(cause.pattern, error.reason):
            names = {name: text.strip() for name, text in found.groupdict().items()}
            return cause.error(cause.says.format(**names), hint=f"{cause.hint.format(**names)}; {error.hint}")
    return error
