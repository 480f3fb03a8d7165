"""What benchmarks.scale reads: the kernel's counts of connections, cgroups of both versions, Bazel's profile.

The action graph and profile are those of tests/project/test_workers.py.
"""

import pytest

from benchmarks import scale, workers
from tests.project.test_workers import ACTIONS, NAMED

# `ss -tnHOi` beside a server on port 50051: three connections, one without data.
SERVER = """\
ESTAB 0 0 127.0.0.1:50051 127.0.0.1:43212 cubic wscale:9,9 rto:204 bytes_sent:120 bytes_acked:119 bytes_received:7000 segs_out:9
ESTAB 0 0 [::ffff:127.0.0.1]:50051 [::ffff:127.0.0.1]:43213 cubic rto:204 bytes_acked:5 bytes_received:1 segs_in:3
ESTAB 0 0 127.0.0.1:50051 127.0.0.1:43214 cubic wscale:9,9 rto:204
"""  # noqa: E501
VERSION_1 = "nr_periods 300\nnr_throttled 240\nthrottled_time 14542430413\nnr_bursts 0\nusage_nsec 7500000000\n"
VERSION_2 = "usage_usec 2500000\nuser_usec 2000000\nnr_periods 100\nnr_throttled 20\nthrottled_usec 1\n"


def test_a_connection_is_counted_by_the_other_sides_address() -> None:
    assert scale.counted(SERVER) == {
        "127.0.0.1:43212": (119, 7000),
        "[::ffff:127.0.0.1]:43213": (5, 1),
        "127.0.0.1:43214": (0, 0),
    }


def test_what_the_scheduler_received_is_what_client_and_workers_sent() -> None:
    meter = scale.Meter(50051, ())
    meter.counts |= scale.counted(SERVER)
    meter.of_workers.add("[::ffff:127.0.0.1]:43213")
    assert meter.bytes() == {"client_sent": 7000, "client_received": 119, "workers_sent": 1, "workers_received": 5}


def test_cgroups_of_both_versions_are_summed() -> None:
    assert scale.throttling([VERSION_1, VERSION_2]) == {"throttled": 0.65, "cpu_seconds": 10.0}
    assert scale.throttling([""]) == {"throttled": 0.0, "cpu_seconds": 0.0}


def test_only_known_words_in_braces_are_filled() -> None:
    assert scale.filled("{executor} {jobs} {other}", {"executor": "grpc://e", "jobs": "8"}) == "grpc://e 8 {other}"


def test_the_time_of_a_run_is_that_of_its_actions() -> None:
    assert scale.span(NAMED) == pytest.approx(7.475, abs=1e-3)


def test_the_simulation_of_one_worker_takes_as_long_as_that_run() -> None:
    result = scale.simulation(ACTIONS, workers.TARGET, NAMED, 60.0)
    assert result["actions"] == {"workers": 6, "client": 6}
    seconds = result["seconds"]
    assert isinstance(seconds, dict)
    assert seconds["1"] == 60.0
    assert 30.0 <= seconds["2"] < 60.0
    assert seconds["1000"] == result["critical_path"]
