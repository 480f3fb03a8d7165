"""How many planted defects the pure tests find.

    .venv/bin/python -m benchmarks.mutation ROOM [ROOM...] --sample 25 --seed 1

Changes one place in a room of `tfbuild/` at a time, in a copy of the repository, and runs the pure tests of that room.
Prints the share of the defects that made a test fail, and as a diff each one that none noticed. Such a defect asks for
a test, unless the changed code means the same (a default that every caller gives, a quicker way to the same result).

The rooms `engine` and `oci` need an engine that answers: what no pure test notices is tried on it, and on a registry.

Not planted: other words in messages, docstrings and annotations, and templates.
"""

import argparse
import ast
import difflib
import importlib
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests import checkout
from tools.testing import PURE, QUICK, provide_tensorflow

ROOMS = tuple(sorted(path.parent.name for path in (checkout.ROOT / "tfbuild").glob("*/__init__.py")))
# Further folders of tests that use a room directly, tried where its own tests notice nothing.
RELATED = {
    "oci": ("publish",),
    "bench": ("cli",),
    "ci": ("cli",),
    "context": ("plan", "publish"),
    "measure": ("bench",),
    "pages": ("bench",),
    "facts": ("plan", "cpu"),
    "plan": ("facts", "context", "cli"),
    "util": ("engine", "cli"),
    "cli": ("publish", "plan", "fleet"),
    "pipeline": ("util", "plan", "context"),
    "in_container": ("verify", "measure", "bench"),
}
# The same on an engine or a registry, where a room is little but what it asks of one.
REAL = {
    "engine": ("with_engine/test_engine.py", "with_engine/test_own_engine.py"),
    "oci": ("with_engine/test_registry.py",),
}
# Imported from the copy, whatever of them this process imported.
OURS = ("tests", "tfbuild", "tools", "benchmarks")
# Imported before the processes split, since each run would spend more time on them than on most tests. None of ours.
COMMON = (
    "pytest", "_pytest.assertion.rewrite", "hypothesis.strategies", "msgspec", "packaging.requirements", "jinja2",
    "requests", "docker", "rich.table", "rich.console", "invoke.program", "capstone", "elftools.elf.elffile",
)  # fmt: skip
# Pytest warns that it cannot rewrite what is imported already, and warnings are errors.
IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
OTHER_NAMES = {
    "any": "all", "all": "any", "min": "max", "max": "min", "startswith": "endswith", "endswith": "startswith",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A piece of a file of `content`, and the text in its place; `path` is relative to the repository."""

    path: Path
    content: bytes = field(repr=False)
    start: int
    end: int
    text: str

    def planted(self) -> str:
        return (self.content[: self.start] + self.text.encode() + self.content[self.end :]).decode()

    def diff(self) -> str:
        before, after = self.content.decode().splitlines(), self.planted().splitlines()
        changed = [line for line in difflib.unified_diff(before, after, n=0, lineterm="") if line[:1] in "+-@"]
        return "\n".join((str(self.path), *changed[2:]))


# --- defects ---------------------------------------------------------------------------------------------------------


def defects(root: Path, room: str) -> list[Defect]:
    """Return every defect that can be planted in a room, in the order of its files."""
    files = sorted((root / "tfbuild" / room).rglob("*.py"))
    return [defect for file in files for defect in of_file(root, file.relative_to(root))]


def of_file(root: Path, path: Path) -> Iterator[Defect]:
    whole = (root / path).read_bytes()
    starts = [0]
    for line in whole.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _executed(ast.parse(whole)):
        for text in _changed(node):
            assert isinstance(node, ast.expr | ast.stmt)
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            yield Defect(path=path, content=whole, start=start, end=end, text=text)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through what decides something: no annotations, decorators, imports, f-strings and docstrings."""
    yield node
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    skipped = {"annotation", "returns", "decorator_list", "format_spec"}
    if isinstance(node, ast.ClassDef):  # `frozen=True`, which others write into a decorator
        skipped.add("keywords")
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            typing = isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"
            if isinstance(child, ast.AST) and name not in skipped and not docstring and not typing:
                yield from _executed(child)


def _changed(node: ast.AST) -> Iterator[str]:
    """The texts that make a defect of a node."""
    match node:
        case ast.Constant():
            yield from _other_constant(node.value)
        case ast.Call():
            yield from _other_call(node)
        case ast.Compare(ops=[operator, *rest]) if swapped := SWAPPED.get(type(operator)):
            yield _unparsed(node, ops=[swapped(), *rest])
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if swapped := SWAPPED.get(type(operator)):
            yield _unparsed(node, op=swapped())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.IfExp(test=test):
            yield _unparsed(node, test=ast.UnaryOp(op=ast.Not(), operand=test))
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield "return None"
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield "pass"


def _other_constant(value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int):
        yield str(value + 1)
    elif isinstance(value, str) and value and not {" ", "\n"} & {*value}:  # no sentence
        yield repr(f"{value}X")


def _other_call(node: ast.Call) -> Iterator[str]:
    match node.func:
        case ast.Name(id=name) if name in OTHER_NAMES:
            yield _unparsed(node, func=ast.Name(id=OTHER_NAMES[name]))
        case ast.Attribute(value=value, attr=name) if name in OTHER_NAMES:
            yield _unparsed(node, func=ast.Attribute(value=value, attr=OTHER_NAMES[name]))


def _unparsed(node: ast.AST, **changes: object) -> str:
    fields = {name: changes.get(name, value) for name, value in ast.iter_fields(node)}
    return f"({ast.unparse(ast.fix_missing_locations(type(node)(**fields)))})"


# --- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs the tests of a copy, each time in a process of its own that begins with the common imports done."""

    copy: Path
    log: Path
    times: Iterator[int] = field(default_factory=lambda: count(10**9))
    unchanged: dict[tuple[str, ...], float] = field(default_factory=dict)

    def passes(self, tests: list[str], limit: float) -> bool:
        """Return whether the tests pass within `limit` seconds."""
        process = os.fork()
        if process == 0:
            self._test(tests)
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                # pytest has a code of its own where the marks leave no test of a file.
                return os.waitstatus_to_exitcode(status) in (0, 5)
            time.sleep(0.05)
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        return False

    def _test(self, tests: list[str]) -> None:
        code = 3
        try:
            os.setsid()
            with self.log.open("wb") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            os.chdir(self.copy)
            for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
                del sys.modules[name]
            sys.path[:0] = [str(self.copy)]
            sys.dont_write_bytecode = False
            pytest = importlib.import_module("pytest")
            options = ["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "--hypothesis-seed=1"]
            marks = PURE
            if tests[0].startswith("with_engine/"):
                marks, os.environ["CI"] = QUICK, "true"  # without an engine they fail
            code = int(pytest.main([*options, "-m", marks, "-W", IMPORTED, *(f"tests/{name}" for name in tests)]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def seconds(self, tests: list[str]) -> float:
        """Return how long the tests take without a defect; they run for that once. Exits if they fail."""
        key = tuple(tests)
        if key not in self.unchanged:
            begin = time.monotonic()
            if not self.passes(tests, 1200):
                said = self.log.read_text(encoding="utf-8", errors="replace")[-3000:]
                sys.exit(f"{' '.join(tests)} fail as they are:\n{said}")
            self.unchanged[key] = time.monotonic() - begin
        return self.unchanged[key]

    def finds(self, defect: Defect, runs: list[list[str]]) -> bool:
        """Return whether one of these runs of tests fails with the defect planted."""
        return any(not self.passes_with(defect, tests, 120 + 4 * self.seconds(tests)) for tests in runs)

    def passes_with(self, defect: Defect, tests: list[str], limit: float) -> bool:
        """Return whether the tests pass within `limit` seconds with the defect planted."""
        target = self.copy / defect.path
        times = target.stat()
        target.write_text(defect.planted(), encoding="utf-8")
        # Byte code is of a source of this length and time: each defect has its own time, years before any other file's.
        os.utime(target, (next(self.times),) * 2)
        try:
            return self.passes(tests, limit)
        finally:
            target.write_bytes(defect.content)
            os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))


def ordered(root: Path, room: str, module: str) -> list[list[str]]:
    """Return the room's files of tests in the order to try them: the module's own, those that name it, the others.

    Most defects fail in the first, within seconds.
    """
    word = re.compile(rf"\b{re.escape(module)}\b")
    texts = {path.name: path.read_text(encoding="utf-8") for path in (root / "tests" / room).glob("test_*.py")}
    own = f"test_{module}.py"
    mentions = {name: len(word.findall(text)) for name, text in texts.items()}
    naming = [name for name in texts if name == own or mentions[name]]
    naming.sort(key=lambda name: (name != own, -mentions[name], name))
    parts = (naming[:1], naming[1:], sorted(texts.keys() - {*naming}))
    return [[f"{room}/{name}" for name in part] for part in parts if part]


def found(room: str, runner: Runner, sample: int, seed: int, *, own: bool) -> str:
    """Plant a sample of a room's defects; return how many tests found (if `own`, the room's): "12 of 13"."""
    related = [] if own else [[*files] for files in (RELATED.get(room), REAL.get(room)) if files]
    every = defects(runner.copy, room)
    chosen = random.Random(seed).sample(every, min(sample, len(every)))
    killed = 0
    for number, defect in enumerate(chosen, 1):
        notices = runner.finds(defect, [*ordered(runner.copy, room, defect.path.stem), *related])
        print(f"{room} {number}/{len(chosen)}: {'found' if notices else f'NOT FOUND: {defect.diff()}'}", flush=True)
        killed += notices
    return f"{killed} of {len(chosen)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Plants defects and counts what the pure tests find.")
    parser.add_argument("rooms", nargs="+", choices=ROOMS, metavar="ROOM")
    parser.add_argument("--sample", type=int, default=25, help="defects of each room")
    parser.add_argument("--seed", type=int, default=1, help="another seed is another sample")
    parser.add_argument("--own", action="store_true", help="do not try related rooms' tests: quicker, and finds less")
    options = parser.parse_args()
    for name in COMMON:
        importlib.import_module(name)
    if "in_container" in options.rooms:
        provide_tensorflow(checkout.ROOT)
    with tempfile.TemporaryDirectory(prefix="tfbuild-mutation-") as folder:
        Path(folder).chmod(0o755)  # tests become another user
        runner = Runner(copy=checkout.copy(Path(folder) / "copy", compiled=False), log=Path(folder) / "log")
        for room in options.rooms:
            print(f"{room}: found {found(room, runner, options.sample, options.seed, own=options.own)}")


if __name__ == "__main__":
    main()
