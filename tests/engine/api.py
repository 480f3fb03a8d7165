"""Answers in the form of an engine's API."""

import json

from tests.servers import Handler


class EngineApi(Handler):
    """A handler that answers with JSON."""

    def answer(self, content: object, code: int = 200) -> None:
        body = json.dumps(content).encode() if code != 204 else b""
        self.say(code, body, {"Content-Type": "application/json"})
