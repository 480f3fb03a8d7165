"""archives.py MIRROR TREE CACHE: copies the archives that a tree downloads from a mirror into Bazel's repository cache.

For Bazel before 4, which has no option for a mirror. Like Bazel, it identifies an archive by the sha256 in the tree. It
requests each of its URLs as MIRROR/HOST/PATH until one works. Archives that the mirror lacks are left to Bazel: no
build needs all of them.
"""

import ast
import hashlib
import http.client
import os
import re
import shutil
import ssl
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

DIGEST = re.compile(r"[0-9a-f]{64}")
AT_ONCE = 8
SECONDS = 60
MISSING = "missing"
# After this many requests without an answer, give up on the mirror: a tree names hundreds of archives.
MOST_SILENCES = 3


def found(tree):
    """Return the URLs of each archive that the tree's rules name, by sha256."""
    archives = {}
    for folder, names, files in os.walk(tree):
        names[:] = sorted(name for name in names if not name.startswith((".git", "bazel-")))
        for name in sorted(files):
            if name.endswith(".bzl") or name in ("WORKSPACE", "WORKSPACE.bazel"):
                for sha256, urls in named(os.path.join(folder, name)):
                    known = archives.setdefault(sha256, [])
                    known += [url for url in urls if url not in known]
    return archives


def named(path):
    """Yield the sha256 and URLs of each call in a Starlark file, which Python can parse."""
    with open(path, encoding="utf-8") as file:
        try:
            nodes = list(ast.walk(ast.parse(file.read())))
        except SyntaxError:
            return
    names = {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        pairs = []
        if isinstance(node, ast.Call):
            words = {word.arg: texts(word.value, names) for word in node.keywords}
            pairs = [("".join(words.get("sha256", [])), words.get("urls", []) + words.get("url", []))]
        elif isinstance(node, ast.Dict):  # sha256_urls = {"SHA256": ["URL"]}
            keys = ["".join(texts(key, names)) if key else "" for key in node.keys]
            pairs = [(key, texts(node.values[place], names)) for place, key in enumerate(keys)]
        for sha256, urls in pairs:
            if DIGEST.fullmatch(sha256):
                yield sha256, [url for url in urls if url.startswith(("https://", "http://"))]


def texts(node, names):
    """Return the strings in an expression; a variable counts as its value."""
    parts = list(ast.walk(node))
    parts += [
        part for name in parts if isinstance(name, ast.Name) and name.id in names for part in ast.walk(names[name.id])
    ]
    values = [getattr(part, "value", None) for part in parts]
    return [value for value in values if isinstance(value, str)]


class Silences:
    """Counts the requests that the mirror did not answer, and keeps the last reason."""

    def __init__(self):
        self.lock, self.count, self.why = threading.Lock(), 0, ""

    def add(self, error):
        with self.lock:
            self.count, self.why = self.count + 1, str(getattr(error, "reason", error)) or type(error).__name__


def fetch(mirror, sha256, urls, cache, silences):
    """Put the archive where Bazel looks for it. Return "", MISSING, or what is wrong."""
    target = os.path.join(cache, "content_addressable", "sha256", sha256, "file")
    if here(target, sha256):
        return ""
    wrong = []
    for url in urls:
        if silences.count >= MOST_SILENCES:
            break
        try:
            place = f"{mirror}/{url.partition('://')[2]}"
            with urllib.request.urlopen(place, timeout=SECONDS, context=context(place)) as answer:
                content = answer.read()
        except urllib.error.HTTPError:
            continue
        except (OSError, http.client.HTTPException) as error:
            silences.add(error)
            continue
        digest = hashlib.sha256(content).hexdigest()
        if digest == sha256:
            keep(content, target)
            return ""
        wrong.append(f"{url} has the sha256 {digest} there, and the tree wants {sha256}")
    if wrong:
        return "not taken from the mirror, which has another file: " + "; ".join(wrong)
    return MISSING


def here(target, sha256):
    """Return whether the archive is there and intact. Remove anything else from its place."""
    try:
        if os.path.isfile(target):
            with open(target, "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() == sha256:
                    return True
    except OSError:
        pass
    folder = os.path.dirname(target)
    if os.path.isdir(folder) and not os.path.islink(folder):
        shutil.rmtree(folder)
    elif os.path.lexists(folder):
        os.unlink(folder)
    return False


def context(place):
    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE")) if place.startswith("https:") else None


def keep(content, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    part = f"{target}.part"
    with open(part, "wb") as file:
        file.write(content)
    os.replace(part, target)


def main(mirror, tree, cache):
    archives = found(tree)
    silences = Silences()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        told = list(pool.map(lambda row: fetch(mirror, row[0], row[1], cache, silences), archives.items()))
    for text in told:
        if text not in ("", MISSING):
            print(f"tfbuild: note: {text}")
    if silences.count:
        print(f"tfbuild: note: {silences.count} requests to {mirror} broke off, the last one by: {silences.why}")
    print(
        f"tfbuild: {told.count('')} of {len(archives)} archives that the tree names are here; Bazel asks for the others"
    )


main(*sys.argv[1:])
