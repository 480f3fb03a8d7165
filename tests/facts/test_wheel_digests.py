"""Every official wheel that a plan takes is known by its digest."""

import re

from tfbuild.facts import releases
from tfbuild.plan import wheel
from tools.wheel_digests import of_project, wanted


def test_every_official_wheel_has_a_digest_of_its_own() -> None:
    found = {}
    for requirement, arch in set(wanted()):
        release = requirement.partition("==")[2]
        for python in releases.official_pythons(release, arch):
            found[requirement, python, arch] = wheel.official_sha256(requirement, python, arch)
    assert [place for place, digest in found.items() if not re.fullmatch("[0-9a-f]{64}", digest)] == []
    assert len(found) >= 90


def test_the_digest_is_that_of_the_wheel_for_the_python_and_the_architecture() -> None:
    tags = ("cp311-cp311-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_17_aarch64", "cp311-cp311-win_amd64")
    names = [f"x-1-{tag}.whl" for tag in tags]
    files = [{"packagetype": "bdist_wheel", "filename": name, "digests": {"sha256": f"of {name}"}} for name in names]
    files.append({"packagetype": "sdist", "filename": "x-1.tar.gz", "digests": {"sha256": ""}})
    assert dict(of_project({"releases": {"1": files}}, "1")) == {
        "3.11 x86_64": f"of {names[0]}",
        "3.12 aarch64": f"of {names[1]}",
    }
