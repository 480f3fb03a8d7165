"""Feed the parsers mutated input, led by coverage, until one ends in anything but its documented error.

    ci/fuzz.sh [PARSER...] --seconds 60

That needs atheris, which ci/fuzz.sh installs. Each parser runs in a process of its own, with limits on the time and the
memory of each input; it starts from the tests' recorded inputs. Prints each input that it could not take, as bytes for
a test (tests/project/test_fuzz.py has those found so far).
"""

import argparse
import contextlib
import io
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from benchmarks import fuzz_json
from tests.binary import libraries
from tests.cpu.machines import machine
from tfbuild import cpu, facts
from tfbuild.binary import LibraryUnreadable, guard, machinecode, scan
from tfbuild.context import labels
from tfbuild.engine import build as builds
from tfbuild.errors import TfbuildError
from tfbuild.facts import Architecture
from tfbuild.in_container.smoke import judge
from tfbuild.oci import manifests, references
from tfbuild.oci.manifests import Manifest
from tfbuild.pipeline.bazel import BazelWatch
from tfbuild.plan import wheel
from tfbuild.publish import indexes, sbom
from tfbuild.util import terminal
from tfbuild.util.files import decode
from tfbuild.util.progress import Progress
from tfbuild.verify.report import Report

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
# Of one input: what a parser may take. An answer takes milliseconds on any of the recorded inputs.
SECONDS, MEGABYTES, BYTES = 10, 256, 16 * 1024
# Of an ELF file: its tables can have so many rows with such long names that no reader may keep them all.
LIBRARY_BYTES = 256 * 1024
DONE = re.compile(r"^Done \d+ runs in \d+ second", re.MULTILINE)
# Only tfbuild's own branches lead the fuzzer.
INSTRUMENTED = """
import sys, atheris
with atheris.instrument_imports(include=["tfbuild"]):
    from benchmarks import fuzz
fuzz.fuzz(sys.argv[1])
"""


@dataclass(frozen=True, kw_only=True)
class Parser:
    """`read`: parses at most `most` bytes; `errors`: what it may raise; `seeds`: files to start from; `more`: texts."""

    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = (TfbuildError,)
    seeds: tuple[str, ...] = ()
    more: Callable[[], Iterable[bytes]] = tuple
    most: int = BYTES

    def accepts(self, content: bytes) -> None:
        """Parse the content. Raises what no caller expects, and MemoryError if the memory's end is behind an error."""
        try:
            self.read(content)
        except self.errors as error:
            cause = error.__cause__ or error.__context__
            while cause is not None:
                if isinstance(cause, MemoryError):
                    raise cause from None
                cause = cause.__cause__ or cause.__context__


def text(content: bytes) -> str:
    return content.decode(errors="replace")


def in_folder(read: Callable[[Path], object], *names: str) -> Callable[[bytes], object]:
    """Return what reads a folder that has the content in each of these files; it is kept in memory."""

    def reading(content: bytes) -> object:
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
            for path in map(Path(name).joinpath, names):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            return read(Path(name))

    return reading


def in_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    return in_folder(lambda folder: read(folder / "file"), "file")


def cpuinfos() -> Iterable[bytes]:
    yield from (machine(name).cpuinfo().encode() for name in ("rhel7-haswell", "rhel7-zen"))


def log_lines(content: bytes) -> None:
    judge.unused_features(text(content))
    judge.primitives(text(content))
    judge.last_line(text(content))


def bazel_lines(content: bytes) -> None:
    watch = BazelWatch()
    for line in text(content).splitlines():
        watch(line)


def build_lines(content: bytes) -> None:
    stages = builds.Stages(Progress(io.StringIO()))
    for line in text(content).splitlines():
        if event := builds.parse(line):
            stages.add(event)
    stages.last_lines()


def registry_answer(content: bytes) -> None:
    manifests.descriptors(manifests.parse_object(content, "answer"))
    for media_type in (*manifests.LISTS, *manifests.IMAGES):
        manifest = Manifest(digest="sha256:" + 64 * "0", media_type=media_type, content=content)
        with contextlib.suppress(TfbuildError):
            manifest.json()
            indexes.read_index(manifest)


def image_configuration(content: bytes) -> None:
    config = manifests.parse_object(content, "configuration")
    indexes.of_config(config, "sha256:" + 64 * "0")
    terminal.as_text(config.get("Labels"))


def image_files(content: bytes) -> None:
    site = "/opt/tensorflow/lib/python3.11/site-packages"
    of_python = (f"{site}/x-1.dist-info/METADATA", f"{site}/y-1.dist-info/direct_url.json")
    package = {f"{site}/y-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: y\nVersion: 1\n"}
    system = (sbom.STATUS, sbom.BUILT, *sbom.OS_RELEASE)
    sbom.of_files(package | dict.fromkeys((*of_python, *system), content))


def names(content: bytes) -> None:
    for read in (references.parse_image, labels.parse_name):
        with contextlib.suppress(TfbuildError):
            read(text(content))


def wheel_name(content: bytes) -> None:
    name = text(content).replace("/", "-").replace("\0", "-")
    # The file need not be there for its name to be read.
    with patch.object(os.path, "isfile", lambda _: True):
        wheel.from_path(Path(name or "x"), "mkl")


def elf_files() -> Iterable[bytes]:
    yield from (
        libraries.library(libraries.recorded(name)) for name in ("tensorflow_cpu-2.21.0", "tensorflow_cpu-2.10.0")
    )


def elf(read: Callable[[bytes], object], *errors: type[Exception]) -> Parser:
    return Parser(read=read, errors=errors, more=elf_files, most=LIBRARY_BYTES)


def document(read: Callable[[bytes], object], name: str) -> Parser:
    return Parser(read=read, more=lambda: fuzz_json.documents(name))


def code(content: bytes) -> None:
    for arch in ("x86_64", "aarch64"):
        machinecode.count(content, arch)
    machinecode.read_opcode(content)


PARSERS = {
    "cpuinfo": Parser(read=lambda content: cpu.parse(text(content)), more=cpuinfos),
    "log": Parser(read=log_lines, seeds=("smoke/*",)),
    "bazel": Parser(read=bazel_lines, seeds=("bazel/*",)),
    "buildkit": Parser(read=build_lines, seeds=("buildkit/*",)),
    "wheel": Parser(read=wheel_name),
    "names": Parser(read=names),
    "report": Parser(read=lambda content: decode(content, Report), errors=(ValueError,)),
    "registry": Parser(read=registry_answer),
    "configuration": Parser(read=image_configuration),
    "fleet": Parser(read=in_file(fuzz_json.fleet_images), more=fuzz_json.recorded_fleet),
    "docker": document(in_folder(fuzz_json.docker_folder, "config.json"), "docker"),
    "server": document(fuzz_json.registry_server, "server"),
    "probe": document(fuzz_json.probe_lines, "probe"),
    "wheels": document(fuzz_json.wheel_list, "wheels"),
    "sidecar": document(in_folder(fuzz_json.sidecars, "x.whl.json"), "sidecar"),
    "options": Parser(read=in_file(fuzz_json.planned_options), more=lambda: (fuzz_json.TABLES,)),
    "files": Parser(read=image_files),
    "facts": Parser(read=lambda content: facts.parse(text(content), Architecture, "x"), errors=(ValueError,)),
    "code": Parser(read=code),
    "library": elf(in_file(scan.read_code), TfbuildError, LibraryUnreadable),
    "guard": elf(in_file(lambda path: guard.read_guard(path, "2.21.0")), LibraryUnreadable),
}


def seeds(parser: Parser) -> Iterable[bytes]:
    yield from (content[: parser.most] for content in parser.more())
    yield b"{}"
    yield b"tensorflow_cpu-2.21.0-cp311-cp311-manylinux_2_27_x86_64.whl"
    for pattern in parser.seeds:
        for path in sorted(DATA.glob(pattern)):
            if path.is_file():
                yield path.read_bytes()[: parser.most]


@contextlib.contextmanager
def more_memory(megabytes: int) -> Iterator[None]:
    """Let this process take so much more memory in the block: beyond that, Python raises MemoryError."""
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (megabytes << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def fuzz(name: str) -> None:
    """Never returns: libFuzzer ends the process. Called in a process of its own."""
    import atheris

    parser = PARSERS[name]

    def one(content: bytes) -> None:
        with contextlib.redirect_stderr(io.StringIO()), more_memory(MEGABYTES):
            parser.accepts(content)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], one)
    atheris.Fuzz()


def run(name: str, seconds: int, folder: Path) -> bool:
    """Fuzz a parser, print what it cannot take, and return whether it took all. Raises SystemExit if it did not run."""
    corpus, found = folder / name, folder / f"{name}-found"
    corpus.mkdir()
    found.mkdir()
    for number, seed in enumerate(seeds(PARSERS[name])):
        (corpus / str(number)).write_bytes(seed)
    command = [
        sys.executable, "-c", INSTRUMENTED, name, str(corpus), f"-artifact_prefix={found}/",
        f"-max_total_time={seconds}", f"-timeout={SECONDS}", f"-max_len={PARSERS[name].most}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    why = (done.stdout + done.stderr)[-1500:]
    contents = [path.read_bytes() for path in sorted(found.iterdir())]
    ended = DONE.search(done.stderr)
    if not ended and not contents:
        raise SystemExit(f"{name} was not fuzzed:\n{why}")
    print(f"{name}: {ended[0] if ended else ''}, {len(contents)} inputs that it cannot take", flush=True)
    for content in contents:
        print(f"{name} cannot take {json.dumps(content.decode('latin-1'))[:2000]}\n{why}", flush=True)
    return not contents


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("parser", nargs="*", help=f"of {', '.join(PARSERS)}; default: all")
    options.add_argument("--seconds", type=int, default=60, help="for each parser")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        taken = [run(name, chosen.seconds, Path(folder)) for name in chosen.parser or PARSERS]
    sys.exit(not all(taken))


if __name__ == "__main__":
    main()
