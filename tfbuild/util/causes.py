"""Why something failed, in the system's words instead of Python's: `Connection refused`, not `[Errno 111] ...`."""

import http.client
import ssl
from collections.abc import Iterator

# Exceptions that hold the cause one in another: requests, urllib3, the socket's own.
DEEPEST = 10


def cause(error: BaseException) -> str:
    """Return the reason of the system error inside `error`, or the text of `error` where there is none."""
    return next(filter(None, map(_reason, _chain(error))), "") or str(error) or type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those inside it, the outermost first."""
    found: list[BaseException] = [error]
    for inner in found:
        yield inner
        within = (inner.__cause__, inner.__context__, getattr(inner, "reason", None), *inner.args)
        found += [part for part in within if isinstance(part, BaseException) and part not in found][:DEEPEST]


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return str(error.reason or "").replace("_", " ").lower()
    if isinstance(error, TimeoutError) or type(error).__name__.endswith("TimeoutError"):
        return "no answer in time"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended early"
    if isinstance(error, OSError) and isinstance(error.errno, int):
        return error.strerror or ""
    return ""
