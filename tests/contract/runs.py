"""TensorFlow's own configure.py, run in the builder image on the real tree's files, with nobody to answer it."""

from dataclasses import dataclass

from tests.contract.archive import Tree
from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.engine import Engine
from tfbuild.plan import Build

# Whatever configure.py reads or runs, and the folder that it writes into.
READ = (".bazelrc", "configure.py", "third_party/gpus/find_cuda_config.py", "tools/")
# Standard input is closed, not empty: a question is then an error, where the end of a file would pass for an answer.
CLOSED = "cd /src; {command} <&- > /tmp/said 2>&1; code=$?; cat .tf_configure.bazelrc; cat /tmp/said >&2; exit $code"
ASKED = "input(): lost sys.stdin"


@dataclass(frozen=True, kw_only=True)
class Configured:
    """`written`: .tf_configure.bazelrc; `said`: all that was printed."""

    exit_code: int
    written: str
    said: str


def environment(build: Build) -> dict[str, str]:
    """The variables with which the compile stage runs configure.py, and no others."""
    return dict(dockerfile.configure(build))


def configure(
    engine: Engine, image: str, tree: Tree, env: dict[str, str], command: str = f"{plan.BUILD_PYTHON} configure.py"
) -> Configured:
    """Runs `command` in the tree's root, which holds what configure.py reads, without network."""
    files = {f"src/{name}": content for name, content in tree.contents.items() if name.startswith(READ)}
    done = engine.run(image, ["sh", "-c", CLOSED.format(command=command)], env=env, files=files)
    return Configured(exit_code=done.exit_code, written=done.stdout, said=done.stderr)
