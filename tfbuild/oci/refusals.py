"""What registries refuse, by their words and by their status codes, and what to do about it."""

FULL = "the registry's quota or size limit is reached: make room there"
# What registries call a limit on space, most of them in a 403 (github.com/goharbor/harbor, src/pkg/quota/errors.go).
SPACE = ("quota", "upper limit", "storage limit", "no space left", "insufficient storage")
BUSY = "too many requests: docker login raises the limit, or try again later"
# ECR (github.com/moby/buildkit/issues/3776) and Harbor (goharbor/harbor, src/server/middleware/immutable) have both
# that word.
IMMUTABLE = (
    "tags are immutable there: make an exception for the moving ones, such as latest-mkl, 2.20-mkl and 2.20.0-mkl, "
    "and for arriving-* and sha256-*; a fixed one stays what it is"
)
# ECR and Google's Artifact Registry.
UNKNOWN_NAME = "does the repository exist, and is its name right? some registries make none by themselves"
# What Docker's engines push are manifests of Docker's own type (20.10 and 26, that with containerd's store too), and
# Quay's loader refused such in an OCI index (github.com/quay/quay/pull/1959, and pull/6070 of 2026-05-28, which ended
# that).
MIXED = (
    "some registries take no OCI index over manifests of Docker's own type, older Quays among them: "
    "a newer version, or another registry, does"
)
HINTS = {
    401: "docker login {host}; a login may be out of date",
    403: "these credentials may not do this: docker login {host} as somebody who may",
    404: UNKNOWN_NAME,
    405: "this registry does not allow that: is it a read-only mirror?",
    409: "something else is being done to it: try again later",
    413: FULL,
    429: BUSY,
    507: "the registry's disk is full: make room there",
}
TROUBLE = "the registry is in trouble; try again later"
OTHER = "the registry takes no such request: what it says is above; is it the right --registry?"


def of_answer(status: int, reason: str, *, mixed: bool) -> str:
    """The hint for an answer with this status and the registry's own `reason`, in which {host} stands for its host.

    `mixed`: what was sent is an OCI index over manifests of Docker's type.
    """
    said = reason.lower()
    if status == 429:
        # Some have quotas of requests.
        return BUSY
    if "immutable" in said:
        return IMMUTABLE
    if any(words in said for words in SPACE):
        return FULL
    if status in (400, 415) and mixed:
        return MIXED
    return HINTS.get(status, TROUBLE if status >= 500 else OTHER)
