"""The table of what registries get wrong, and what each verb answers: its exit code and what it says.

A registry's writer can put anything there, and a server on the way can answer anything: no fault gives a traceback, a
wrong image, a request without TLS elsewhere, or an endless wait. 24 means that a digest or labels are wrong.
"""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commandline import answer
from tests.cpu.machines import machine
from tests.oci.fake_registry import FakeRegistry
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import digest, gather, image, pull_script
from tests.servers import Handler, self_signed, serving
from tfbuild.errors import RegistryRefused, UsageError
from tfbuild.oci import transport
from tfbuild.oci.manifests import INDEX, digest_of
from tfbuild.oci.transport import HttpSession

# A request that no test may make: there is no such host.
ELSEWHERE = "http://registry.invalid/x"
INDEX_PATH, TAGS = "manifests/latest-mkl", "tags/list"
Answer = tuple[int, bytes, dict[str, str]]


class Faulty:
    """A fake registry with two images, which answers requests for `path` by `answers` first, the last one for ever."""

    def __init__(self, fake: type[FakeRegistry], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake, self.folder, self.patch = fake, folder, monkeypatch
        self.names = [image(fake, "2.20.0", cpu=cpu, layers=[cpu.encode()]) for cpu in ("avx", "x86-64-v3")]
        gather(fake, self.names[0])
        (folder / "cpuinfo").write_text(machine("rocky9-zen5").cpuinfo())

    def answering(self, path: str, *answers: Answer | None, method: str = "GET") -> None:
        """`None` is the usual answer."""
        usual, left = getattr(self.fake, f"do_{method}"), list(answers)

        def handle(server: FakeRegistry) -> None:
            if path not in server.path or not left or (given := left[0] if len(left) == 1 else left.pop(0)) is None:
                usual(server)
                return
            server.rfile.read(int(server.headers.get("Content-Length", "0")))
            status, content, headers = given
            headers = {**headers}  # FAULTS' own row stays whole
            server.answer(status, headers.pop("Content-Type", INDEX), content, **headers)

        self.patch.setattr(self.fake, f"do_{method}", handle)

    def put(self, tag: str, kind: str = "") -> None:
        """Put what a tag names, perhaps as another type, under that of the index."""
        was, content = self.fake.content[f"manifests/{tag}"]
        self.fake.content[INDEX_PATH] = (kind or was, content)

    def lose(self, *names: str) -> None:
        for name in names:
            del self.fake.content[f"manifests/{digest(self.fake, name)}"]

    def name_instead(self, other: str) -> None:
        """Put another digest into the row of the best image."""
        kind, content = self.fake.content[INDEX_PATH]
        self.fake.content[INDEX_PATH] = (
            kind,
            content.replace(digest(self.fake, self.names[1]).encode(), other.encode()),
        )

    def change(self, *names: str) -> None:
        for name in names:
            kind, content = self.fake.content[f"manifests/{name}"]
            self.fake.content[f"manifests/{digest(self.fake, name)}"] = (kind, content + b" ")

    def edited(self, change: Callable[[list[dict[str, Any]]], object]) -> None:
        """Change the rows of the index that a pull reads."""
        document = json.loads(self.fake.content[INDEX_PATH][1])
        change(document["manifests"])
        self.fake.content[INDEX_PATH] = (INDEX, json.dumps(document, indent=2).encode())

    def run(self, verb: str) -> "subprocess.CompletedProcess[str]":
        place = f"{self.fake.host}/us/x"
        if verb == "pull.sh":
            return pull_script(self.folder, place, cpuinfo=(self.folder / "cpuinfo").read_text())
        words = {
            "pull": ("pull", "--dry-run", "--cpuinfo", str(self.folder / "cpuinfo")),
            "access": ("push", self.names[0], "--access"),
            "indexes": ("push", self.names[0], "--indexes"),
            "verify": ("verify", self.names[0]),
        }[verb]
        return answer(*words, "--registry", place, cwd=self.folder)


@pytest.fixture
def faulty(fake: type[FakeRegistry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faulty:
    monkeypatch.setattr(transport, "MOST_WAIT", 0)
    monkeypatch.setattr(transport, "BACKOFF", 0.01)
    monkeypatch.setattr(transport, "SECONDS", 5.0)
    return Faulty(fake, tmp_path, monkeypatch)


def token_server(*answers: Answer) -> Callable[[Faulty], None]:
    def fault(here: Faulty) -> None:
        here.fake.needs, here.fake.realm = "Bearer issued", f"http://{here.fake.host}/token"
        here.fake.ways = 'Basic realm="a", TOKEN, Negotiate realm="b"'
        # The fake registry asks for a token even where the token is sold.
        here.answering("/token", *answers)

    return fault


def page(status: int = 200, content: bytes = b"<html>", **headers: str) -> Answer:
    """Return an answer; in the names of headers, `_` stands for `-`."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return status, content, {"Content-Type": "text/html", **named}


def answering(path: str, *answers: Answer | None, method: str = "GET") -> Callable[[Faulty], None]:
    return lambda here: here.answering(path, *answers, method=method)


def edited(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Faulty], None]:
    return lambda here: here.edited(change)


def another_row_first(rows: list[dict[str, Any]]) -> None:
    """Two rows of one identifier, of which the first one's image is gone."""
    rows.insert(1, {**rows[1], "digest": f"sha256:{64 * 'f'}"})


def another_target(here: Faulty) -> None:
    """A genuine index, of another tag."""
    name = here.names[0].replace("-mkl-", "-cpu-")
    gather(here.fake, image(here.fake, "2.20.0", {"io.tfbuild.id": name, "io.tfbuild.target": "cpu"}))
    here.put("latest-cpu")


def another_release(here: Faulty) -> None:
    older = image(here.fake, "2.14.1", {"io.tfbuild.python": "3.11"}, cpu="x86-64-v3")
    here.name_instead(digest(here.fake, older))


def an_index(here: Faulty) -> None:
    here.name_instead(digest(here.fake, "latest-mkl"))
    here.fake.content[f"manifests/{digest(here.fake, '2.20-mkl')}"] = here.fake.content["manifests/2.20-mkl"]


def without_features(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["annotations"].update({"io.tfbuild.features": "", "io.tfbuild.cpuinfo": ""})


BROKEN_ADDRESS = "http://["
TIMES_THAT_ARE_NONE = ("-5", "soon", "1.5", "", "Wed, 21 Oct 2099 07:28:00 GMT")
MANY_TAGS = json.dumps({"tags": [f"{number:06}-mkl-x" for number in range(90_000)]}).encode()
# By the specification, both fields have the same token, which is sent once.
TOKEN = (200, b'{"token": "issued", "access_token": "issued"}', {"Content-Type": "application/json"})
# The fault; and by verb the exit code, with a part of what is said.
FAULTS: dict[str, tuple[Callable[[Faulty], None], dict[str, tuple[int, str]]]] = {
    "none": (lambda _: None, {"pull": (0, ""), "pull.sh": (0, ""), "verify": (0, ""), "indexes": (0, "")}),
    "an index is moved to http": (
        answering(INDEX_PATH, page(307, Location=ELSEWHERE)),
        {"pull": (26, "is not an https address"), "pull.sh": (26, "curl: (1) ")},
    ),
    "an upload is moved to http": (
        answering("uploads", page(202, Location=ELSEWHERE), method="POST"), {"access": (26, "not an https address")}
    ),
    "an index is moved to what is no address": (
        answering(INDEX_PATH, page(307, Location=BROKEN_ADDRESS)), {"pull": (26, "not an https"), "pull.sh": (26, "")}
    ),
    "a next page at what is no address": (
        answering(TAGS, page(content=b'{"tags": []}', Link=f'<{BROKEN_ADDRESS}>; rel="next"')),
        {"indexes": (26, "not an https address"), "verify": (26, "not an https address")},
    ),
    "a length of 5,000 digits": (
        answering(INDEX_PATH, page(Content_Length=5000 * "9")), {"pull": (26, ""), "pull.sh": (26, "")}
    ),
    "90,000 tags": (
        answering(TAGS, page(content=MANY_TAGS)), {"indexes": (26, "has more than 10000"), "verify": (26, "more than")}
    ),
    "another tag's index": (another_target, {"pull": (27, "has no image"), "pull.sh": (27, "another release, target")}),
    "busy for times that are none": (
        answering(INDEX_PATH, *(page(503, Retry_After=text) for text in TIMES_THAT_ARE_NONE), None), {"pull": (0, "")}
    ),
    "busy until a date": (
        answering(INDEX_PATH, page(503, Retry_After=TIMES_THAT_ARE_NONE[-1]), page(429), None), {"pull.sh": (0, "")}
    ),
    "busy": (answering(INDEX_PATH, page(503)), {"pull": (26, "answers 503"), "pull.sh": (26, "answers 503")}),
    "a token server that is busy once": (
        token_server(page(503), TOKEN), {"pull": (0, ""), "pull.sh": (0, ""), "verify": (0, "")}
    ),
    "a token server that is busy": (
        token_server(page(429)), {"pull": (26, "the token server of"), "pull.sh": (26, "the token server of")}
    ),
    "a token server that refuses": (
        token_server(page(403)), {"pull": (26, "no such repository"), "pull.sh": (26, ", or check the name")}
    ),
    "a token server's page": (
        token_server(page()), {"pull": (26, "the token is not a JSON object"), "pull.sh": (26, "sends no token")}
    ),
    "a token server without an end": (
        token_server(page(content=b" " * (5 << 20))),
        {"pull": (26, "sends more than"), "pull.sh": (26, "curl: (63) ")},
    ),
    "an index without an end": (
        answering(INDEX_PATH, page(content=b" " * (5 << 20))),
        {"pull": (26, "sends more"), "pull.sh": (26, "curl: (63) ")},
    ),
    "a page": (
        answering("", page()), {"pull": (26, "no manifest"), "pull.sh": (26, "not an index"), "verify": (26, "")}
    ),
    "another media type": (
        lambda here: here.put("latest-mkl", "x/y"), {"pull": (0, ""), "pull.sh": (0, "")}
    ),
    "an image under an index's tag": (
        lambda here: here.put(here.names[0]),
        {
            "pull": (26, "not an index"), "pull.sh": (26, "not an index"), "verify": (30, "latest-mkl in"),
            "indexes": (0, ""),
        },
    ),
    "a row without a digest": (
        edited(lambda rows: rows[1].pop("digest")), {"pull": (0, ""), "pull.sh": (0, "")}
    ),
    "a lost image before its second row": (
        edited(another_row_first), {"pull": (0, "missing in the registry"), "pull.sh": (0, "does not have it")}
    ),
    "a lost image": (
        lambda here: here.lose(here.names[1]), {"pull": (0, "missing in the"), "pull.sh": (0, "does not have it")}
    ),
    "lost images": (
        lambda here: here.lose(*here.names), {"pull": (26, "missing in the"), "pull.sh": (26, "does not have it")}
    ),
    "a lost layer": (
        lambda here: here.fake.content.__delitem__(f"blobs/{digest_of(b'x86-64-v3')}"), {"pull": (0, "is missing in")}
    ),
    "another release's image in a row": (
        another_release, {"pull": (0, "its labels are not what its index says"), "pull.sh": (0, "its digest and its")}
    ),
    "an index in a row": (an_index, {"pull": (0, "it is not an image but"), "pull.sh": (0, "its digest and its")}),
    "content that was changed": (
        lambda here: here.change(here.names[1]),
        {"pull": (0, "does not match its digest"), "pull.sh": (0, "not what its digest")},
    ),
    "content that was changed everywhere": (
        lambda here: here.change(*here.names), {"pull": (24, "match its"), "pull.sh": (24, "digest")}
    ),
    "an index that says other features": (
        edited(without_features),
        {"pull": (24, "its labels are not what"), "pull.sh": (24, "not what its digest"), "verify": (30, "")},
    ),
}  # fmt: skip
ROWS = [(name, verb) for name, (_, verbs) in FAULTS.items() for verb in verbs]


@pytest.mark.parametrize(("name", "verb"), ROWS)
def test_each_fault_has_its_code_and_its_sentence_in_time(name: str, verb: str, faulty: Faulty) -> None:
    fault, verbs = FAULTS[name]
    code, said = verbs[verb]
    fault(faulty)
    begun = time.monotonic()
    done = faulty.run(verb)
    # What the test's own server says when a client hangs up is not the verb's.
    ours = done.stderr.rpartition(f"{40 * '-'}\n")[2]
    assert (done.returncode, "Traceback" in ours) == (code, False), done.stderr
    assert said in done.stderr
    assert "registry.invalid" not in done.stdout
    assert time.monotonic() - begun < 30
    if code == 0 and verb.startswith("pull"):
        assert done.stdout.startswith(f"{faulty.fake.host}/us/x@sha256:")


# --- TLS and proxies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("years", "host", "reason"),
    [
        (("2001", "2002"), "127.0.0.1", "expired.*; this machine's clock says 20"),
        (("2040", "2041"), "127.0.0.1", "not yet valid; this machine's clock says 20"),
        (None, "localhost", "mismatch[^;]*$"),
    ],
)
def test_a_certificates_own_fault_is_named(
    years: tuple[str, str] | None, host: str, reason: str, tmp_path: Path
) -> None:
    context = self_signed(tmp_path)
    if years:
        (tmp_path / "ca.cnf").write_text(
            "[ca]\ndefault_ca = d\n[d]\ndatabase = rows\nserial = number\nnew_certs_dir = .\ndefault_md = sha256\n"
            "policy = p\ncopy_extensions = copy\n[p]\ncommonName = supplied\n"
        )
        (tmp_path / "rows").touch()
        (tmp_path / "number").write_text("01\n")
        begins, ends = (f"{year}0101000000Z" for year in years)
        for command in (
            "openssl req -new -key key.pem -subj /CN=x -addext subjectAltName=IP:127.0.0.1 -out x.csr",
            f"openssl ca -config ca.cnf -batch -selfsign -keyfile key.pem -in x.csr -out x.pem -startdate {begins} "
            f"-enddate {ends} -notext",
        ):
            subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
        context.load_cert_chain(tmp_path / "x.pem", tmp_path / "key.pem")
    with (
        serving(FakeRegistry, context) as address,
        HttpSession() as session,
        pytest.raises(RegistryRefused, match=f"does not trust the certificate of here: .*{reason}"),
        transport.reaching("here"),
    ):
        session.get(f"https://{host}:{address.rpartition(':')[2]}/", verify=str(tmp_path / "x.pem"), timeout=5)


def test_a_company_s_ca_is_trusted_beside_the_public_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry with a company's certificate may keep its content in a public cloud."""
    company, public = tmp_path / "company", tmp_path / "public"
    company.mkdir()
    public.mkdir()
    cloud = type("Cloud", (Handler,), {"do_GET": lambda self: self.say(200, b"content")})
    with serving(cloud, self_signed(public)) as storage:
        moved = {"Location": f"https://{storage}/"}
        registry = type("Registry", (Handler,), {"do_GET": lambda self: self.say(307, b"", moved)})
        with serving(registry, self_signed(company)) as host:
            ca = company / "x.pem"
            ca.write_text(f"# Müller GmbH\n{ca.read_text()}", encoding="utf-8")
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(public / "x.pem"))
            with HttpSession(ca) as session:
                assert session.get(f"https://{host}/", timeout=5).text == "content"


class Proxy(Handler):
    def do_GET(self) -> None:
        self.say(500)

    do_CONNECT = do_GET


def test_this_machine_is_reached_without_a_proxy(fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Proxy) as proxy, HttpSession() as session:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://{proxy}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert session.get(f"http://{fake.host}/v2/us/x/{TAGS}", timeout=5).json() == {"tags": []}
        monkeypatch.setattr(transport, "TRIES", 0)
        assert session.get("http://registry.invalid/", timeout=5).status_code == 500


def test_a_file_of_certificates_is_read_before_anything_is_asked(tmp_path: Path) -> None:
    self_signed(tmp_path)
    for content in (b"", b"text", (tmp_path / "key.pem").read_bytes()):
        (tmp_path / "ca.pem").write_bytes(content)
        with pytest.raises(UsageError, match="has no certificate in PEM"):
            transport.trusted(tmp_path / "ca.pem")
    assert transport.trusted(tmp_path / "x.pem") == (tmp_path / "x.pem").read_text()
