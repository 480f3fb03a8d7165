"""A power cut before each step that a writer takes on the disk, in a process of its own that really ends there.

A disk keeps names in the order in which they were changed, and of a file's content only what was flushed: of any other
file that was written, half is lost. `python -m tests.power MODULE TABLE FOLDER MOST` tries all writers of a module's
table, and prints what a reader saw.
"""

import importlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

Files = Mapping[str, bytes]
# Called with a folder and with the number of the content, 0 or 1, to write there.
Writer = Callable[[Path, int], object]
STEPS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate")
FEW = 4
WRITING = os.O_WRONLY | os.O_RDWR


class Disk:
    """Counts the steps below a folder, and cuts the power before step number `last`."""

    def __init__(self, folder: Path, last: int) -> None:
        self.folder, self.last, self.steps = str(folder), last, 0
        self.unflushed: dict[int, Path] = {}
        self.opened: list[Path] = []
        self.cut = False

    def install(self) -> None:
        real = os.fsync

        def fsync(fd: Any) -> None:
            self.step()
            real(fd)
            self.unflushed.pop(os.fstat(fd).st_ino, None)

        os.fsync = fsync
        sys.addaudithook(self.hook)

    def hook(self, event: str, words: tuple[Any, ...]) -> None:
        if self.cut or not words or not isinstance(words[0], str | bytes | os.PathLike):
            return
        path = os.fsdecode(words[0])
        if not os.path.abspath(path).startswith(self.folder):
            return
        if event == "open" and words[2] & WRITING:
            self.step()
            self.opened.append(Path(path))
        elif event in STEPS:
            self.step()

    def step(self) -> None:
        """Take the files that were opened into account; cut the power if it is time."""
        for path in self.opened:
            if path.is_file():
                self.unflushed[path.stat().st_ino] = path
        self.opened.clear()
        self.steps += 1
        if self.steps == self.last:
            self.cut = True
            for file in Path(self.folder).rglob("*"):
                if file.is_file() and not file.is_symlink() and file.stat().st_ino in self.unflushed:
                    os.truncate(file, file.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)


def content(folder: Path) -> Files:
    """What a reader sees: names that begin with a dot are nobody's."""
    files = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        name.as_posix(): path.read_bytes()
        for name, path in files.items()
        if not any(part.startswith(".") for part in name.parts)
    }


def in_child(work: Callable[[], object]) -> bool:
    """Do the work in a process of its own; False where its power was cut."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.WEXITSTATUS(status) != 0:
        raise ChildProcessError(f"the writer left with {os.WEXITSTATUS(status)}")
    return True


def cuts(
    writer: Writer, top: Path, *, old: bool, wrong: Callable[[Files, Files, Files], str], most: int
) -> tuple[int, list[str]]:
    """Cut the power before the writer's steps, and return how many it has, and what was wrong after a cut.

    `old`: whether the first content is there before; `most`: how many cuts there are, the last steps among them.
    """
    # Here once, so that no child has to import modules and compile templates.
    warm = top / "warm"
    warm.mkdir(parents=True)
    for number in (0, 1):
        writer(warm, number)
    for name, numbers in (("before", [0] if old else []), ("after", [0, 1] if old else [1])):
        (top / name).mkdir()
        for number in numbers:
            in_child(partial(writer, top / name, number))
    before, after = content(top / "before"), content(top / "after")
    assert before != after
    found: list[str] = []

    def cut(last: int) -> bool:
        folder = Path(shutil.copytree(top / "before", top / "cut", symlinks=True))
        whole = in_child(partial(cut_at, writer, folder, last))
        if why := wrong(content(folder), before, after):
            found.append(f"cut before step {last}: {why}")
        try:
            in_child(partial(writer, folder, 1))
        except ChildProcessError as error:
            found.append(f"cut before step {last}: {error}")
        else:
            if content(folder) != after:
                found.append(f"cut before step {last}: the next run does not write what it should")
        shutil.rmtree(folder)
        return not whole

    steps = counted(writer, top)
    for step in sorted({*range(1, steps + 1, max(1, 2 * steps // most)), *range(max(1, steps - most // 2), steps + 1)}):
        assert cut(step), f"step {step} of {steps} was not reached"
    return steps, found


def cut_at(writer: Writer, folder: Path, last: int) -> None:
    disk = Disk(folder, last)
    disk.install()
    writer(folder, 1)
    # What was not flushed until here may still be lost.
    disk.step()


def counted(writer: Writer, top: Path) -> int:
    """The steps that the second content takes beside the first."""
    folder = Path(shutil.copytree(top / "before", top / "counted", symlinks=True))
    inner, outer = os.pipe()

    def count() -> None:
        disk = Disk(folder, 0)
        disk.install()
        writer(folder, 1)
        disk.step()
        os.write(outer, str(disk.steps).encode())

    in_child(count)
    shutil.rmtree(folder)
    return int(os.read(inner, 20))


def torn(seen: Files, before: Files, after: Files) -> str:
    """Each file is the old one or the new one, or is not there where one of them was not."""
    for name in sorted({*seen, *before, *after}):
        if seen.get(name) not in (before.get(name), after.get(name)):
            return f"{name} is torn" if name in seen else f"{name} is lost"
    return ""


def mixed(seen: Files, before: Files, after: Files) -> str:
    """All files are the old ones or the new ones, or there is none."""
    if not seen or seen in (before, after):
        return ""
    return torn(seen, before, after) or "old files and new ones are mixed"


def main(module: str, table: str, top: str, most: str) -> None:
    results = {}
    for name, (writer, wrong) in getattr(importlib.import_module(module), table).items():
        # The few of the quick tests are where most can go wrong.
        for old in (True,) if int(most) <= FEW else (False, True):
            key = f"{name}, {'replaced' if old else 'new'}"
            results[key] = cuts(writer, Path(top) / key.replace("/", "-"), old=old, wrong=wrong, most=int(most))
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
