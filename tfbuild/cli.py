"""What stands between the command line and the rest: options in, one call, data out.

Data is printed to stdout; progress, notes and errors go to stderr.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfbuild import facts, isa
from tfbuild import plan as planning
from tfbuild.cpu import Cpu
from tfbuild.cpu import detect as detect_cpu
from tfbuild.errors import TfbuildError, UnknownCpu, UsageError
from tfbuild.plan import Build, Request

if TYPE_CHECKING:
    from tfbuild.pipeline import Maker
    from tfbuild.proof import Report

WORK = Path("build")
REPORTS = Path("reports")
DEFAULT_COMPILER = "gcc-12"


def out(data: object) -> None:
    """One JSON document to stdout."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """One line of talk to stderr."""
    print(text, file=sys.stderr)


def detect(*, cpuinfo: str, json: bool) -> None:
    cpu = detect_cpu(Path(cpuinfo) if cpuinfo else None)
    unused = planning.unused_by_official_wheel(cpu)
    if json:
        out(
            {
                "vendor": cpu.vendor,
                "model": cpu.model,
                "arch": cpu.arch,
                "level": cpu.level or None,
                "features": list(cpu.features),
                "unused_by_official_wheel": list(unused),
            }
        )
        return
    print(f"{cpu.model} ({cpu.vendor}, {cpu.arch})")
    print(f"level     {cpu.level or 'below ' + facts.levels(cpu.arch)[0].name}")
    print(f"features  {' '.join(cpu.features)}")
    print(f"unused    {' '.join(unused) or 'nothing'} (by TensorFlow's official wheel)")
    for item in isa.hidden(cpu):
        print(f"masked    {item.feature}: {item.reason}")


def copts(*, cpu: str, cpuinfo: str, compiler: str, platform: str, json: bool) -> None:
    place = planning.choose_platform(Request(target="cpu", platform=platform), "cpu")
    request = Request(cpu=cpu or "host", cpuinfo=cpuinfo, platform=place)
    asked = planning.asked_set(request, planning.PLATFORMS[place], host_cpu(cpuinfo))
    assert asked is not None  # "host" is asked for where nothing else is
    flags = isa.flags(asked, compiler or DEFAULT_COMPILER)
    if json:
        out(
            {
                "compiler": flags.compiler,
                "instruction_set": asked.name,
                "copts": list(flags.copts),
                "dropped": [{"feature": item.feature, "reason": item.reason} for item in flags.dropped],
            }
        )
        return
    print(" ".join(flags.copts))
    for item in flags.dropped:
        say(f"dropped {item.feature}: {item.reason}")


def host_cpu(cpuinfo: str) -> Cpu | None:
    """The CPU that "host" means; None where this machine's cannot be read (then only --cpu host is refused)."""
    if cpuinfo:
        return detect_cpu(Path(cpuinfo))
    try:
        return detect_cpu()
    except UnknownCpu:
        return None


def select(options: dict[str, Any]) -> Build:
    """The build that the planning options ask for."""
    known: dict[str, Any] = {key: options[key] for key in Request.__dataclass_fields__ if key in options}
    lists = {key: tuple(value) for key, value in known.items() if isinstance(value, list)}
    request = Request(**{**known, **lists})
    return planning.select(request, host_cpu(request.cpuinfo))


def plan(*, json: bool, **options: Any) -> None:
    chosen = select(options)
    if json:
        out([chosen.to_json()])
        return
    show_plan(chosen)


def show_plan(build: Build) -> None:
    """The plan as aligned lines on stdout; empty fields are left out."""
    shown: dict[str, object] = {"id": build.id} | {
        key: value for key, value in build.to_json().items() if key not in ("id", "notes", "wheel")
    }
    shown["wheel"] = " ".join((build.wheel.kind, build.wheel.requirement, *build.wheel.constraints)).strip()
    for key, value in shown.items():
        if value:
            print(f"{key.replace('_', ' '):18}{_line(value)}")
    for note in build.notes:
        print(f"{'note':18}{note}")


def _line(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def dockerfile(*, output: str, json: bool, **options: Any) -> None:
    from tfbuild import dockerfile as rendering

    chosen = select(options)
    context = rendering.write(chosen, Path(output) if output else WORK / chosen.id / "context")
    if json:
        out({"id": chosen.id, "folder": str(context.folder), "digest": context.digest})
    else:
        print(context.folder)


def certificates(given: str) -> Path | None:
    """The CA file to hand to the engine: --ca-cert, else SSL_CERT_FILE where it is set."""
    name = given or os.environ.get("SSL_CERT_FILE", "")
    path = Path(name) if name else None
    if path is not None and not path.is_file():
        raise UsageError(f"no CA certificates at {path}", hint="--ca-cert FILE or SSL_CERT_FILE must name a PEM file")
    return path


def maker(options: dict[str, Any], *, verify_images: bool = True) -> "Maker":
    """What makes images by the options of the verbs that do."""
    from tfbuild import compiling, pipeline

    return pipeline.Maker(
        base=options["base"],
        work=WORK,
        reports=REPORTS,
        options=compiling.options(
            mirror=options["mirror"],
            network=options["network"],
            jobs=options.get("jobs", ""),
            time_limit=options.get("time_limit", ""),
            ca=certificates(options["ca_cert"]),
        ),
        disk=gigabytes(options.get("need_disk", "")),
        verify_images=verify_images,
        reverify=options.get("reverify", False),
        no_cache=options.get("no_cache", False),
    )


def gigabytes(text: str) -> int:
    """--need-disk as bytes; 0 where it is not given."""
    if text and not text.isdigit():
        raise UsageError(f"--need-disk {text!r} is no number of gigabytes", hint="--need-disk 40")
    return int(text or 0) * 10**9


def select_and_tell(options: dict[str, Any]) -> Build:
    chosen = select(options)
    for note in chosen.notes:
        say(f"note: {note}")
    return chosen


def build(*, json: bool, dry_run: bool, no_verify: bool, **options: Any) -> None:
    chosen = select_and_tell(options)
    made = maker(options, verify_images=not no_verify)
    if dry_run:
        context = made.render(chosen)
        out([chosen.to_json()]) if json else show_plan(chosen)
        say(f"dry run: the build context is in {context.folder}; nothing was started")
        return
    result = made.build(chosen)
    finish(result.report, result.image, json=json)


def wheel(*, output: str, json: bool, **options: Any) -> None:
    chosen = select_and_tell(options)
    made = maker(options).wheel(chosen, Path(output))
    if json:
        out({"id": chosen.id, "wheel": str(made.wheel), "sidecar": str(made.sidecar), "sha256": made.sha256})
    else:
        print(made.wheel)


def verify(image: str, *, json: bool, **options: Any) -> None:
    finish(maker({**options, "reverify": True}).verify(image), image, json=json)


def finish(report: "Report | None", image: str, *, json: bool) -> None:
    """Print the outcome; a report that fails ends in VerificationFailed after it was printed."""
    from tfbuild import report as reporting

    if report is None:
        out({"image": image, "verified": False}) if json else print(image)
        return
    if json:
        sys.stdout.write(reporting.to_json(report) + "\n")
    else:
        reporting.show(report, sys.stdout)
        say(f"image {image}, report {reporting.path(report, REPORTS).with_suffix('.md')}")
    reporting.raise_if_failed(report, image)


def bench(image: str, *, only: list[str], list: bool, dry_run: bool, json: bool, **options: Any) -> None:
    from tfbuild.bench import command

    chosen = command.settings(**options)
    if list or dry_run:
        command.show_rows(only, chosen, json=json, dry_run=dry_run)
    else:
        command.run(image, only, chosen, REPORTS, json=json)


def compare(first: str, second: str, *, fail_if: list[str], json: bool) -> None:
    from tfbuild.bench import compare as comparing

    comparing.run(first, second, fail_if, json=json)


def advise(report: str, *, env_file: str, json: bool) -> None:
    from tfbuild.bench import advise as advising

    advising.run(report, env_file, json=json)


def engine(*, stop: bool, json: bool) -> None:
    from tfbuild.engine import host
    from tfbuild.engine.progress import Progress

    progress = Progress()
    if stop:
        stopped = host.stop(progress)
        if json:
            out({"stopped": stopped})
            return
        say("stopped the engine that tfbuild had started" if stopped else "no engine of tfbuild's own is running")
        return
    answer = host.ensure(progress)
    if json:
        out({"version": answer.version, "platform": answer.platform})
    else:
        say(f"engine {answer.version} ({answer.platform}) answers")


def dockerfiles(folder: Path, *, check: bool) -> None:
    from tfbuild import committed

    stale = committed.stale(folder) if check else committed.write(folder)
    for name in stale:
        print(name)
    if check and stale:
        raise TfbuildError(
            "files under dockerfiles/ are not what the facts and templates say now", hint="invoke dockerfiles"
        )


def test(root: Path, *, pure: bool) -> None:
    """Lint, types, generated files and tests, each a process of its own; the first that fails ends it."""
    python = sys.executable
    steps = [
        [python, "-m", "ruff", "check", "."],
        [python, "-m", "ruff", "format", "--check", "."],
        [python, "-m", "mypy"],
        [python, "-m", "invoke", "dockerfiles", "--check"],
        [python, "-m", "pytest", *(["-m", "not engine"] if pure else [])],
    ]
    for step in steps:
        say(f"$ {' '.join(step[1:])}")
        code = subprocess.run(step, cwd=root, check=False).returncode
        if code:
            raise TfbuildError(f"`{' '.join(step[2:])}` failed", hint="its output is above")
