"""Answers in the form of an engine's API."""

import json
from http.server import BaseHTTPRequestHandler


class EngineApi(BaseHTTPRequestHandler):
    """A handler that answers with JSON, and logs nothing."""

    def answer(self, content: object, code: int = 200) -> None:
        body = json.dumps(content).encode() if code != 204 else b""
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...
