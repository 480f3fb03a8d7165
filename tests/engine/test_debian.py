"""Debian and its derivatives: which systems have apt, and a machine's own sources of packages."""

from pathlib import Path

import pytest

from tfbuild.engine import debian


@pytest.mark.parametrize(
    ("system", "apt"),
    [
        ({"ID": "debian", "VERSION_CODENAME": "bookworm"}, True),
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, True),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, True),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, False),
        ({"ID": "alpine"}, False),
        ({}, False),
    ],
)
def test_systems_with_apt(system: dict[str, str], apt: bool) -> None:
    assert debian.has_apt(system) is apt


DEB822 = """Types: deb deb-src
URIs: http://mirror.site/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

# a comment
Types: deb
URIs: http://mirror.site/debian
Suites: trixie
Components: main

Enabled: no
Types: deb
URIs: http://off.site/debian
Suites: bookworm
Components: main

Types: deb
URIs: https://packages.site/tool
Suites: nodistro
Components: main
"""
ONE_LINE = """deb [arch=amd64 signed-by=/k.gpg] https://mirror.site/debian-security bookworm-security main # site
deb-src https://mirror.site/debian bookworm main
deb https://packages.site/apt tool-bookworm main
deb https://download.site/linux/debian bookworm stable
"""


def test_the_site_s_own_mirror_is_used_and_third_parties_are_not(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    (tmp_path / "sources.list.d" / "old.save").write_text("deb http://old.site/debian bookworm main\n")
    keyring = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    assert debian.sources("bookworm", tmp_path) == [
        "deb [signed-by=/k.gpg] https://mirror.site/debian-security bookworm-security main",
        f"deb {keyring} http://mirror.site/debian bookworm main contrib",
        f"deb {keyring} http://mirror.site/debian bookworm-updates main contrib",
    ]
    assert debian.sources("bullseye", tmp_path) == []
