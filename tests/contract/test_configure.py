"""TensorFlow's own configure.py with a plan's variables: it runs to its end, asks nothing, writes what is expected.

No CUDA toolkit is at hand. For that target its search is run as far as its refusal, and the questions after the search
by themselves.
"""

import shlex

import pytest

from tests.contract import plans, runs
from tests.contract.archive import RELEASE, Tree
from tfbuild import plan
from tfbuild.engine import Engine
from tfbuild.facts import releases
from tfbuild.plan import Build, configuration
from tfbuild.plan.tree import parse_rc

pytestmark = pytest.mark.engine

CLANG = "/usr/lib/llvm-16/bin/clang"
GCC = "/usr/bin/x86_64-linux-gnu-gcc-12"
LIBRARY = "/opt/build/lib/python3.11/site-packages"
# What main() does with CUDA after the toolkit has been found, in its order.
AFTER_THE_SEARCH = f"""
import os, configure
configure._TF_BAZELRC = ".tf_configure.bazelrc"
env = {{**os.environ, "CUDA_TOOLKIT_PATH": "{configuration.CUDA_PATH}"}}
configure.set_tf_cuda_compute_capabilities(env)
configure.set_tf_cuda_clang(env)
if env["TF_CUDA_CLANG"] == "1":
    clang = configure.set_clang_cuda_compiler_path(env)
    configure.disable_clang16_offsetof_extension(configure.retrieve_clang_version(clang))
else:
    configure.set_gcc_host_compiler_path(env)
configure.set_other_cuda_vars(env)
"""


@pytest.mark.parametrize("build", plans.every("cpu", "mkl"))
def test_configure_runs_to_its_end_and_writes_what_is_expected(
    build: Build, engine: Engine, builder: str, tree: Tree
) -> None:
    done = runs.configure(engine, builder, tree, runs.environment(build))
    assert done.exit_code == 0, done.said
    assert runs.ASKED not in done.said
    clang = (
        f"--action_env CLANG_COMPILER_PATH={CLANG} --repo_env=CC={CLANG} --repo_env=BAZEL_COMPILER={CLANG} "
        "--copt=-Wno-gnu-offsetof-extensions"
    )
    expected = (
        f"--action_env PYTHON_BIN_PATH={plan.BUILD_PYTHON} --action_env PYTHON_LIB_PATH={LIBRARY} "
        f"--python_path={plan.BUILD_PYTHON} {clang if build.compiler == 'clang-16' else ''}"
    )
    written = parse_rc(done.written)
    assert written["build"] == tuple(shlex.split(expected))
    assert {key for key in written if ":" in key} == {"build:opt"}


def test_config_opt_gives_host_tools_the_plans_flags_too(engine: Engine, builder: str, tree: Tree) -> None:
    env = runs.environment(plans.build("cpu"))
    written = parse_rc(runs.configure(engine, builder, tree, env).written)
    assert env["CC_OPT_FLAGS"] == "-Wno-sign-compare"
    assert written["build:opt"] == ("--copt=-Wno-sign-compare", "--host_copt=-Wno-sign-compare")


# --- CUDA ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", plans.every("cuda"))
def test_configure_looks_for_the_plans_cuda_and_asks_nothing_where_there_is_none(
    build: Build, engine: Engine, builder: str, tree: Tree
) -> None:
    folder = configuration.CUDA_PATH
    command = f"mkdir {folder}; {plan.BUILD_PYTHON} configure.py"
    done = runs.configure(engine, builder, tree, runs.environment(build), command)
    assert done.exit_code != 0
    assert runs.ASKED not in done.said
    assert "Invalid CUDA setting were provided 10 times in a row" in done.said
    assert f"Could not find any cuda.h matching version '{releases.cuda(RELEASE).version}'" in done.said
    # The toolkit's own folder, and the one into which NVIDIA's packages put cuDNN.
    assert f"\nof:\n        '/usr'\n        '{folder}'\n" in done.said


@pytest.mark.parametrize("build", plans.every("cuda"))
def test_what_configure_asks_after_it_has_found_cuda_is_answered(
    build: Build, engine: Engine, builder: str, tree: Tree
) -> None:
    command = f"{plan.BUILD_PYTHON} -c {shlex.quote(AFTER_THE_SEARCH)}"
    done = runs.configure(engine, builder, tree, runs.environment(build), command)
    assert done.exit_code == 0, done.said
    compiler = {
        "gcc-12": f"--action_env GCC_HOST_COMPILER_PATH={GCC} --config=cuda",
        "clang-16": f"--config=cuda_clang --action_env CLANG_CUDA_COMPILER_PATH={CLANG} "
        "--copt=-Wno-gnu-offsetof-extensions --config=cuda_clang",
    }[build.compiler]
    capabilities = releases.cuda(RELEASE).capabilities
    assert parse_rc(done.written)["build"] == tuple(
        shlex.split(f"--action_env TF_CUDA_COMPUTE_CAPABILITIES={capabilities} {compiler}")
    )
