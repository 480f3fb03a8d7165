"""remote.py reach|guard|hide FILE [COMMAND...]: helps compile.sh with the remote cache or executor in FILE, an rc.

reach: fails if one of them does not answer. guard: runs the command and exits with its exit code; if one of them stops
answering, it interrupts the command and writes the reason to FILE.lost. hide: copies stdin to stdout without the
headers' values, which Bazel prints with all its options if one of them is wrong.
"""

import re
import signal
import socket
import ssl
import subprocess
import sys
from urllib.parse import urlsplit

PORTS = {"http": 80, "grpc": 80, "https": 443, "grpcs": 443}
SECONDS = 15
# Seconds between two checks of a server, and how many it may fail. Bazel 0.26.1 itself waits six minutes for a server
# that hangs (measured with a stopped process).
EVERY = 30
TRIES = 2
# Every server answers these at once: HTTP/2's preface with empty settings (RFC 9113, 3.4), or a request. An accepted
# connection proves nothing: the kernel accepts it even if the server hangs.
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HELLO = {"grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS, "http": b"HEAD / HTTP/1.0\r\n\r\n"}
CLIENT = ("build --tls_client_certificate", "build --tls_client_key")
# Shorter words of a header's value are no secrets, and hiding them would blot out half of the log.
LEAST = 6


def silent(lines):
    """Say which of them does not answer, and why; "" if all do."""
    options = dict(line.partition("=")[::2] for line in lines)
    client = [options[name] for name in CLIENT if name in options]
    for line in lines:
        found = re.fullmatch(r"build --remote_(cache|executor)=(.+)", line)
        if found is None:
            continue
        kind, text = found.groups()
        try:
            ask(urlsplit(text), client)
        except ssl.SSLError:
            continue  # it answers, and Bazel judges certificates
        except OSError as error:
            return f"tfbuild: the remote {kind} {text} does not answer: {error}"
    return ""


def ask(url, client):
    """Raise OSError if nothing comes back."""
    tls = url.scheme.endswith("s")
    end = socket.create_connection((url.hostname, url.port or PORTS[url.scheme]), timeout=SECONDS)
    with end, encrypted(end, url, client) if tls else end as stream:
        stream.sendall(HELLO[url.scheme.rstrip("s")])
        if not stream.recv(1):
            raise OSError("it ended the connection")


def encrypted(end, url, client):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if client:
        # A server that requires a certificate may close the connection silently: BuildGrid does. The password keeps
        # OpenSSL from prompting for that of an encrypted key.
        context.load_cert_chain(*client, password="")
    if url.scheme == "grpcs":
        context.set_alpn_protocols(["h2"])
    return context.wrap_socket(end, server_hostname=url.hostname)


def reach(lines):
    sys.exit(silent(lines) or None)


def guard(lines):
    # Ctrl-C is for the command, which then stops cleanly. Unlike SIG_IGN, a handler is not inherited.
    signal.signal(signal.SIGINT, lambda *_: None)
    process, missed, lost = subprocess.Popen(sys.argv[3:]), 0, False
    while True:
        try:
            code = process.wait(timeout=EVERY)
            sys.exit(code if code >= 0 else 128 - code)
        except subprocess.TimeoutExpired:
            why = silent(lines)
        missed = missed + 1 if why else 0
        if missed == TRIES and not lost:
            lost = True
            with open(sys.argv[2] + ".lost", "w", encoding="utf-8") as file:
                file.write(why + "\n")
            process.send_signal(signal.SIGINT)


def hide(lines):
    values = [line.split("=", 2)[2][:-1] for line in lines if line.startswith("build --remote_header=")]
    hidden = {*values, *(word for value in values for word in value.split() if len(word) >= LEAST)} - {""}
    for line in sys.stdin.buffer:
        for word in sorted(hidden, key=len, reverse=True):
            line = line.replace(word.encode(), b"***")
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


with open(sys.argv[2], encoding="utf-8") as file:
    given = file.read().splitlines()
{"reach": reach, "guard": guard, "hide": hide}[sys.argv[1]](given)
