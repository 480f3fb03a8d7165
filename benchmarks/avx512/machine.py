"""A machine that Bochs emulates, with an image of the engine as its disk."""

import base64
import json
import os
import re
import shlex
import shutil
import string
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Linux reads MSR 0x1a0 (MISC_ENABLE) of an Intel CPU, which Bochs 2.7 does not know. Address, type, value at reset
# (high, low), reserved bits, ignored bits.
MSRS = "0x1a0 0 00000000 00000001 00000000 00000000 ffffffff ffffffff\n"
# Bochs 2.7 gives a wrong size of XSAVE's compact form, at which Linux stops: neither XSAVES (`noxsaves`) nor XSAVEC
# (bit 321 of the kernel's features).
KERNEL = "console=tty0 quiet mitigations=off nokaslr tsc=reliable lpj=4000000 noxsaves clearcpuid=321"
MODULES = ("ata_piix", "sd_mod", "crc32c_generic", "ext4")
BOOT = "default linux\nprompt 0\nlabel linux\n  kernel /vmlinuz\n  initrd /initrd\n  append "
ISOLINUX = ("/usr/lib/ISOLINUX/isolinux.bin", "/usr/lib/syslinux/modules/bios/ldlinux.c32")
# Bytes that the disk has beside the image's files.
SPARE = 100 * 2**20
SECONDS = 3 * 3600


@dataclass(frozen=True, kw_only=True)
class Step:
    """How a command in the emulated machine ended, and what it printed."""

    code: int
    output: str
    errors: str


def version() -> str:
    shown = subprocess.run(["bochs-bin", "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    found = re.search(rb"Bochs x86 Emulator (\S+)", shown.stdout)
    return f"Bochs {found[1].decode()}" if found else "Bochs"


def output(command: Sequence[str | Path]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# --- what boots ------------------------------------------------------------------------------------------------------


def unpacked_kernel(folder: Path) -> Path:
    """Download Debian's kernel and unpack it; return the folder of its modules, which has its version as its name."""
    package = re.search(r"linux-image-[\d.-]+-amd64", output(["apt-cache", "depends", "linux-image-amd64"]))
    assert package, "linux-image-amd64 depends on no kernel"
    target = folder / "kernel"
    target.mkdir()
    subprocess.run(["apt-get", "download", "-qq", package[0]], check=True, cwd=target)
    subprocess.run(["dpkg-deb", "--extract", next(target.glob("*.deb")), target], check=True)
    [modules] = (target / "lib" / "modules").iterdir()
    subprocess.run(["depmod", "--basedir", target, modules.name], check=True)
    return modules


def write_boot_image(image: str, modules: Path, program: str, folder: Path) -> None:
    """Write FOLDER/boot.iso: isolinux, the kernel, and a first process that runs the image with its own environment."""
    root, iso = folder / "root", folder / "iso"
    for path in (root, iso):
        shutil.rmtree(path, ignore_errors=True)
    for name in ("bin", "proc", "sys", "dev", "image", "modules"):
        (root / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "busybox", root / "bin" / "busybox")
    shutil.copy(HERE / "init.sh", root / "init")
    (root / "init").chmod(0o755)
    order = [path for name in MODULES for path in needed_modules(modules, name)]
    for path in order:
        shutil.copy(path, root / "modules")
    (root / "modules" / "order").write_text("".join(f"{path.name}\n" for path in dict.fromkeys(order)))
    (root / "environment").write_text("".join(f"export {shlex.quote(line)}\n" for line in environment(image)))
    (root / "program.py").write_text(program)
    iso.mkdir()
    shutil.copy(next(modules.parents[2].glob("boot/vmlinuz-*")), iso / "vmlinuz")
    for name in ISOLINUX:
        shutil.copy(name, iso)
    (iso / "isolinux.cfg").write_text(f"{BOOT}{KERNEL}\n")
    packed = "find . -print0 | cpio --null --create --format=newc --quiet | gzip"
    with (iso / "initrd").open("wb") as file:
        subprocess.run(["sh", "-c", packed], check=True, cwd=root, stdout=file)
    command = [
        "xorriso",
        "-as",
        "mkisofs",
        "-quiet",
        "-o",
        str(folder / "boot.iso"),
        "-b",
        "isolinux.bin",
        "-c",
        "boot.cat",
    ]
    subprocess.run([*command, "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", iso], check=True)


def needed_modules(modules: Path, name: str) -> list[Path]:
    """The files of a kernel module and of those that it needs, in the order in which they are loaded."""
    base = modules.parents[2]
    lines = output(["modprobe", "--dirname", base, "--set-version", modules.name, "--show-depends", name]).splitlines()
    return [Path(line.split()[1]) for line in lines if line.startswith("insmod ")]


def environment(image: str) -> Any:
    return json.loads(output(["docker", "image", "inspect", "--format", "{{json .Config.Env}}", image]))


@contextmanager
def disk(image: str, folder: Path) -> Iterator[Path]:
    """The image's files as a disk with one ext4 file system."""
    files, path = folder / "files", folder / "disk"
    container = output(["docker", "create", image]).strip()
    try:
        files.mkdir()
        with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as export:
            subprocess.run(["tar", "--extract", "--directory", files], check=True, stdin=export.stdout)
        size = sum(file.lstat().st_size + 4096 for file in files.rglob("*")) * 11 // 10 + SPARE
        with path.open("wb") as file:
            file.truncate(size - size % 4096)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", files, path], check=True)
        yield path
    finally:
        subprocess.run(["docker", "rm", container], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(files, ignore_errors=True)
        path.unlink(missing_ok=True)


# --- a run -----------------------------------------------------------------------------------------------------------


def run(model: str, path: Path, folder: Path) -> tuple[dict[str, Step], float]:
    """Boot Bochs' CPU `model`; return how the steps of init.sh ended by name, and the seconds of CPU time it took."""
    template = string.Template((HERE / "bochsrc").read_text())
    (folder / "bochsrc").write_text(template.substitute(cpu=model, folder=folder, disk=path))
    (folder / "msrs").write_text(MSRS)
    (folder / "commands").write_text("continue\n")
    seconds = boot(folder)
    serial = (folder / "serial").read_text(errors="replace")
    ended = steps(serial)
    if "avx512: ended" not in serial:
        log = (folder / "log").read_text(errors="replace")
        raise SystemExit(f"{model} ended early, after {[*ended]}\n{log[-2000:]}")
    return ended, seconds


def steps(serial: str) -> dict[str, Step]:
    """The steps of init.sh, as it writes them on the serial line."""
    return {
        found[1]: Step(code=int(found[2]), output=decoded(found[3]), errors=decoded(found[4]))
        for found in re.finditer(r"^avx512: (\w+) (\d+) (\S*) (\S*)\s*$", serial, re.MULTILINE)
    }


def decoded(text: str) -> str:
    return base64.b64decode(text).decode(errors="replace")


def boot(folder: Path) -> float:
    """Run Bochs until the emulated machine is off; return the seconds of CPU time that it took.

    Bochs shows the machine's screen on a terminal that it opens, and waits forever if nobody reads that.
    """
    before = os.times()
    command: list[str | Path] = ["bochs-bin", "-q", "-f", folder / "bochsrc", "-rc", folder / "commands"]
    with (folder / "errors").open("wb") as errors:
        bochs = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
    threading.Thread(target=read_screen, args=(folder / "errors", bochs), daemon=True).start()
    try:
        bochs.wait(SECONDS)
    finally:
        bochs.kill()
        bochs.wait()
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def read_screen(errors: Path, bochs: "subprocess.Popen[bytes]") -> None:
    while bochs.poll() is None:
        if found := re.search(rb"/dev/pts/\d+", errors.read_bytes()):
            with suppress(OSError), Path(os.fsdecode(found[0])).open("rb", buffering=0) as screen:
                while screen.read(4096):
                    pass
        time.sleep(0.5)
