"""remote.py reach|hide FILE: what compile.sh needs about a remote cache or executor, whose Bazel lines are in FILE.

reach: ends with an error where one of them cannot be connected to. hide: copies stdin to stdout without the headers'
values, which Bazel prints with all its options where one of them is wrong.
"""

import re
import socket
import sys
from urllib.parse import urlsplit

PORTS = {"http": 80, "grpc": 80, "https": 443, "grpcs": 443}
SECONDS = 15
# A shorter word of a header's value hides nothing, and would blot out half of the log.
LEAST = 6


def reach(lines):
    for line in lines:
        found = re.fullmatch(r"build --remote_(cache|executor)=(.+)", line)
        if found is None:
            continue
        kind, text = found.groups()
        url = urlsplit(text)
        try:
            socket.create_connection((url.hostname, url.port or PORTS[url.scheme]), timeout=SECONDS).close()
        except OSError as error:
            sys.exit(f"tfbuild: the remote {kind} {text} does not answer: {error}")


def words(lines):
    """The headers' values, whole and by the word, longest first."""
    values = [
        line.partition("=")[2].partition("=")[2][:-1] for line in lines if line.startswith("build --remote_header=")
    ]
    each = set(values) | {word for value in values for word in value.split() if len(word) >= LEAST}
    return sorted((word for word in each if word), key=len, reverse=True)


def hide(lines):
    hidden = [word.encode() for word in words(lines)]
    for line in sys.stdin.buffer:
        for word in hidden:
            line = line.replace(word, b"***")
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


with open(sys.argv[2], encoding="utf-8") as file:
    {"reach": reach, "hide": hide}[sys.argv[1]](file.read().splitlines())
