"""What to do where a registry refuses, by its status and its own words; a container engine passes these on too."""

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


def hint(status: int, reason: str, host: str) -> str:
    """Return the hint for an answer with this status and the registry's own `reason`."""
    text = reason.lower()
    if status == 429:
        # Some registries call a limit on requests a quota.
        return TOO_MANY
    if "immutable" in text:
        return IMMUTABLE
    if any(phrase in text for phrase in SPACE):
        return FULL
    return HINTS.get(status, SERVER_ERROR if status >= 500 else UNSUPPORTED).format(host=host)
