"""An index of wheels: its pages follow the PEPs, the same wheels give the same bytes, and no bad wheel gets into it."""

import hashlib
import json
import os
import re
import shutil
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from msgspec.structs import replace
from packaging.metadata import Metadata
from packaging.utils import parse_wheel_filename

from tests.commandline import invoke
from tests.context.test_dockerfile import contents
from tests.publish.wheels import MANYLINUX, described, record_digest, wheel
from tests.rows import each
from tfbuild.errors import BadInput, UsageError
from tfbuild.publish import wheel_index, wheel_pages, wheel_rows
from tfbuild.publish.wheel_rows import IndexedWheel

INFO = "tensorflow_cpu-2.14.0.dist-info"


def indexed(folder: Path, wheels: Path, *, project: str = "", local: bool = False) -> tuple[IndexedWheel, ...]:
    files = wheel_index.of_folder(wheels)
    return wheel_index.index(folder, files, print, project=project, local=local)


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """The wheels of two sets: Bazel gives them one name, so each is in a folder of its own."""
    for name in ("avx", "x86-64-v4"):
        wheel(tmp_path / "built" / name, name)
    return tmp_path / "built"


@pytest.fixture
def public(built: Path, tmp_path: Path) -> Path:
    for name in ("avx", "x86-64-v4"):
        indexed(tmp_path / "public", built / name)
    return tmp_path / "public"


class Links(HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.rows: list[dict[str, str | None]] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.rows.append(dict(attrs))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_each_set_has_an_index_with_its_own_wheel_by_the_same_name(public: Path) -> None:
    rows = wheel_rows.read_list((public / "choose.json").read_bytes(), "here").wheels
    assert {row.instruction_set for row in rows} == {"avx", "x86-64-v4"}
    assert len({row.name for row in rows}) == 1
    head, *lines = [line.split("\t") for line in (public / "choose.tsv").read_text().splitlines()]
    v4, avx = (dict(zip(head, line, strict=True)) for line in lines)
    assert (v4["set"], avx["set"], v4["speed"] > avx["speed"], v4["glibc"]) == ("x86-64-v4", "avx", True, "2.28")
    assert {"pni", "abm"} < {*v4["cpuinfo"].split()}
    for row in rows:
        page = public / row.instruction_set / "simple" / "tensorflow-cpu" / "index.html"
        (link,) = Links(page).rows
        address, fragment = urldefrag(link["href"] or "")
        file = (page.parent / unquote(address)).resolve()
        assert file == (public / row.file).resolve()
        assert fragment == f"sha256={digest(file)}"
        described = Path(f"{file}.metadata")
        assert link["data-core-metadata"] == f"sha256={digest(described)}"
        assert link["data-requires-python"] == ">=3.9"
        with zipfile.ZipFile(file) as archive:
            assert f"set = {row.instruction_set!r}" in archive.read("tensorflow/__init__.py").decode()
            assert archive.read(f"tensorflow_cpu-{row.version}.dist-info/METADATA") == described.read_bytes()
        assert [link["href"] for link in Links(page.parents[1] / "index.html").rows] == ["tensorflow-cpu/"]


def needing(folder: Path, needs: dict[str, str]) -> Path:
    """Make a wheel that needs a library of its system, such as SQLite, so that its name promises no glibc."""
    path = wheel(folder, audited="linux_x86_64")
    sidecar = path.with_name(f"{path.name}.json")
    document = json.loads(sidecar.read_text())
    document["audit"]["needs"] = needs
    sidecar.write_text(json.dumps(document))
    return path


@each("needs, glibc", [({"GLIBC": "2.99", "GCC": "3.3"}, "2.99"), ({}, "")])
def test_a_wheel_whose_name_promises_no_glibc_has_the_one_that_it_needs(
    needs: dict[str, str], glibc: str, tmp_path: Path
) -> None:
    wheel(tmp_path / "more", platform="manylinux_2_17_x86_64", python="3.10")
    wheel(tmp_path / "more", platform="manylinux_2_31_x86_64", python="3.9")
    names = {row.python: row.name for row in indexed(tmp_path / "other", tmp_path / "more")}
    assert names["3.10"].endswith(f"{MANYLINUX}.whl"), "a name that promises too much becomes what the audit proved"
    assert names["3.9"].endswith("manylinux_2_31_x86_64.whl")
    path = needing(tmp_path / "built", needs)
    (row,) = indexed(tmp_path / "public", tmp_path / "built")
    assert (row.name, row.glibc) == (path.name, glibc)
    assert (tmp_path / "public" / "choose.tsv").read_text().splitlines()[1].split("\t")[4] == glibc
    done = invoke("install", "--index", tmp_path / "public", "--dry-run", code=27 if glibc else 0)
    assert ("it needs glibc 2.99" in done.stderr) == bool(glibc)
    elsewhere = replace(row, sha256="../../../x", file=row.file.replace(row.sha256, "../../../x"))
    for wrong in (*(replace(row, glibc=text) for text in ("\u0662.\u0663\u0666", "2.", "9.9.9.9")), elsewhere):
        assert not wheel_rows.is_sound(wrong)
    assert not wheel_rows.is_sound(replace(row, size=0))


@each("build, python, abi", [("", "cp311", "cp311"), ("-1", "cp311.cp312", "abi3.none")])
def test_a_name_is_split_as_packaging_does(build: str, python: str, abi: str) -> None:
    name = f"tensorflow-2.14.0{build}-{python}-{abi}-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    parts = wheel_rows.Parts.parse(name)
    assert (parts.file, parts.stem) == (name, "tensorflow-2.14.0")
    assert {*parts.tags()} == {*map(str, parse_wheel_filename(name)[3])}


def test_the_same_wheels_give_the_same_bytes_in_any_order(public: Path, built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path / "again" / ".tfbuild-killed")
    (tmp_path / "again" / "pool" / "0").mkdir(parents=True)
    (tmp_path / "again" / "pool" / "0" / ".x.whl.0a1b").touch()
    for name in ("x86-64-v4", "avx", "avx"):
        indexed(tmp_path / "again", built / name)
    assert contents(tmp_path / "again") == contents(public)
    # Tools that upload a folder look at times.
    times = {path: path.stat().st_mtime_ns for path in public.rglob("*") if path.is_file()}
    indexed(public, built / "avx")
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_a_second_writer_waits_and_says_so_and_loses_nothing(public: Path, built: Path, tmp_path: Path) -> None:
    folder, noted = tmp_path / "again", threading.Event()
    avx, v4 = (wheel_index.of_folder(built / name) for name in ("avx", "x86-64-v4"))

    def sign(copy: Path) -> None:
        """The first one has read the list by now, and writes its own later."""
        pool.submit(wheel_index.index, folder, v4, lambda _: noted.set())
        assert noted.wait(30)
        copy.with_name("choose.json.sigstore.json").touch()

    with ThreadPoolExecutor() as pool:
        wheel_index.index(folder, avx, print, sign=sign)
    assert contents(folder) == contents(public)


def test_the_page_at_the_top_lists_every_wheel_and_its_links_lead_somewhere(public: Path, tmp_path: Path) -> None:
    wheel(tmp_path / "more", release="2.13.0")
    wheel_index.index(public, wheel_index.of_folder(tmp_path / "more"), print, url="https://x.example/w/")
    wheel_index.index(public, [], print)
    page = (public / "index.html").read_text()
    rows = wheel_rows.read_list((public / "choose.json").read_bytes(), "here").wheels
    assert "<td>11 operations faster, 5 slower</td>" in page
    links = [str(row["href"]) for row in Links(public / "index.html").rows]
    assert [link for link in links if link.startswith("pool/")] == [
        row.file for row in sorted(rows, key=lambda row: (row.release, row.instruction_set != "avx"), reverse=True)
    ]
    newer = [replace(row, release="2.21.0") for row in rows]
    assert wheel_pages.pages([*rows, *newer], (), "")["index.html"].count("<h2>Measured for ") == 1
    assert [link for link in links if not (public / link).exists()] == []
    assert "curl -fsSL https://x.example/w/install.sh | sh -s -- https://x.example/w<" in page


def test_a_renamed_wheel_is_whole(built: Path, tmp_path: Path) -> None:
    (row,) = indexed(tmp_path / "public", built / "x86-64-v4", project="tensorflow", local=True)
    assert row.name == f"tensorflow-2.14.0+tfbuild.x86.64.v4-cp311-cp311-{MANYLINUX}.whl"
    parse_wheel_filename(row.name)
    with zipfile.ZipFile(tmp_path / "public" / row.file) as archive:
        stem = "tensorflow-2.14.0+tfbuild.x86.64.v4"
        metadata = Metadata.from_email(archive.read(f"{stem}.dist-info/METADATA"))
        assert (metadata.name, str(metadata.version)) == ("tensorflow", "2.14.0+tfbuild.x86.64.v4")
        assert (metadata.description or "").startswith("Name: of a section")
        assert f"Tag: cp311-cp311-{MANYLINUX}\n" in archive.read(f"{stem}.dist-info/WHEEL").decode()
        assert archive.read(f"{stem}.data/purelib/tensorflow/note.txt") == b"data\n"
        recorded = dict(line.split(",", 1) for line in archive.read(f"{stem}.dist-info/RECORD").decode().splitlines())
        assert set(recorded) == set(archive.namelist()) > {"tensorflow_cpu-2.14.0.others/note.txt"}
        for name in set(recorded) - {f"{stem}.dist-info/RECORD"}:
            content = archive.read(name)
            kind, size = recorded[name].split(",")
            assert int(size) == len(content)
            assert kind == f"sha256={record_digest(content)}"
    page = (tmp_path / "public" / "x86-64-v4" / "simple" / "tensorflow" / "index.html").read_text()
    assert "tensorflow-2.14.0%2Btfbuild.x86.64.v4-cp311" in page


def test_wheels_of_two_sets_may_be_renamed_alike(tmp_path: Path) -> None:
    wheel(tmp_path / "both", "avx")
    wheel(tmp_path / "both", "x86-64-v4", project="tensorflow")
    rows = indexed(tmp_path / "public", tmp_path / "both", project="tensorflow")
    assert [row.instruction_set for row in rows] == ["avx", "x86-64-v4"]
    assert [digest(tmp_path / "public" / row.file) for row in rows] == [row.sha256 for row in rows]


def bad_wheels(folder: Path) -> Iterator[tuple[Path, str]]:
    path = wheel(folder / "lying", "avx", guard="x86-64-v4")
    yield path, f"{path.name} was compiled for avx avx2 avx512f .*, not for avx"
    path = wheel(folder / "cut")
    path.write_bytes(path.read_bytes()[:-100])
    path.with_name(f"{path.name}.json").unlink()
    yield path, "BadZipFile|cannot be read|is not a wheel"
    path = wheel(folder / "another")
    beside = path.with_name(f"{path.name}.json")
    beside.write_text(beside.read_text().replace('"sha256": "', '"sha256": "0'))
    yield path, f"{beside.name} describes another file than {path.name}"
    path = wheel(folder / "newer")
    beside = path.with_name(f"{path.name}.json")
    beside.write_text(beside.read_text().replace("tfbuild.wheel/1", "tfbuild.wheel/2"))
    yield path, "cannot be read: its schema is 'tfbuild.wheel/2', not tfbuild.wheel/1"
    path = wheel(folder / "misnamed")
    path = described(path.rename(path.with_name(path.name.replace("2.14.0", "2.13.0"))), "avx")
    yield path, f"{path.name} has the METADATA of another wheel"
    for field, value, told in (
        ("platform_tag", "manylinux_2_28_aarch64", "would become .*aarch64.whl in the index, but was not compiled for"),
        ("platform_tag", "../x", r"cannot be read: Expected `str` matching regex .* `\$.audit.platform_tag`"),
        ("target", "m\tkl", r"cannot be read: Expected `str` matching regex .* `\$.plan.target`"),
    ):
        path = wheel(folder / f"{field} {value.replace('/', '')}")
        beside = path.with_name(f"{path.name}.json")
        beside.write_text(
            re.sub(rf'"{field}": "[^"]*"', f'"{field}": {json.dumps(value)}'.replace("\\", r"\\"), beside.read_text())
        )
        yield path, told
    for name in ("RECORD", "WHEEL"):
        path = wheel(folder / f"without {name}")
        with zipfile.ZipFile(path) as archive:
            members = {member: archive.read(member) for member in archive.namelist() if member != f"{INFO}/{name}"}
        with zipfile.ZipFile(path, "w") as archive:
            for member, data in members.items():
                archive.writestr(member, data)
        yield described(path, "avx"), f"{path.name} has no {INFO}/{name}"
    path = wheel(folder / "folder")
    path.unlink()
    path.mkdir()
    yield path, f"{path} is not a file"
    path = wheel(folder / "foreign").rename(folder / "foreign" / "numpy-2.14.0-cp311-cp311-linux_x86_64.whl")
    yield path, "is numpy, not a TensorFlow wheel"


def test_a_bad_wheel_changes_nothing(public: Path, tmp_path: Path) -> None:
    before = contents(public)
    for path, told in bad_wheels(tmp_path / "bad"):
        wheel(path.parent, "avx", python="3.10")
        with pytest.raises(BadInput, match=told):
            indexed(public, path.parent)
        assert contents(public) == before


def test_a_wheel_that_was_cut_off_in_the_pool_leaves_the_index_or_comes_whole_again(public: Path, built: Path) -> None:
    before = contents(public)
    notes: list[str] = []
    rows = wheel_rows.read_list((public / "choose.json").read_bytes(), "here").wheels
    os.truncate(public / rows[0].file, 100)
    left = wheel_index.index(public, [], notes.append)
    assert [row.instruction_set for row in left] == ["x86-64-v4"]
    assert Links(public / "avx" / "simple" / "tensorflow-cpu" / "index.html").rows == []
    assert notes == [f"{rows[0].name} for avx leaves the index: {rows[0].file} is missing or truncated"]
    indexed(public, built / "avx")
    assert contents(public) == before
    wheel_index.index(public, [], print, yanks={"avx/*": "crashes"})
    os.truncate(public / rows[0].file, 100)
    assert [row.yanked for row in indexed(public, built / "avx")] == ["crashes", ""], "it stays yanked"


@each("url", ["wheels.example.com", "https://", "https://x;reboot", "https://x\n", "http://wheels.example.com"])
def test_an_address_that_no_client_takes_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not an https address"):
        wheel_index.index(tmp_path / "public", [], print, url=url)
    assert not (tmp_path / "public").exists()


def test_what_names_no_wheels_is_refused(built: Path, public: Path, tmp_path: Path) -> None:
    before = contents(public)
    with pytest.raises(UsageError, match="no wheels in "):
        wheel_index.of_folder(built)
    with pytest.raises(UsageError, match="is not a name of TensorFlow's"):
        indexed(public, built / "avx", project="numpy")
    assert "has no reason" in invoke("index", public, "--yank", "avx/*", code=2).stderr
    assert contents(public) == before
    whole = (public / "choose.json").read_text()
    (public / "choose.json").write_text(re.sub('("release": *)"[^"]+"', r'\1"x"', whole, count=1))
    assert "does not agree with the name" in invoke("index", public, code=BadInput.exit_code).stderr
    (public / "choose.json").write_text(whole[:100])
    invoke("index", public, "--wheels", built / "avx", code=26)


@each("name", ["install.sh", "index.html"])
def test_a_file_of_the_users_is_not_replaced(name: str, built: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("the user's")
    with pytest.raises(UsageError, match=f"{name} is not an index's"):
        indexed(tmp_path, built / "avx")
    assert (tmp_path / name).read_text() == "the user's"
    (tmp_path / name).unlink()


def test_an_index_is_made_anew_from_its_pool(public: Path, tmp_path: Path) -> None:
    rows = json.loads((public / "choose.json").read_text())["wheels"]
    (gone,) = (row["file"] for row in rows if row["instruction_set"] == "x86-64-v4")
    shutil.rmtree((public / gone).parent)
    assert "x86-64-v4/simple" not in invoke("index", public, cwd=tmp_path).stdout
    assert "--name is for" in invoke("index", public, "--name", "tensorflow", cwd=tmp_path, code=2).stderr
    assert Links(public / "x86-64-v4/simple/tensorflow-cpu/index.html").rows == []


def test_a_yanked_wheel_says_so_on_every_page_until_it_is_offered_again(public: Path, built: Path) -> None:
    before = contents(public)
    wheel_index.index(public, [], print, yanks={"x86-64-v4/*": "crashes & burns"})
    page = public / "x86-64-v4" / "simple" / "tensorflow-cpu" / "index.html"
    assert [link["data-yanked"] for link in Links(page).rows] == ["crashes & burns"]
    assert [line.split("\t")[6] for line in (public / "choose.tsv").read_text().splitlines()] == ["set", "avx"]
    assert "yanked: crashes &amp; burns<" in (public / "index.html").read_text()
    yanked = contents(public)
    assert {name for name in yanked if "avx" in name and yanked[name] != before[name]} == set()
    indexed(public, built / "x86-64-v4")
    assert contents(public) == yanked, "adding a yanked wheel again does not offer it"
    with pytest.raises(UsageError, match=r"no wheel of the index matches x86-64-v3/\*"):
        wheel_index.index(public, [], print, yanks={"*": "x", "x86-64-v3/*": "x"})
    assert contents(public) == yanked
    wheel_index.index(public, [], print, yanks={"x86-64-v4/*": ""})
    assert contents(public) == before


def test_variants_are_made_for_levels_above_the_lowest_set_whatever_came_first(built: Path, tmp_path: Path) -> None:
    for folder, order in (("public", ("avx", "x86-64-v4")), ("again", ("x86-64-v4", "avx"))):
        for name in order:
            wheel_index.index(tmp_path / folder, wheel_index.of_folder(built / name), print, variants=True)
    public = tmp_path / "public"
    assert contents(public / "auto") == contents(tmp_path / "again" / "auto")
    page = public / "auto" / "simple" / "tensorflow-cpu" / "index.html"
    plain, variant, listed = Links(page).rows
    assert str(plain["href"]).partition("#")[0].endswith("_2_28_x86_64.whl")
    assert f"sha256={digest(page.parent / 'tensorflow_cpu-2.14.0-variants.json')}" in str(listed["href"])
    assert variant["data-core-metadata"] == plain["data-core-metadata"]
    address, fragment = urldefrag(str(variant["href"]))
    file = (page.parent / unquote(address)).resolve()
    assert file.name.endswith("-manylinux_2_28_x86_64-x86_64_v4.whl")
    assert fragment == f"sha256={digest(file)}"
    with zipfile.ZipFile(file) as archive:
        inside = json.loads(archive.read("tensorflow_cpu-2.14.0.dist-info/variant.json"))
        recorded = archive.read("tensorflow_cpu-2.14.0.dist-info/RECORD").decode().splitlines()
    assert inside == json.loads((page.parent / "tensorflow_cpu-2.14.0-variants.json").read_text())
    assert inside["variants"] == {"x86_64_v4": {"x86_64": {"level": ["v4"]}}}
    assert recorded[-2].startswith("tensorflow_cpu-2.14.0.dist-info/variant.json,sha256=")


def test_the_index_of_variants_stays_with_what_is_offered(built: Path, tmp_path: Path) -> None:
    public = tmp_path / "public"
    for name in ("avx", "x86-64-v4"):
        wheel_index.index(public, wheel_index.of_folder(built / name), print, variants=name == "avx")
    page = public / "auto" / "simple" / "tensorflow-cpu" / "index.html"
    before = contents(public)
    assert len(Links(page).rows) == 3
    wheel_index.index(public, [], print, yanks={"avx/*": "slow"})
    # The only wheel that is left is the plain one.
    assert [str(link["href"]).partition("#")[0][-4:] for link in Links(page).rows] == [".whl"]
    wheel_index.index(public, [], print, yanks={"avx/*": ""})
    assert contents(public) == before
    # A variant that was cut off is made again, and no page names what is gone.
    (variant,) = public.glob("pool/*/*-x86_64_v4.whl")
    os.truncate(variant, 10)
    wheel_index.index(public, [], print)
    assert contents(public) == before
    shutil.rmtree(public / "pool")
    wheel_index.index(public, [], print)
    assert Links(page).rows == []


def test_a_second_file_by_the_same_name_is_refused(public: Path, tmp_path: Path) -> None:
    before = contents(public)
    wheel(tmp_path / "more", requires="numpy", target="cpu")
    with pytest.raises(BadInput, match=r"two files are called .* for avx: "):
        indexed(public, tmp_path / "more")
    assert contents(public) == before
