"""archives.py, which gives Bazels before 4 what a mirror has: the script itself, run."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests import broken
from tests.servers import FileHandler, serving
from tfbuild.context import dockerfile

SCRIPT = dockerfile.TEMPLATES / "archives.py"
GOOD, OTHER = b"the archive", b"another file of the same name"


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "mirror"
    folder.mkdir()
    with serving(partial(FileHandler, directory=str(folder))) as host:
        yield f"http://{host}", folder


def tree(folder: Path, *rules: str) -> Path:
    """A workspace with these rules, one in a function, as TensorFlow has them."""
    folder.mkdir()
    (folder / "WORKSPACE").write_text("".join(rules[:1]))
    body = "".join(f"    {line}\n" for rule in rules[1:] for line in rule.splitlines()) or "    pass\n"
    (folder / "workspace.bzl").write_text(f"def workspace():\n{body}")
    return folder


def rule(content: bytes, *urls: str) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    return f'http_archive(\n    name = "x",\n    sha256 = "{sha256}",\n    urls = {list(urls)!r},\n)\n'


def run(url: str, folder: Path, cache: Path, **settings: str) -> str:
    """Run the script, with other settings: lines by the name that they set."""
    text = SCRIPT.read_text()
    for name, line in settings.items():
        text = re.sub(rf"(?m)^{name} = .*\n", line, text)
    done = subprocess.run([sys.executable, "-c", text, url, folder, cache], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kept(cache: Path, content: bytes) -> Path:
    return cache / "content_addressable/sha256" / hashlib.sha256(content).hexdigest() / "file"


def place(folder: Path, path: str, content: bytes) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)


def test_an_archive_is_taken_by_its_digest_from_the_first_place_that_has_it(
    mirror: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = mirror
    place(folder, "two.example/a.tar.gz", GOOD)
    rules = rule(GOOD, "https://one.example/a.tar.gz", "https://two.example/a.tar.gz")
    output = run(url, tree(tmp_path / "tree", "", rules), tmp_path / "cache")
    assert kept(tmp_path / "cache", GOOD).read_bytes() == GOOD
    assert output == "tfbuild: 1 of 1 archives that the tree names are here; Bazel asks for the others\n"


def test_files_of_one_name_and_other_contents_do_not_meet(mirror: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = mirror
    place(folder, "one.example/v1.tar.gz", GOOD)
    place(folder, "two.example/v1.tar.gz", OTHER)
    rules = rule(GOOD, "https://one.example/v1.tar.gz"), rule(OTHER, "https://two.example/v1.tar.gz")
    assert "2 of 2" in run(url, tree(tmp_path / "tree", *rules), tmp_path / "cache")
    assert [kept(tmp_path / "cache", content).read_bytes() for content in (GOOD, OTHER)] == [GOOD, OTHER]


def test_another_file_in_its_place_is_not_taken_and_told_with_both_digests(
    mirror: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = mirror
    place(folder, "one.example/a.tar.gz", OTHER)
    output = run(url, tree(tmp_path / "tree", "", rule(GOOD, "https://one.example/a.tar.gz")), tmp_path / "cache")
    assert not kept(tmp_path / "cache", GOOD).exists()
    assert "https://one.example/a.tar.gz has the sha256 " + hashlib.sha256(OTHER).hexdigest() in output
    assert hashlib.sha256(GOOD).hexdigest() in output


def test_what_the_mirror_lacks_is_left_to_bazel(mirror: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = mirror
    output = run(url, tree(tmp_path / "tree", rule(GOOD, "https://one.example/a.tar.gz")), tmp_path / "cache")
    assert output.startswith("tfbuild: 0 of 1 archives")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "rules",
    [
        'SHA = "{sha256}"\nURLS = ["{url}"]\nhttp_archive(sha256 = SHA, urls = URLS)\n',
        'external(name = "x", sha256_urls = {{"{sha256}": ["{url}"]}})\n',
    ],
    ids=["variables", "table"],
)
def test_digests_and_urls_are_found_wherever_a_rule_has_them(
    rules: str, mirror: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = mirror
    place(folder, "one.example/a.tar.gz", GOOD)
    text = rules.format(sha256=hashlib.sha256(GOOD).hexdigest(), url="https://one.example/a.tar.gz")
    assert "1 of 1" in run(url, tree(tmp_path / "tree", "", text), tmp_path / "cache")


def test_what_is_here_already_is_not_asked_for(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    place(cache, f"content_addressable/sha256/{hashlib.sha256(GOOD).hexdigest()}/file", GOOD)
    rules = rule(GOOD, "https://one.example/a.tar.gz")
    # Nothing answers there.
    assert "1 of 1" in run("http://127.0.0.1:9", tree(tmp_path / "tree", rules), cache)


@pytest.mark.parametrize("there", ["half", "folder", "file", "pipe"])
def test_a_kept_archive_that_is_damaged_is_fetched_again(there: str, mirror: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = mirror
    cache = tmp_path / "cache"
    place(folder, "one.example/a.tar.gz", GOOD)
    if there == "half":
        place(cache, str(kept(cache, GOOD).relative_to(cache)), GOOD[:5])
    elif there == "folder":
        kept(cache, GOOD).mkdir(parents=True)
    elif there == "pipe":
        kept(cache, GOOD).parent.mkdir(parents=True)
        os.mkfifo(kept(cache, GOOD))
    else:
        place(cache, str(kept(cache, GOOD).parent.relative_to(cache)), b"in place of the folder")
    assert "1 of 1" in run(url, tree(tmp_path / "tree", rule(GOOD, "https://one.example/a.tar.gz")), cache)
    assert kept(cache, GOOD).read_bytes() == GOOD


@pytest.mark.parametrize("fault", ["reset", "short", "500", "503,"])
def test_a_mirror_that_breaks_is_told_and_the_next_run_has_the_archive(fault: str, tmp_path: Path) -> None:
    source, cache = tree(tmp_path / "tree", rule(GOOD, "https://one.example/a.tar.gz")), tmp_path / "cache"
    with broken.serve({"/one.example/a.tar.gz": GOOD}) as server:
        server.fault = fault
        output = run(server.url, source, cache)
        assert "tfbuild: 0 of 1 archives" in output
        assert (f"1 requests to {server.url} broke off, the last one by: " in output) == (fault in ("reset", "short"))
        assert not kept(cache, GOOD).exists()
        server.fault = ""
        assert "1 of 1" in run(server.url, source, cache)
    assert kept(cache, GOOD).read_bytes() == GOOD


def test_a_mirror_that_does_not_answer_is_not_asked_for_hundreds_of_archives(tmp_path: Path) -> None:
    names = [f"https://one.example/{number}.tar.gz" for number in range(100)]
    source = tree(tmp_path / "tree", "", *(rule(name.encode(), name) for name in names))
    with broken.serve({}) as server:
        server.fault = "silence"
        output = run(server.url, source, tmp_path / "cache", SECONDS="SECONDS = 1\n")
        # Eight ask at once.
        assert 3 <= len(server.requested) <= 8 + 3
    assert output.count("tfbuild: note: ") == 1
    assert "broke off, the last one by: timed out" in output


def test_rules_that_python_cannot_read_are_passed_over(mirror: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = mirror
    place(folder, "one.example/a.tar.gz", GOOD)
    source_tree = tree(tmp_path / "tree", rule(GOOD, "https://one.example/a.tar.gz"))
    (source_tree / "odd.bzl").write_text("def f(:\n")
    assert "1 of 1" in run(url, source_tree, tmp_path / "cache")
