"""Folders that tfbuild writes to or reads from, when they are another user's, read-only or damaged.

What is in them is named with its cause, or made anew; it is never used as if it were good, and nothing outside is
touched. When the cause is gone, the same command ends well.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commandline import answer, invoke
from tests.context.test_dockerfile import contents
from tests.users import nobody
from tfbuild import plan
from tfbuild.errors import EngineMissing, UsageError
from tfbuild.pipeline import build_context
from tfbuild.pipeline.maker import Maker
from tfbuild.pipeline.run import Run
from tfbuild.plan import Build, Request

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


@pytest.mark.parametrize("thing", ["half", "link", "foreign link"])
def test_a_damaged_context_is_written_anew_or_refused(thing: str, here: Path, outside: Path) -> None:
    context = here / "build" / build().id / "context"
    assert str(context.relative_to(here)) in invoke("dockerfile", *OPTIONS, cwd=here).stdout
    good = contents(context)
    scripts = context / "scripts" / "slim.sh"
    if thing == "foreign link":
        shutil.rmtree(context)
        context.symlink_to(outside.parent)
        done = answer("dockerfile", *OPTIONS, cwd=here)
        assert done.returncode == UsageError.exit_code
        assert "exists and was not written by tfbuild\nhint: " in done.stderr
        context.unlink()
    elif thing == "link":
        scripts.unlink()
        scripts.symlink_to(outside)
    else:
        scripts.write_bytes(scripts.read_bytes()[:10])
    invoke("dockerfile", *OPTIONS, cwd=here)
    assert contents(context) == good
    assert not any(path.is_symlink() for path in context.rglob("*"))


@pytest.mark.parametrize("step", [1, 2])
def test_a_context_whose_writer_is_cut_is_the_old_one_or_none(
    step: int, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what takes its place is on the disk before it gets its name."""
    folder, did, real = here / "context", list[str](), Path.rename

    def rename(path: Path, target: Path) -> Path:
        did.append("rename")
        if did.count("rename") == step:
            raise KeyboardInterrupt
        return real(path, target)

    build_context.write_context(build(), folder, base_digest=f"sha256:{64 * '0'}")
    old = contents(folder)
    monkeypatch.setattr(build_context, "flush", lambda _: did.append("flush"))
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        build_context.write_context(build(), folder, base_digest=f"sha256:{64 * '1'}")
    assert did == ["flush", *["rename"] * step]
    assert contents(folder) == (old if step == 1 else {})
    build_context.write_context(build(), folder, base_digest=f"sha256:{64 * '1'}")
    assert contents(folder).keys() == old.keys()
