"""Notice that the engine ended, even if another one answers at its address by now.

A container that dies with its engine looks like one that was killed, and the API does not say when the engine started.
A connection does: it ends with the process at its other end, and nothing inside a container can end it.
"""

import selectors
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from tfbuild.engine import build
from tfbuild.engine.sdk_errors import NO_ANSWER, translated
from tfbuild.errors import BuildFailed, DiskFull, EngineMissing

# No event has this name, so the engine sends nothing but the head of its answer.
NO_EVENT = {"filters": '{"event": ["none"]}'}
AGAIN = "the image is kept: run the same command again"


class HeldConnection:
    """A connection to the engine that is kept open. Raises EngineMissing; close it."""

    def __init__(self, client: Any) -> None:
        # The SDK's own events() does not show its connection.
        api = client.api
        with translated():
            self._response = api._get(api._url("/events"), params=NO_EVENT, stream=True)

    @property
    def ended(self) -> bool:
        """Whether the engine at its other end has ended."""
        if not self._response.ok:
            return False  # a proxy may refuse to list events; its answer ends at once
        with selectors.DefaultSelector() as selector:
            selector.register(self._response.raw, selectors.EVENT_READ)
            return bool(selector.select(0))

    def close(self) -> None:
        self._response.close()


@contextmanager
def watched(
    client: Any, require_answer: Callable[[], None], require_space: Callable[[], None], use: str
) -> Iterator[Callable[[], None]]:
    """Raise EngineMissing for any error in the block if the engine ended during it; see Engine.watched.

    `require_answer` raises EngineMissing if the engine takes no new connection, `require_space` DiskFull if its disk is
    full: it does not always say so itself.
    """
    with closing(HeldConnection(client)) as held:

        def require_engine() -> None:
            try:
                require_answer()
            except EngineMissing as missing:
                raise _gone(use, missing) from missing
            # In this order: a new connection may have waited until the next engine started.
            if held.ended:
                raise _restarted(use)
            require_space()

        try:
            yield require_engine
        except DiskFull:
            raise
        except Exception:
            require_engine()
            raise


@contextmanager
def building(require_answer: Callable[[], None]) -> Iterator[None]:
    """Raise EngineMissing for a build that fails because the engine does not answer any more."""
    try:
        yield
    except BuildFailed as error:
        try:
            require_answer()
        except EngineMissing as missing:
            raise build.engine_ended(missing, error) from error
        raise


def _gone(use: str, missing: EngineMissing) -> EngineMissing:
    """Return the error for an engine that does not answer any more, as `missing` says."""
    return EngineMissing(
        f"the container engine stopped answering during {use}: {missing.reason.removeprefix(NO_ANSWER)}",
        hint=f"{missing.hint}; {AGAIN}",
    )


def _restarted(use: str) -> EngineMissing:
    """Return the error for an engine that ended during `use`, and answers again."""
    return EngineMissing(
        f"the container engine ended during {use}, and was started again",
        hint=f"{AGAIN}; the engine's log says why it ended (journalctl -u docker)",
    )
