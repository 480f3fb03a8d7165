"""Folders that tfbuild writes to or reads from, when they are another user's, read-only or damaged.

What is in them is named with its cause, or made anew; it is never used as if it were good, and nothing outside is
touched. When the cause is gone, the same command ends well.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from tests import broken
from tests.commandline import answer, invoke
from tests.users import nobody
from tests.verify import test_report as reports
from tfbuild import plan
from tfbuild.errors import BadMirror, EngineMissing, UsageError
from tfbuild.pipeline import bundle, mirror
from tfbuild.pipeline.maker import Maker
from tfbuild.pipeline.mirror import Upstream
from tfbuild.pipeline.run import Run
from tfbuild.plan import Build, Request
from tfbuild.util import files, process
from tfbuild.verify import report as reporting
from tools import committed

OPTIONS = ("--target", "mkl", "--release", "2.20.0", "--cpu", "avx", "--platform", "linux/amd64", "--wheel", "official")


@pytest.fixture
def outside(here: Path) -> Iterator[Path]:
    """A file elsewhere, to which links lead, and which must stay as it is."""
    path = here.parent / "outside"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


def build() -> Build:
    request = Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64", wheel="official")
    return plan.select(request, None)


def link(to: Path) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(to)


# --- build/ -----------------------------------------------------------------------------------------------------------


def make(here: Path) -> None:
    """`invoke build` up to the engine, which is not in reach."""
    with pytest.raises(EngineMissing):
        Maker(run=Run(work=here / "build", reports=here / "reports")).build(build())


@pytest.mark.parametrize("place", [".", "build", "build/ID", "reports"])
def test_a_folder_of_somebody_else_is_named_before_anything_starts(place: str, here: Path) -> None:
    folder = here / place.replace("ID", build().id)
    folder.mkdir(parents=True, exist_ok=True)
    # All others are this user's.
    for path in (here, *here.rglob("*")):
        path.chmod(0o777)
    folder.chmod(0o555)
    with nobody(), pytest.raises(UsageError, match=r"cannot write to .*: Permission denied") as error:
        Maker(run=Run(work=here / "build", reports=here / "reports")).build(build())
    assert error.value.hint
    folder.chmod(0o777)
    with nobody():
        make(here)


def test_a_lock_that_is_a_link_is_not_followed(here: Path, outside: Path) -> None:
    lock = here / "build" / build().id / files.LOCK
    lock.parent.mkdir(parents=True)
    lock.symlink_to(outside)
    with pytest.raises(UsageError, match=r"cannot write to .*: Too many levels of symbolic links"):
        Maker(run=Run(work=here / "build", reports=here / "reports")).build(build())
    lock.unlink()
    make(here)


@pytest.mark.parametrize("thing", ["folder", "link", "read-only"])
def test_a_log_is_made_anew_whatever_was_in_its_place(thing: str, here: Path, outside: Path) -> None:
    log = here / "build" / "build.log"
    log.parent.mkdir(mode=0o777)
    if thing == "folder":
        (log / "x").mkdir(parents=True)
    elif thing == "link":
        log.symlink_to(outside)
    else:
        log.write_text("old")
        log.chmod(0o444)
    process.discard(log)
    assert process.logged(["echo", "new"], dict(os.environ), log) == 0
    assert log.read_text() == "new\n"
    assert not log.is_symlink()


def test_a_log_that_cannot_be_written_is_an_error_before_the_command_runs(here: Path) -> None:
    log = here / "build" / "build.log"
    log.parent.mkdir()
    log.write_text("somebody else's")
    log.parent.chmod(0o555)
    ran = here / "ran"
    with nobody():
        for work in (lambda: process.discard(log), lambda: process.logged(["touch", str(ran)], dict(os.environ), log)):
            with pytest.raises(UsageError, match=f"cannot write to {log.parent}: Permission denied"):
                work()
    assert not ran.exists()
    assert log.read_text() == "somebody else's"


@pytest.mark.parametrize("thing", ["half", "other", "folder", "link", "foreign link"])
def test_a_damaged_context_is_written_anew_or_refused(thing: str, here: Path, outside: Path) -> None:
    context = here / "build" / build().id / "context"
    assert str(context.relative_to(here)) in invoke("dockerfile", *OPTIONS, cwd=here).stdout
    good = {path.relative_to(context): path.read_bytes() for path in context.rglob("*") if path.is_file()}
    scripts = context / "scripts" / "slim.sh"
    if thing == "foreign link":
        shutil.rmtree(context)
        context.symlink_to(outside.parent)
        done = answer("dockerfile", *OPTIONS, cwd=here)
        assert done.returncode == UsageError.exit_code
        assert "exists and was not written by tfbuild\nhint: --output with a new or an empty folder" in done.stderr
        context.unlink()
    else:
        content = scripts.read_bytes()
        scripts.unlink()
        if thing in ("half", "other"):
            scripts.write_bytes(content[:10] if thing == "half" else b"rm -rf /\n")
        elif thing == "folder":
            scripts.mkdir()
        else:
            scripts.symlink_to(outside)
    invoke("dockerfile", *OPTIONS, cwd=here)
    assert {path.relative_to(context): path.read_bytes() for path in context.rglob("*") if path.is_file()} == good
    assert not any(path.is_symlink() for path in context.rglob("*"))


def test_an_old_wheel_is_not_taken_for_the_new_one(here: Path, outside: Path) -> None:
    """The builder writes into this folder, and through a link in its place."""
    scratch, elsewhere = here / "wheel", here / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "old.whl").write_text("old")
    for place in (link(elsewhere), link(outside), Path.touch, Path.mkdir):
        place(scratch)
        files.remove(scratch)
        assert not os.path.lexists(scratch)
    shutil.copytree(elsewhere, scratch)
    files.remove(scratch)
    files.remove(scratch)
    assert not scratch.exists()
    assert (elsewhere / "old.whl").read_text() == "old"


# --- reports/ ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", ["half", "bytes", "folder", "unreadable", "other"])
def test_a_damaged_report_proves_nothing(thing: str, here: Path) -> None:
    good = reports.report()
    path = reporting.write(good, here)
    assert reporting.stored(here, good.id) is not None
    content = path.read_bytes()
    path.unlink()
    if thing == "folder":
        path.mkdir()
    elif thing == "other":
        path.write_bytes(content.replace(good.id.encode(), b"another"))
    else:
        path.write_bytes({"half": content[: len(content) // 2], "bytes": b"\xff\x00" * 99}.get(thing, content))
        path.chmod(0o000 if thing == "unreadable" else 0o644)
    with nobody():
        assert reporting.stored(here, good.id) is None
    files.remove(path)
    reporting.write(good, here)
    assert reporting.stored(here, good.id) is not None


# --- bundles ----------------------------------------------------------------------------------------------------------

FILE = "files.example.org/a/x-1.0.whl"
BODY = b"wheel" * 1000


@pytest.fixture
def filled(here: Path) -> Path:
    """A bundle with one file, which a web server had."""
    folder = here / "bundle"
    fill(folder)
    return folder


def fill(folder: Path) -> None:
    made = bundle.fill(folder)
    with broken.serve({f"/{FILE}": BODY}) as server, mirror.serve(made, Upstream(base=server.url)) as serving:
        assert requests.get(f"{serving.url}/{FILE}", timeout=30).content == BODY
    made.write("id")


def in_place(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


BUNDLED: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "half": (lambda path, _: path.write_bytes(BODY[:100]), "was changed"),
    "other": (lambda path, _: path.write_bytes(b"x" * len(BODY)), "was changed"),
    "folder": (lambda path, _: in_place(path, Path.mkdir), "was changed"),
    "link": (lambda path, outside: in_place(path, link(outside)), "was changed"),
    "unreadable": (lambda path, _: path.chmod(0), "cannot be read: Permission denied"),
    "gone": (lambda path, _: path.unlink(), f"lacks {FILE}"),
}


@pytest.mark.parametrize("thing", BUNDLED)
def test_a_damaged_file_of_a_bundle_is_named_and_a_new_bundle_is_whole(
    thing: str, filled: Path, here: Path, outside: Path
) -> None:
    damage, message = BUNDLED[thing]
    damage(filled / FILE, outside)
    with nobody():
        done = answer("build", *OPTIONS, "--mirror", str(filled), cwd=here, env={"HOME": str(here)})
        for take in (bundle.open_bundle, bundle.fill):
            with pytest.raises(BadMirror, match=message):
                take(filled)
    assert done.returncode == BadMirror.exit_code
    assert message in done.stderr
    assert done.stderr.count("\nhint: ") == 1
    assert not (here / "build").exists()
    fill(here / "new")
    assert (here / "new" / FILE).read_bytes() == BODY
    assert bundle.open_bundle(here / "new").files == 1


def test_a_file_put_into_a_bundle_by_a_link_is_refused(here: Path, outside: Path) -> None:
    place = here / "bundle" / "pypi.org"
    place.mkdir(parents=True)
    (place / "x").symlink_to(outside)
    with pytest.raises(BadMirror, match=f"{place}/x is a link out of the folder"):
        bundle.fill(here / "bundle")
    (place / "x").unlink()
    shutil.copy(outside, place / "x")
    assert bundle.fill(here / "bundle").files == 1


def test_a_bundles_list_that_is_a_folder_is_told_before_anything_is_downloaded(here: Path) -> None:
    (here / "bundle" / bundle.LIST).mkdir(parents=True)
    with pytest.raises(BadMirror, match=r"bundle\.json is not a file"):
        bundle.fill(here / "bundle")
    with pytest.raises(BadMirror, match=r"it has no bundle\.json"):
        bundle.open_bundle(here / "bundle")


def test_a_bundle_of_somebody_else_can_be_used_and_not_filled(filled: Path, here: Path) -> None:
    for path in (filled, *filled.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    with nobody():
        assert bundle.open_bundle(filled).files == 1
        maker = Maker(run=Run(work=here / "build", reports=here / "reports"))
        with pytest.raises(UsageError, match=f"cannot write to {filled}: Permission denied"):
            maker.bundle((), filled)


# --- dockerfiles/ -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", ["half", "bytes", "folder", "link", "more", "linked folder"])
def test_damaged_generated_files_are_stale_and_written_anew(thing: str, here: Path, outside: Path) -> None:
    folder = here / "dockerfiles"
    committed.write(folder, {})
    good = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    own = next(build.id for build in committed.builds() if build.toolchain)
    name = f"{own}/bazelrc"
    path = folder / name
    content = path.read_bytes()
    if thing == "more":
        name = f"{own}/evil.sh"
        (folder / name).symlink_to(outside)
    elif thing == "linked folder":
        name = own
        (folder / name).rename(here / "moved")
        (folder / name).symlink_to(here / "moved")
    else:
        path.unlink()
        if thing == "folder":
            (path / "x").mkdir(parents=True)
        elif thing == "link":
            outside.write_bytes(content)
            path.symlink_to(outside)
        else:
            path.write_bytes(content[:9] if thing == "half" else b"\xff\xfe")
    assert name in committed.stale(folder, {})
    assert name in committed.write(folder, {})
    assert {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == good
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    assert committed.stale(folder, {}) == []
    if thing == "link":
        outside.write_text("precious")


def test_generated_files_that_cannot_be_written_are_named(here: Path) -> None:
    folder = here / "dockerfiles"
    committed.write(folder, {})
    (folder / "README.md").write_text("changed")
    folder.chmod(0o555)
    with nobody(), pytest.raises(UsageError, match=f"cannot write to {folder}: Permission denied"):
        committed.write(folder, {})
    folder.chmod(0o755)
    assert committed.write(folder, {}) == ["README.md"]
