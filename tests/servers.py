"""Web servers on loopback that run while a block does, and log nothing."""

import socketserver
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    """`reason`: the words beside the status of each answer, if they are not the usual ones."""

    reason: str | None = None

    def say(self, status: int, content: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        """Answer with this content; its length is among the headers."""
        self.send_response(status, self.reason)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


class FileHandler(SimpleHTTPRequestHandler):
    """Serves the folder that it is made with."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    with server:
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve on a free port; yields HOST:PORT."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with running(server):
        yield f"127.0.0.1:{server.server_port}"


def self_signed(folder: Path) -> ssl.SSLContext:
    """The TLS context of a server with a self-signed certificate."""
    command = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    subject = ("-days", "2", "-subj", "/CN=stranger", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(
        [*command, *subject, "-keyout", "key.pem", "-out", "x.pem"], cwd=folder, check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "x.pem", folder / "key.pem")
    return context
