"""Find the cause of a failed build in its last lines, and what to do about it."""

import re

from tfbuild import errors
from tfbuild.errors import BadMirror, BuildFailed, TfbuildError
from tfbuild.plan import failures

EMPTY_CACHES = "docker builder prune --filter type=exec.cachemount"


def explain(error: BuildFailed, empty_caches: str = EMPTY_CACHES) -> TfbuildError:
    """Return the error that names the cause, where the last lines show it; else `error` itself."""
    clear = f"`{empty_caches}` empties the builder's caches"
    for cause in failures.causes():
        if match := next(filter(None, (re.search(pattern, error.reason) for pattern in cause.patterns)), None):
            groups = {name: text.strip() for name, text in match.groupdict().items()}
            kind: type[TfbuildError] = getattr(errors, cause.error)
            hint = cause.hint.format(**groups, clear=clear)
            return kind(cause.message.format(**groups), hint=f"{hint}; {error.hint}")
    return error


# What pip, apt, curl, git, Bazelisk, Bazel and the build's own scripts print of a failed download, in phrases that no
# compiler prints. Warnings do not count: all of these tools retry, or try elsewhere.
BROKEN = re.compile(
    r"(?!.*WARNING).*(?:IncompleteRead|Connection broken|No matching distribution|DO NOT MATCH THE HASHES"
    r"|Max retries exceeded|not enough bytes were received|(?:Unable to fetch|while fetching) https?:"
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
