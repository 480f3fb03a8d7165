"""What stands between the command line and the rest: options in, one call, data out.

Data is printed to stdout; progress, notes and errors go to stderr.
"""

import json
import os
import select as polling
import signal
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from invoke.exceptions import Exit

from tfbuild import facts
from tfbuild import plan as planning
from tfbuild.cpu import Cpu, isa
from tfbuild.cpu import detect as detect_cpu
from tfbuild.errors import EngineMissing, Interrupted, TfbuildError, UnknownCpu, UsageError
from tfbuild.facts import base_images, releases
from tfbuild.plan import Build, Request
from tfbuild.util.quantities import positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import DataclassInstance

    from tfbuild.ci.matrix import Matrix
    from tfbuild.engine.selection import EngineChoice
    from tfbuild.oci.client import Registry
    from tfbuild.pipeline.run import Run
    from tfbuild.publish.inventory import Entry
    from tfbuild.verify.records import Report

WORK = Path("build")
REPORTS = Path("reports")
T = TypeVar("T", bound="DataclassInstance")


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
                "masked": [{"feature": item.feature, "reason": item.reason} for item in isa.hidden(cpu)],
                "disagreements": [
                    {"feature": item.feature, "held": item.held, "rule": item.rule, "reason": item.reason}
                    for item in cpu.disagreements
                ],
            }
        )
        return
    print(f"{cpu.model} ({cpu.vendor}, {cpu.arch})")
    print(f"level     {cpu.level or 'below ' + facts.levels(cpu.arch)[0].name}")
    print(f"features  {' '.join(cpu.features)}")
    print(f"unused    {' '.join(unused) or 'nothing'} (by TensorFlow's official wheel)")
    for item in isa.hidden(cpu):
        print(f"masked    {item.feature}: {item.reason}")
    for row in cpu.disagreements:
        print(f"disputed  {row.feature}: {row.reason}")


def copts(*, cpu: str, cpuinfo: str, platform: str, json: bool, **options: str) -> None:
    place = planning.choose_platform(Request(platform=platform))
    request = Request(cpu=cpu or "host", cpuinfo=cpuinfo, platform=place)
    asked = planning.asked_set(request, planning.PLATFORMS[place], host_cpu(cpuinfo))
    assert asked is not None  # "host" is asked for where nothing else is
    release = releases.find(options["release"]) if options["release"] else ""
    flags = isa.flags(
        asked,
        options["compiler"] or base_images.compiler(release),
        release=release,
        prefer_vector_width=options["prefer_vector_width"],
        named=cpu,
    )
    if json:
        out(
            {
                "compiler": flags.compiler,
                "instruction_set": flags.instruction_set.name,
                "copts": list(flags.copts),
                "dropped": [{"feature": item.feature, "reason": item.reason} for item in flags.dropped],
                "notes": list(flags.notes),
            }
        )
        return
    print(" ".join(flags.copts))
    for item in flags.dropped:
        say(f"dropped {item.feature}: {item.reason}")
    for note in flags.notes:
        say(f"note: {note}")


def explain(*, json: bool, **options: Any) -> None:
    from tfbuild.plan import explain as explaining

    found = explaining.explain(Request(**options))
    for note in found.notes:
        say(f"note: {note}")
    out(found.to_json()) if json else explaining.show(found)


def fleet(
    words: tuple[str, ...], *, images: str, timeout: str, ssh_config: str, skip_unreachable: bool, json: bool
) -> None:
    from tfbuild import fleet as fleets
    from tfbuild.fleet import hosts

    most, seconds = positive("images", images), positive("timeout", timeout)
    config = Path(ssh_config) if ssh_config else None
    found = hosts.gather(words, timeout=seconds, config=config, skip=skip_unreachable)
    for one in found.skipped:
        say(f"skipped {one.name}: {one.reason}" + (f"; {one.hint}" if one.hint else ""))
    chosen = fleets.choose(found.hosts, most, found.skipped)
    print(fleets.to_json(chosen)) if json else fleets.show(chosen)


def host_cpu(cpuinfo: str) -> Cpu | None:
    """The CPU that "host" means; None where this machine's cannot be read (then only --cpu host is refused)."""
    if cpuinfo:
        return detect_cpu(Path(cpuinfo))
    try:
        return detect_cpu()
    except UnknownCpu:
        return None


def running_cpu(cpuinfo: str, ca_cert: str, chosen: "EngineChoice") -> Cpu:
    """The CPU that what is pulled will run on: the engine's machine's, where the user names none."""
    if not cpuinfo and chosen.elsewhere():
        from tfbuild.pipeline import Maker
        from tfbuild.pipeline.run import Run

        return Maker(run=Run(engine=chosen, ca=certificates(ca_cert))).cpu()
    return detect_cpu(Path(cpuinfo) if cpuinfo else None)


def leave_where_nobody_reads() -> None:
    """Ends the process where whoever read its output has gone (`| head`), as one that SIGPIPE kills ends."""
    poll = polling.poll()
    poll.register(sys.stdout, 0)
    if poll.poll(0):
        # Python flushes stdout once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Exit(code=128 + signal.SIGPIPE)


def request_of(options: Mapping[str, Any]) -> Request:
    """What the planning options ask for."""
    return _taken(Request, options)


def run_of(options: Mapping[str, Any]) -> "Run":
    """What the other options of the verbs that make images ask for."""
    from tfbuild.pipeline import run

    return run.run_of(_taken(run.RunRequest, options), certificates(options["ca_cert"]))


def _taken(kind: type[T], options: Mapping[str, Any]) -> T:
    """The options that are fields of a dataclass, as one of its kind; Invoke has lists."""
    known = {field.name: options[field.name] for field in fields(kind) if field.name in options}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()})


def select(request: Request) -> Build:
    """The build that is asked for, on this machine."""
    return planning.select(request, host_cpu(request.cpuinfo))


def select_for(request: Request, run: "Run") -> Build:
    """As select, for the engine of a run: where it is on another machine, by that one's platform and CPU."""
    if not run.engine.elsewhere():
        return select(request)
    from tfbuild.pipeline import Maker

    made = Maker(run=run)
    request = replace(request, platform=request.platform or made.engine.platform)
    if request.cpuinfo or request.cpu not in ("", "host") or request.wheel not in ("", "source"):
        return select(request)
    return planning.select(request, made.cpu())


def plan(*, json: bool, **options: Any) -> None:
    chosen = select(request_of(options))
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
            print(f"{key.replace('_', ' '):21}{_line(value)}")
    for note in build.notes:
        print(f"{'note':21}{note}")


def _line(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def dockerfile(*, output: str, json: bool, **options: Any) -> None:
    from tfbuild.context import dockerfile as rendering

    chosen = select(request_of(options))
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


def select_and_tell(request: Request, run: "Run") -> Build:
    chosen = select_for(request, run)
    for note in chosen.notes:
        say(f"note: {note}")
    return chosen


def unheeded(build: Build, options: Mapping[str, Any]) -> list[str]:
    """Notes on options for a compile where nothing is compiled: a CI matrix gives all its rows the same ones."""
    from tfbuild.pipeline.run import RunRequest

    used = _taken(RunRequest, options).for_compiling() if build.wheel.kind != "source" else ()
    return [f"{', '.join(used)}: of no use, for --wheel {build.wheel.kind} compiles nothing"] if used else []


def build(*, json: bool, dry_run: bool, **options: Any) -> None:
    from tfbuild.pipeline import Maker

    run = run_of(options)
    chosen = select_and_tell(request_of(options), run)
    made = Maker(run=run)
    for note in unheeded(chosen, options):
        say(f"note: {note}")
    if dry_run:
        context = made.render(chosen)
        out([chosen.to_json()]) if json else show_plan(chosen)
        say(f"dry run: the build context is in {context.folder}; nothing was started")
        return
    result = made.build(chosen)
    finish(result.report, result.image, json=json)


def wheel(*, output: str, json: bool, **options: Any) -> None:
    from tfbuild.pipeline import Maker

    run = run_of(options)
    chosen = select_and_tell(request_of(options), run)
    made = Maker(run=run).wheel(chosen, Path(output))
    if json:
        out({"id": chosen.id, "wheel": str(made.wheel), "sidecar": str(made.sidecar), "sha256": made.sha256})
    else:
        print(made.wheel)


def bundle(*, output: str, wheel_only: bool, dry_run: bool, json: bool, **options: Any) -> None:
    from tfbuild import pipeline

    run = run_of(options)
    chosen = select_and_tell(request_of(options), run)
    if run.bundle:
        raise UsageError("a bundle is not filled from another one", hint="copy the folder; or --mirror URL")
    if run.network not in ("", "host"):
        raise UsageError(
            f"what fills a bundle is served on this machine, which --network {run.network} cannot reach",
            hint="leave out --network",
        )
    builds = pipeline.downloads(chosen, wheel_only=wheel_only)
    identifiers = [build.id for build in builds]
    if dry_run:
        out({"folder": output, "builds": identifiers}) if json else print(*identifiers, sep="\n")
        say(f"dry run: what these builds download would go to {output}; nothing was started")
        return
    filled = pipeline.Maker(run=run).bundle(builds, Path(output))
    if json:
        out({"folder": output, "builds": identifiers, "files": filled.files, "bytes": filled.size})
    else:
        print(output)
        say(f"{filled.files} files, {filled.size / 1e9:.2f} GB; `--mirror {output}` builds from them without a network")


def verify(image: str, *, json: bool, registry: str, pull: bool, context: str, signed: str, **options: Any) -> None:
    if registry:
        verify_published(image, registry, pull=pull, context=context, signed=signed, json=json, **options)
        return
    if pull or context or signed:
        raise UsageError("--pull, --context and --signed are for an image in a registry", hint="--registry HOST/PATH")
    from tfbuild.pipeline import Maker

    finish(Maker(run=run_of(options)).verify(image), image, json=json)


def verify_published(
    image: str, registry: str, *, pull: bool, context: str, signed: str, json: bool, **options: Any
) -> None:
    """Whether a registry's image is the one described; with `pull`, whether its files are, and all that verify does."""
    from tfbuild.pipeline import Maker
    from tfbuild.publish import described, signing

    run = run_of(options)
    words = signing.options(signed)
    place = registry_of(registry, options["ca_cert"])
    found = described.check(place, image, REPORTS)
    for note in found.notes:
        say(f"note: {note}")
    if context:
        described.refuse_outdated(found, context)
    described.refuse_unfinished(found)
    if words:
        signing.demand(found.reference, words, ca=place.ca)
    if not pull:
        if json:
            out({**found.to_json(), "signed": True if words else None})
            return
        print(f"{found.reference}")
        say(f"{found.id} is the image that its provenance and its SBOM describe")
        return
    made = Maker(run=run)
    described.pull(made.engine, place, found, made.progress)
    finish(made.verify(found.reference), found.reference, json=json)


def sbom(image: str, *, engine: str, output: str, json: bool) -> None:
    from tfbuild.engine import Engine
    from tfbuild.engine import selection as choice
    from tfbuild.publish import attachments
    from tfbuild.publish import sbom as bills

    connected = Engine.connect(chosen=choice.choose(engine))
    content = bills.of_image(connected, connected.image(image), image)
    if output:
        attachments.write(Path(output), content)
    if json and output:
        out({"image": image, "sbom": output, "components": len(bills.named(content))})
    elif output:
        print(output)
    else:
        sys.stdout.write(content.decode())


def finish(report: "Report | None", image: str, *, json: bool) -> None:
    """Print the outcome; a report that fails ends in VerificationFailed after it was printed."""
    from tfbuild.verify import report as reporting

    if report is None:
        out({"image": image, "verified": False}) if json else print(image)
        return
    if json:
        sys.stdout.write(reporting.to_json(report) + "\n")
    else:
        reporting.show(report, sys.stdout)
        say(f"image {image}, report {reporting.path(report, REPORTS).with_suffix('.md')}")
    reporting.raise_if_failed(report, image)


def inspect(subject: str, *, engine: str, full: bool, json: bool) -> None:
    from tfbuild.binary import inspector
    from tfbuild.engine import Engine
    from tfbuild.engine import selection as choice
    from tfbuild.util.progress import Progress
    from tfbuild.verify import libraries

    if inspector.is_image(subject):
        found = libraries.image(Engine.connect(chosen=choice.choose(engine)), subject, full=full, progress=Progress())
    else:
        found = inspector.inspect(Path(subject), full=full, progress=Progress())
    if json:
        out(found.to_json())
        return
    print(f"{found.subject}: compiled for {found.main.name}")
    for name, library in found.libraries.items():
        print(f"\n{name}: {library.how()}")
        print(f"{'feature':20}{'per 1000':>10}{'regions':>10}")
        for row in library.families:
            mark = "  compiled for it" if row.compiled else ""
            print(f"{row.feature:20}{row.rate:10.3f}{100 * row.share:8.1f} %{mark}")
    if found.guard and found.guard.compiled:
        print(f"\nguard: compiled for {' '.join(found.guard.compiled)}; unused {' '.join(found.guard.unused)}")
        print(f"guard: {'; '.join(found.disagreements()) or 'agrees with the code'}")


def bench(
    image: str,
    *,
    only: list[str],
    name: str,
    pyperf: str,
    list: bool,
    dry_run: bool,
    json: bool,
    model: list[str],
    batch_size: str,
    **options: Any,
) -> None:
    from tfbuild.bench import command

    chosen = command.settings(**options, ca=certificates(""))
    if list or dry_run:
        command.show_rows(only, chosen, json=json, dry_run=dry_run, named=model, batch=batch_size)
    elif not image:
        raise UsageError("bench needs an image", hint="invoke bench IMAGE; what can be measured: invoke bench --list")
    else:
        command.run(image, only, chosen, REPORTS, json=json, name=name, pyperf=pyperf, named=model, batch=batch_size)


def compare(reports: tuple[str, ...], *, fail_if: list[str], html: str, json: bool) -> None:
    from tfbuild.bench import command

    command.compare(reports, fail_if, html, json=json)


def advise(report: str, *, env_file: str, html: str, pyperf: str, json: bool) -> None:
    from tfbuild.bench import command

    command.export(report, html=html, pyperf=pyperf)
    command.advise(report, env_file, json=json)


def engine(*, stop: bool, json: bool) -> None:
    from tfbuild.engine import daemon as host
    from tfbuild.util.progress import Progress

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


def registry_of(given: str, ca_cert: str) -> "Registry":
    from tfbuild.oci.client import Registry, Repository

    name = given or os.environ.get("TFBUILD_REGISTRY", "")
    if not name:
        raise UsageError("no registry is named", hint="--registry HOST/PATH, or TFBUILD_REGISTRY")
    return Registry(Repository.parse(name), ca=certificates(ca_cert))


def push(
    image: str,
    *,
    engine: str,
    registry: str,
    ca_cert: str,
    force: bool,
    sign: bool,
    sign_options: str,
    indexes: bool,
    dry_run: bool,
    json: bool,
) -> None:
    from tfbuild import publish
    from tfbuild.engine import Engine
    from tfbuild.engine import selection as choice
    from tfbuild.publish import signing
    from tfbuild.util.progress import Progress

    chosen = choice.choose(engine)
    place = registry_of(registry, ca_cert)
    words = signing.options(sign_options) if sign or sign_options else None
    if indexes and (force or words is not None):
        raise UsageError("--indexes pushes no image", hint="leave out --force and --sign")
    if dry_run:
        ref, there = publish.rehearse(place, image)
        if json:
            out({"image": ref, "there": there or None})
            return
        print(ref)
        say(f"may be pushed; {f'the tag is {there} now' if there else 'there is no such tag yet'}")
        return
    if indexes:
        done = publish.finish(place, image, REPORTS, say)
    else:
        connected = Engine.connect(chosen=chosen)
        done = publish.push(connected, image, place, REPORTS, force=force, progress=Progress(), sign=words)
    if json:
        out(
            {
                "image": done.ref,
                "digest": done.digest,
                "uploaded": done.uploaded,
                "indexes": list(done.moved),
                "sbom": done.papers.sbom if done.papers else None,
                "provenance": done.papers.provenance if done.papers else None,
                "signed": done.signed,
            }
        )
        return
    print(f"{done.ref}@{done.digest}")
    say(f"{'pushed' if done.uploaded else 'was there already'}; in {', '.join(done.moved)}")


def pull(
    *,
    engine: str,
    registry: str,
    ca_cert: str,
    release: str,
    target: str,
    python: str,
    cpuinfo: str,
    signed: str,
    dry_run: bool,
    json: bool,
) -> None:
    from tfbuild import publish
    from tfbuild.engine import Engine
    from tfbuild.engine import selection as engines
    from tfbuild.publish import signing
    from tfbuild.util.progress import Progress

    chosen = engines.choose(engine)
    words = signing.options(signed)
    place = registry_of(registry, ca_cert)
    host = running_cpu(cpuinfo, ca_cert, chosen)
    features = frozenset(isa.of_cpu(host).features)
    choice = publish.select(place, host, features, release=release, target=target, python=python)
    for one in choice.passed_over:
        say(f"not {one.id}: {one.reason}")
    told: dict[str, Any] = {
        "id": None,
        "reference": None,
        "image": None,
        "passed_over": [{"id": one.id, "reason": one.reason} for one in choice.passed_over],
        "nearest": choice.nearest.id if choice.nearest else None,
        "missing": list(choice.missing),
        "signed": None,
    }
    if choice.best is None:
        if json:
            out(told)
        raise publish.nothing_fits(place, choice)
    digest = f"{place.repository}@{choice.best.digest}"
    if words:
        signing.demand(digest, words, ca=place.ca)
    ref = "" if dry_run else publish.pull(Engine.connect(chosen=chosen), place, choice, Progress())
    if json:
        known = {"id": choice.best.id, "reference": digest, "image": ref or None}
        out({**told, **known, "signed": True if words else None})
    else:
        print(ref or digest)


def images(*, engine: str, registry: str, ca_cert: str, json: bool) -> None:
    from tfbuild.engine import Engine
    from tfbuild.engine import selection as choice
    from tfbuild.publish import inventory

    chosen = choice.choose(engine)
    named = registry or os.environ.get("TFBUILD_REGISTRY")
    place = registry_of(registry, ca_cert) if named else None
    connected: Engine | None = None
    try:
        connected = Engine.connect(chosen=chosen)
        host = running_cpu("", ca_cert, chosen) if chosen.elsewhere() else host_cpu("")
    except EngineMissing as error:
        if place is None:
            raise
        connected, host = None, host_cpu("")
        say(f"note: {error.reason}: the registry alone is listed, for the CPU of this machine")
    features = frozenset(isa.of_cpu(host).features) if host else frozenset()
    found = inventory.local(connected, REPORTS, host, features) if connected is not None else []
    if place is not None:
        found += inventory.remote(place, host, features, say)
    if json:
        out([entry.to_json() for entry in found])
    else:
        show_images(found)


def show_images(entries: "Sequence[Entry]") -> None:
    from rich.console import Console
    from rich.table import Table

    from tfbuild.publish import inventory

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    table = Table("image", "for", "size", "age", "verified", "runs here", box=None, pad_edge=False)
    for entry in entries:
        verified = {True: "yes", False: "no", None: "by who pushed it"}[entry.verified]
        if entry.offered is False:
            verified = "not offered"
        runs = "yes" if entry.runs else f"no, lacks {' '.join(entry.lacks)}"
        table.add_row(
            entry.name,
            entry.instruction_set,
            f"{entry.size / 1e6:,.0f} MB",
            inventory.age(entry.created),
            verified,
            runs,
        )
    console.print(table)


def prune(*, engine: str, keep: list[str], dry_run: bool, yes: bool, json: bool) -> None:
    from tfbuild.engine import Engine
    from tfbuild.engine import selection as choice
    from tfbuild.publish import inventory

    connected = Engine.connect(chosen=choice.choose(engine))
    going = inventory.prunable(inventory.local(connected, REPORTS, None, frozenset()), keep)
    for entry in going:
        say(f"{entry.name if entry.name != inventory.UNNAMED else entry.digest}  {inventory.age(entry.created)}")
    if not (dry_run or yes or not going) and not confirmed(f"remove these {len(going)} images?"):
        raise Interrupted("nothing was removed")
    kept = {} if dry_run else inventory.remove(connected, going)
    removed = [] if dry_run else [entry.name for entry in going if entry not in kept]
    if json:
        out({"removed": removed, "going": [entry.name for entry in going]})
    else:
        say(f"would remove {len(going)} images" if dry_run else f"removed {len(removed)} images")
    if kept:
        told = "; ".join(f"{entry.name}: {reason}" for entry, reason in kept.items())
        raise TfbuildError(f"{len(kept)} images stay: {told}", hint="end what uses them, and prune again")


def confirmed(question: str) -> bool:
    """The user's answer; UsageError where nobody can be asked."""
    if not sys.stdin.isatty():
        raise UsageError("nobody is here to be asked", hint="--yes, or --dry-run to see what would go")
    say(f"{question} [y/N]")
    return input().strip().lower() in ("y", "yes")


def _images(file: str, options: dict[str, list[str]]) -> tuple[tuple[str, str], ...]:
    """Platform and instruction set of each image in the file that `invoke fleet --json` wrote."""
    from tfbuild import fleet as fleets

    if used := [f"--{name}" for name in ("cpu", "platform", "wheel") if options[name]]:
        raise UsageError(f"{', '.join(used)}: the images of --fleet have their own", hint="leave one of them out")
    return tuple((image.platform, image.cpu) for image in fleets.read(Path(file)).images)


def matrix(
    root: Path,
    *,
    format: str,
    output: str,
    changed: str,
    runner: "Sequence[str]" = (),
    fleet: str = "",
    **options: list[str],
) -> None:
    from tfbuild.ci import matrix as rows

    if format not in rows.FORMATS:
        raise UsageError(f"unknown format {format!r}", hint=f"one of: {', '.join(rows.FORMATS)}")
    if runner and format not in ("github", "gitlab"):
        raise UsageError("--runner names machines of jobs", hint="--format github or gitlab")
    asked = {name if name == "only" else f"{name}s": tuple(values) for name, values in options.items()}
    found = rows.select(rows.Asked(**asked, images=_images(fleet, options) if fleet else ()))
    if changed:
        words = [f"--{name}={value}" for name, values in options.items() for value in values]
        words += [f"--fleet={Path(fleet).resolve()}"] if fleet else []
        found = rows.changed(found, changed, words, root)
    for line in rows.refusals(found):
        say(line)
    if format == "json":
        out(rows.to_json(found))
    elif format == "bake":
        folder = Path(output)
        rows.write_contexts(found, folder, lambda identifier: say(f"{folder / identifier}"))
        print(rows.to_bake(found, folder))
    else:
        found = show_jobs(found, format, runner)
    say(f"{len(found.rows)} rows")


def show_jobs(found: "Matrix", system: str, runner: "Sequence[str]") -> "Matrix":
    """Prints the jobs of a CI system; the rows that it has a machine for."""
    from tfbuild.ci import matrix as rows

    schedule = rows.schedule(found, system, runner)
    print(rows.to_github(schedule) if system == "github" else rows.to_gitlab(schedule))
    for note in schedule.notes:
        say(f"note: {note}")
    return replace(found, rows=tuple(build for build, _ in schedule.rows))


def dockerfiles(folder: Path, *, check: bool) -> None:
    from tfbuild.context import committed

    stale = committed.stale(folder) if check else committed.write(folder)
    for name in stale:
        print(name)
    if check and stale:
        raise TfbuildError(
            "files under dockerfiles/ are not what the facts and templates say now", hint="invoke dockerfiles"
        )


def support(root: Path, *, check: bool, json: bool) -> None:
    from tfbuild.plan import support as table

    found = list(table.rows())
    text, path = table.to_markdown(found), root / table.FILE
    if check:
        if not _up_to_date(path, text):
            raise TfbuildError(f"{table.FILE} is not what the plans say now", hint="invoke docs")
    elif json:
        out(table.to_json(found))
    else:
        print(text, end="")


def docs(root: Path, *, check: bool) -> None:
    from tfbuild.cli import exit_codes
    from tfbuild.plan import support as table

    pages = {table.FILE: table.to_markdown(table.rows()), exit_codes.FILE: exit_codes.to_markdown()}
    stale = [name for name, text in pages.items() if not _up_to_date(root / name, text)]
    if check and stale:
        raise TfbuildError(f"not up to date: {', '.join(map(str, stale))}", hint="invoke docs")
    for name in stale:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(pages[name], encoding="utf-8")
        print(name)


def _up_to_date(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def test(root: Path, path: str, *, pure: bool, nightly: bool) -> None:
    from tfbuild.cli import testing

    testing.run(root, path=path, pure=pure, nightly=nightly)
