"""What the benchmark of README's first command counts as a download."""

import pytest

from benchmarks.first_command import downloads

# Two steps of a real build: apt twice, then pip, which has one wheel in its cache and downloads the others.
LOG = """\
#6 0.637 Get:1 http://deb.debian.org/debian bookworm InRelease [151 kB]
#6 0.681 Get:2 http://deb.debian.org/debian bookworm-updates InRelease [55.4 kB]
#6 4.837 Fetched 15.8 MB in 4s (3753 kB/s)
#6 6.273 Get:1 http://deb.debian.org/debian bookworm/main amd64 libtcmalloc-minimal4 amd64 2.10-1 [93.4 kB]
#6 6.473 Fetched 93.4 kB in 0s (7624 kB/s)
#8 0.934 Collecting tensorflow-cpu==2.21.0
#8 1.100   Using cached tensorflow_cpu-2.21.0-cp311-cp311-manylinux_2_27_x86_64.whl (230.7 MB)
#8 5.989 Installing collected packages: tensorflow-cpu
#8 14.83 Successfully installed tensorflow-cpu-2.21.0
#8 17.00 Collecting absl-py>=1.0.0
#8 17.10   Downloading absl_py-2.5.1-py3-none-any.whl (135 kB)
#8 20.00   Downloading mdurl-0.1.2-py3-none-any.whl (10.0 kB)
#8 24.10 Installing collected packages: namex, libclang
"""

# pip's own log of two packages.
INSTALLED = """\
2026-11-23T18:56:14,517 Collecting wrapt==2.0.1 (from -r r.txt (line 1))
2026-11-23T18:56:14,570   Downloading wrapt-2.0.1-cp311-cp311-manylinux1_x86_64.manylinux_2_28_x86_64.whl (114 kB)
2026-11-23T18:56:14,663 Installing collected packages: wrapt, termcolor
2026-11-23T18:56:14,709 Successfully installed termcolor-3.3.0 wrapt-2.0.1
"""


def test_apt_s_and_pip_s_downloads_are_counted_and_cached_wheels_are_not() -> None:
    assert downloads(LOG) == pytest.approx(4.2 + 0.2 + 7.0)


def test_those_of_install_sh_are_counted() -> None:
    assert downloads(INSTALLED) == pytest.approx(0.093, abs=0.001)


def test_a_build_that_downloads_nothing_has_none() -> None:
    assert downloads("#6 CACHED\n") == 0
