"""A server on loopback whose answers break, as those of networks and of servers in trouble do."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate

# What becomes of an answer: the connection is reset, or ends in good order, in the middle of the body; nothing more
# comes after that, or one byte at a time ("drip", which no client ends by a limit on silence); nothing comes at all, or
# headers without an end, one byte at a time ("trickle"); a status, which with a comma asks to come back in an hour.
FAULTS = ("reset", "short", "stall", "silence", "trickle", "500", "503,", "429,")
HOUR = "3600"
MOST_HEAD = 1 << 16
DRIP = 0.1


@dataclass
class Broken:
    """Serves `content` by path. The requests after the first `sound` ones meet `fault`; "" lets all go well.

    `requested`: the paths in their order. `moved`: addresses by path. HEAD and other methods than GET get no body.
    """

    content: dict[str, bytes]
    moved: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    sound: int = 0
    requested: list[str] = field(default_factory=list)
    port: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, end: socket.socket) -> None:
        """Answer one request, and end the connection."""
        request = b""
        while b"\r\n\r\n" not in request and len(request) < MOST_HEAD:
            if not (part := end.recv(1 << 16)):
                return
            request += part
        method, path = request.decode("latin-1").split(" ", 2)[:2]
        with self._lock:
            fault = self.fault if len(self.requested) >= self.sound else ""
            self.requested.append(path)
        if fault == "silence":
            self.ended.wait()
        elif fault == "trickle":
            end.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not self.ended.wait(DRIP):
                end.sendall(b"x")
        elif fault[:3].isdigit():
            again = f"Retry-After: {HOUR}\r\n" if fault.endswith(",") else ""
            end.sendall(f"HTTP/1.1 {fault[:3]} Trouble\r\n{again}Connection: close\r\n\r\n".encode())
        elif (address := self.moved.get(path)) is not None:
            head = f"HTTP/1.1 302 Found\r\nLocation: {address}\r\nContent-Length: 0\r\n"
            end.sendall(f"{head}Connection: close\r\n\r\n".encode())
        elif (body := self.content.get(path)) is None:
            end.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            page = "application/vnd.pypi.simple.v1+json" if body.startswith(b"{") else "text/html"
            kind = page if path.endswith("/") else "application/octet-stream"
            # As PyPI's files: whoever keeps half of one never asks again. Without a date pip keeps nothing.
            kept = f"Date: {formatdate(usegmt=True)}\r\nCache-Control: max-age=365000000, immutable, public"
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{kept}\r\n"
            end.sendall(f"{head}Connection: close\r\n\r\n".encode())
            if method == "GET":
                self._send(end, body, fault)

    def _send(self, end: socket.socket, body: bytes, fault: str) -> None:
        end.sendall(body[: len(body) // 2] if fault else body)
        if fault == "stall":
            self.ended.wait()
        elif fault == "drip":
            for byte in body[len(body) // 2 :]:
                if self.ended.wait(DRIP):
                    return
                end.sendall(bytes([byte]))
        elif fault == "reset":
            # Closed without waiting, the kernel answers what comes with a reset.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def serve(content: dict[str, bytes]) -> Iterator[Broken]:
    """Serve `content` while the block runs; whatever hangs then ends."""
    server = Broken(content=content)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server.port = listening.getsockname()[1]

        def one(end: socket.socket) -> None:
            with end, suppress(OSError):
                server.answer(end)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server
        finally:
            server.ended.set()
            listening.shutdown(socket.SHUT_RDWR)
