"""truststore.py PEM JKS: writes the certificates of a PEM bundle as a Java trust store, the only kind that Bazel reads.

The format is JKS, version 2. Java checks the digest at its end with the password in Bazel's options.
"""

import hashlib
import ssl
import struct
import sys
from pathlib import Path

PASSWORD = "changeit"
END = "-----END CERTIFICATE-----"


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def keystore(pem: str) -> bytes:
    parts = [part[part.index("-----BEGIN CERTIFICATE-----") :] + END for part in pem.split(END)[:-1]]
    certificates = sorted({ssl.PEM_cert_to_DER_cert(part) for part in parts})
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        # Tag 2 (a trusted certificate), alias, time of entry, type, length, contents.
        body += struct.pack(">I", 2) + text(f"ca-{number}") + struct.pack(">Q", 0) + text("X.509")
        body += struct.pack(">I", len(certificate)) + certificate
    return body + hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


if __name__ == "__main__":
    source, target = sys.argv[1:]
    # Between certificates there may be names in any encoding.
    Path(target).write_bytes(keystore(Path(source).read_text(encoding="utf-8", errors="replace")))
