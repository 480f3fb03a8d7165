"""The table of faults in docs/publishing.md: what each verb answers, by exit code and sentence."""

import gzip
import os
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.commandline import answer
from tests.cpu.machines import machine
from tests.oci.fake_registry import FakeRegistry
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import gather, image
from tests.publish.test_alterations import moved_tag
from tests.publish.test_pulling import (
    changed_configuration,
    manifest,
    replaced,
    with_fewer_features_in_the_index,
    with_layers,
    without,
)
from tfbuild.oci import referrers, transport
from tfbuild.oci.manifests import digest_of

ROOT = Path(__file__).parents[2]
Fault = Callable[[type[FakeRegistry], str], None]
Sent = tuple[int, str, bytes, dict[str, str]]
Answer = Callable[[int, str, bytes, dict[str, str]], Sent]
VERBS_OF_TABLE = ("pull", "pull.sh", "verify", "images", "push --indexes", "yank")
# A cell that is no exit code: 0, and the next image, a mark in its row, or a note.
WORDS = {"next": "", "marked": "altered: ", "note": "note: (?!no container)"}


def on_the_way(fake: type[FakeRegistry], of: Callable[[str], bool], change: Answer) -> None:
    """Let something between the registry and its clients change the answers to paths that are `of` this kind."""
    send = fake.answer

    def answer(self: FakeRegistry, status: int, kind: str, body: bytes, **headers: str) -> None:
        if of(self.path):
            status, kind, body, headers = change(status, kind, body, headers)
        send(self, status, kind, body, **headers)

    fake.answer = answer  # type: ignore[method-assign]  # each test has a class of its own


def garbled(status: int, kind: str, body: bytes, headers: dict[str, str]) -> Sent:
    return status, kind, body + b" ", headers


def compressed(status: int, kind: str, body: bytes, headers: dict[str, str]) -> Sent:
    return status, kind, gzip.compress(body), {**headers, "Content-Encoding": "gzip"}


def says(status: int, kind: str, body: bytes) -> Answer:
    return lambda *_: (status, kind, body, {})


def sound(fake: type[FakeRegistry], best: str) -> None:
    """No fault."""


def the_manifest_is_gone(fake: type[FakeRegistry], best: str) -> None:
    for reference in (manifest(fake, best), best):
        del fake.content[f"manifests/{reference}"]


def a_garbled_manifest(fake: type[FakeRegistry], best: str) -> None:
    own = (f"/manifests/{best}", f"/manifests/{manifest(fake, best)}")
    on_the_way(fake, lambda path: path.endswith(own), garbled)


def the_configuration_is_gone(fake: type[FakeRegistry], best: str) -> None:
    changed_configuration(fake, best)
    digest = re.search(rb'"config": {"digest": "([^"]*)"', fake.content[f"manifests/{best}"][1])
    assert digest is not None
    del fake.content[f"blobs/{digest[1].decode()}"]


def a_layer_is_gone(fake: type[FakeRegistry], best: str) -> None:
    del fake.content[f"blobs/{digest_of(b'one layer')}"]


def attachments(fake: type[FakeRegistry], best: str, change: Answer) -> None:
    subject = manifest(fake, best)
    digests = re.findall(r'"digest": "([^"]*)"', fake.content[f"referrers/{subject}"][1].decode())
    on_the_way(fake, lambda path: path.endswith(tuple(digests)), change)


def every_answer(fake: type[FakeRegistry], best: str, change: Answer) -> None:
    on_the_way(fake, lambda path: True, change)


def any_mkl_is_an_image(fake: type[FakeRegistry], best: str) -> None:
    for tag in ("any-mkl", "latest-mkl"):
        fake.content[f"manifests/{tag}"] = fake.content[f"manifests/{best}"]


FAULTS: dict[str, Fault] = {
    "none": sound,
    "the manifest is gone": the_manifest_is_gone,
    "the configuration is gone": the_configuration_is_gone,
    "a layer is gone": a_layer_is_gone,
    "the manifest's bytes are not those of its digest": a_garbled_manifest,
    "the configuration's bytes are not those of its digest": changed_configuration,
    "the SBOM is gone": without(referrers.SBOM),
    "the attestations' bytes are not those of their digests": partial(attachments, change=garbled),
    "the registry answers 503 for the attestations": partial(attachments, change=says(503, "text/html", b"")),
    "the tag names another image": moved_tag,
    "tag and indexes name another image": replaced,
    "the indexes name other features": with_fewer_features_in_the_index,
    "`any-mkl` and `latest-mkl` are images": any_mkl_is_an_image,
    "a proxy compresses every answer": partial(every_answer, change=compressed),
    "every answer is empty, with status 200": partial(every_answer, change=says(200, "text/html", b"")),
    "every answer is a page, with status 200": partial(every_answer, change=says(200, "text/html", b"<p>Log in</p>")),
    "every answer is 503": partial(every_answer, change=says(503, "text/html", b"")),
}


def run(fake: type[FakeRegistry], verb: str, best: str, tmp_path: Path) -> tuple[int, str]:
    """The exit code of a verb, and all that it prints."""
    repository = f"{fake.host}/us/x"
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(machine("rocky9-zen5").cpuinfo())
    if verb == "pull.sh":
        env = {"PATH": os.environ["PATH"], "TFBUILD_CPUINFO": str(cpuinfo), "DRY_RUN": "1", "no_proxy": "*"}
        done = subprocess.run(
            ["dash", ROOT / "pull.sh", repository], capture_output=True, text=True, check=False, timeout=60,
            env={**env, "DOCKER_CONFIG": str(tmp_path)},
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr
    words = {
        "pull": ["--dry-run", f"--cpuinfo={cpuinfo}"],
        "verify": [best],
        "images": [],
        "push --indexes": [best, "--indexes"],
        "yank": [best, "--reason=crashes"],
    }[verb]
    done = answer(verb.split()[0], *words, f"--registry={repository}")
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def names(fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Three images, the best one at the end."""
    monkeypatch.setattr(transport, "TRIES", 0)
    monkeypatch.chdir(tmp_path)
    pushed = [image(fake, "2.20.0", cpu=level) for level in ("x86-64-v2", "x86-64-v3")]
    pushed.append(with_layers(fake, "2.20.0", "x86-64-v4"))
    for name in pushed:
        gather(fake, name)
    return pushed


def table() -> dict[str, list[str]]:
    """The rows of the manual's table, by their faults."""
    text = (ROOT / "docs" / "publishing.md").read_text().partition("## What each verb answers")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert rows[0][1:-2] == [f"`{verb}`" for verb in VERBS_OF_TABLE]
    return {fault: cells for fault, *cells in rows[1:]}


def test_the_table_has_all_faults() -> None:
    assert list(table()) == list(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_verb_answers_as_the_manual_says(
    fault: str, fake: type[FakeRegistry], names: list[str], tmp_path: Path
) -> None:
    best, second = names[-1], names[-2]
    FAULTS[fault](fake, best)
    before = dict(fake.content)
    *cells, by_pull, by_verify = table()[fault]
    for verb, cell in zip(VERBS_OF_TABLE, cells, strict=True):
        code, text = run(fake, verb, best, tmp_path)
        assert code == (0 if cell in WORDS else int(cell)), (verb, text)
        assert re.search(WORDS.get(cell, ""), text), (verb, text)
        if verb.startswith("pull") and code == 0:
            chosen = second if cell == "next" else best
            assert re.search(rf" {chosen}$|^{chosen}: TensorFlow", text, re.MULTILINE), (verb, text)
        says = {"pull": by_pull, "verify": by_verify}.get(verb, "")
        assert says.strip(".") in text, (verb, text)
        assert code == 24 or "somebody" not in text, (verb, text)
        fake.content.clear()
        fake.content.update(before)
