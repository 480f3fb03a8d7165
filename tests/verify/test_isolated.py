"""An isolated Python runs no code of its packages by itself, and finds the packages."""

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
print(json.dumps(packaged.HERE))
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A virtual environment's Python, with a package."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages(tmp_path) / "packaged.py").write_text("HERE = True\n")
    return tmp_path / "venv" / "bin" / "python"


def packages(folder: Path) -> Path:
    return folder / "venv" / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"


def start(python: Path, *options: str, **env: str) -> str:
    """What was printed before the package was imported."""
    command = [str(python), *options, "-c", SHOW, str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin", **env})
    *before, last = done.stdout.splitlines()
    assert last == "true"
    return "\n".join(before)


def test_code_of_sitecustomize_and_pth_files_is_not_run(python: Path, tmp_path: Path) -> None:
    folder = packages(tmp_path)
    (folder / "sitecustomize.py").write_text("print('forged')\n")
    (folder / "evil.pth").write_text("import sys; print('forged too')\n")
    assert start(python, "-I", "-S") == ""
    # The test can fail: without isolation both run.
    assert set(start(python).splitlines()) == {"forged", "forged too"}


def test_variables_and_the_working_folder_are_ignored(python: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('forged')\n")
    assert start(python, "-I", "-S", PYTHONPATH=str(tmp_path)) == ""


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
