"""An isolated Python runs no code of its packages by itself, finds the packages, and names what it left out."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tfbuild.in_container.smoke import isolated

FOLDER = Path(isolated.__file__).parents[1]
SHOW = """
import json, sys
sys.path.insert(0, sys.argv[1])
from smoke import isolated
isolated.add_site_packages()
import packaged
print(json.dumps([list(isolated.startup()), packaged.HERE]))
"""
NSPKG = "import sys, types, os;has_mfs = sys.version_info > (3, 5);p = 1\n"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A virtual environment's Python, with a package."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages(tmp_path) / "packaged.py").write_text("HERE = True\n")
    return tmp_path / "venv" / "bin" / "python"


def packages(folder: Path) -> Path:
    return folder / "venv" / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"


def start(python: Path, *options: str, **env: str) -> tuple[list[str], str]:
    """What startup() names, and what was printed before."""
    command = [str(python), *options, "-c", SHOW, str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin", **env})
    *before, last = done.stdout.splitlines()
    found, here = json.loads(last)
    assert here is True
    return found, "\n".join(before)


def test_a_plain_virtual_environment_runs_nothing(python: Path) -> None:
    assert start(python, "-I", "-S") == ([], "")


def test_code_of_sitecustomize_and_pth_files_is_not_run_but_named(python: Path, tmp_path: Path) -> None:
    folder = packages(tmp_path)
    (folder / "sitecustomize.py").write_text("print('forged')\n")
    (folder / "evil.pth").write_text("import sys; print('forged too')\n")
    (folder / "only-paths.pth").write_text("/nowhere\n# import\n")
    (folder / "old-nspkg.pth").write_text(NSPKG)
    (folder / "distutils-precedence.pth").write_text("import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = 1\n")
    found, printed = start(python, "-I", "-S")
    assert printed == ""
    assert [Path(path).name for path in found] == ["sitecustomize.py", "evil.pth"]
    # The test can fail: without isolation both run.
    assert set(start(python)[1].splitlines()) == {"forged", "forged too"}


def test_variables_and_the_working_folder_are_ignored(python: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('forged')\n")
    assert start(python, "-I", "-S", PYTHONPATH=str(tmp_path)) == ([], "")


def test_a_package_s_own_sitecustomize_is_named(python: Path, tmp_path: Path) -> None:
    (packages(tmp_path) / "sitecustomize").mkdir()
    (packages(tmp_path) / "sitecustomize" / "__init__.py").write_text("")
    found, _ = start(python, "-I", "-S")
    assert [Path(path).name for path in found] == ["__init__.py"]


def test_debian_s_own_sitecustomize_is_known(tmp_path: Path) -> None:
    file = tmp_path / "sitecustomize.py"
    file.write_text(isolated.DEBIAN)
    assert isolated._is_debians(str(file))
    file.write_text(isolated.DEBIAN + "print(1)\n")
    assert not isolated._is_debians(str(file))


def test_distutils_is_that_of_setuptools_where_the_standard_library_lacks_it(python: Path, tmp_path: Path) -> None:
    """As in Debian's python3.11-minimal, whose distutils is nearly empty: TensorFlow 2.14 imports distutils.spawn."""
    library = tmp_path / "lib"
    (library / "distutils").mkdir(parents=True)
    (library / "distutils" / "__init__.py").touch()
    assert not isolated.has_distutils(str(library))
    assert not isolated.has_distutils(str(tmp_path / "none"))
    (library / "distutils" / "spawn.py").touch()
    assert isolated.has_distutils(str(library))
    hack = packages(tmp_path) / "_distutils_hack"
    hack.mkdir()
    (hack / "__init__.py").write_text("def add_shim():\n    print('added')\n")
    show = SHOW.replace("isolated.add", "import os; os.__file__ = sys.argv[2] + '/os.py'\nisolated.add", 1)
    for place, printed in ((library, ""), (tmp_path / "none", "added")):
        command = [str(python), "-I", "-S", "-c", show, str(FOLDER), str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "\n".join(done.stdout.splitlines()[:-1]) == printed
