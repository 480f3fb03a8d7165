"""What to do where a registry refuses, by its status and its own words; a container engine passes these on too."""

from tfbuild.oci.manifests import IMAGES, INDEX

FULL = "the registry's quota or size limit is reached: make room there"
# How registries name a limit on space, most of them in a 403 (github.com/goharbor/harbor, src/pkg/quota/errors.go).
SPACE = ("quota", "upper limit", "storage limit", "no space left", "insufficient storage")
TOO_MANY = "too many requests: docker login raises the limit, or try again later"
# Both ECR (github.com/moby/buildkit/issues/3776) and Harbor (goharbor/harbor, src/server/middleware/immutable) use
# that word.
IMMUTABLE = (
    "tags are immutable there: exempt the moving ones, such as latest-mkl, 2.20-mkl and 2.20.0-mkl, and sha256-*; "
    "fixed tags do not change"
)
# ECR and Google's Artifact Registry.
UNKNOWN_NAME = "check that the repository exists, and its name: some registries do not create one on the first push"
# Docker's engines push manifests of Docker's own type (20.10 and 26, the latter with containerd's store too). Quay's
# loader refused those in an OCI index (github.com/quay/quay/pull/1959) until pull/6070 of 2026-05-28.
MIXED = (
    "some registries, such as older versions of Quay, refuse an OCI index of manifests of Docker's own type: "
    "use a newer version, or another registry"
)
HINTS = {
    401: "docker login {host}; the stored login may have expired",
    403: "these credentials do not allow that: docker login {host} as a user with the permission",
    404: UNKNOWN_NAME,
    405: "the registry does not allow that: it may be a read-only mirror",
    409: "another operation is in progress there: try again later",
    413: FULL,
    429: TOO_MANY,
    507: "the registry's disk is full: make room there",
}
SERVER_ERROR = "the registry has an internal error: try again later"
UNSUPPORTED = "the registry does not support this request, as it says above: check the --registry address"


def hint(status: int, reason: str, host: str, *, media_type: str = "", sent: bytes = b"") -> str:
    """Return the hint for an answer with this status and the registry's own `reason` to what was `sent`."""
    text = reason.lower()
    if status == 429:
        # Some registries call a limit on requests a quota.
        return TOO_MANY
    if "immutable" in text:
        return IMMUTABLE
    if any(phrase in text for phrase in SPACE):
        return FULL
    if status in (400, 415) and media_type == INDEX and IMAGES[1].encode() in sent:
        return MIXED
    return HINTS.get(status, SERVER_ERROR if status >= 500 else UNSUPPORTED).format(host=host)
