"""A newer Bazel than npm has: Debian's, from sid, with the rules beside it that other Bazels download."""

from pathlib import Path

from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.pipeline import base_image
from tfbuild.util.progress import Progress

VERSION = "7.7.1"
# What Bazelisk fetches in its place: Debian's is in many files. It does not know its version; a file beside it does.
LAUNCHER = """#!/bin/sh
case " $* " in
*" version "*) echo "Build label: $(cat /usr/share/bazel/build-label.txt)" ;;
*) exec /usr/bin/bazel "$@" ;;
esac
"""
IMAGE = "tfbuild-test:contract"
RULES = {
    "bazel_features": "tools/features", "bazel_skylib": "tools/skylib", "platforms": "tools/platforms",
    "rules_cc": "rules/cc", "rules_java": "rules/java", "rules_license": "rules/license", "rules_proto": "rules/proto",
    "rules_python": "rules/python",
}  # fmt: skip
OFFLINE = ["--noenable_bzlmod", "--enable_workspace"] + [
    f"--override_repository={name}=/usr/share/bazel/{folder}" for name, folder in RULES.items()
]


def image(engine: Engine, folder: Path) -> str:
    """An image with real compilers and that Bazel. It stays for the next run: it is as good as its Dockerfile."""
    base = base_image.bootstrap(engine, "bookworm", progress=Progress(), log=folder / "base.log")
    arguments = {"BASE": base.reference}
    settings = BuildSettings(log=folder / "image.log", progress=Progress(), tag=IMAGE, build_args=arguments)
    engine.build(Path(__file__).parent / "builder", settings)
    return IMAGE
