"""What the options of a remote cache or executor mean, and the lines for each Bazel.

What else is refused of them: tests/data/mistakes.tsv.
"""

from pathlib import Path
from typing import Any

import pytest

from tfbuild.errors import UsageError
from tfbuild.plan import RunRequest, remote_cache
from tfbuild.plan.remote_cache import Remote
from tfbuild.util.options import refuse_invalid

# Short names of options here; the others have `remote-` in front.
NAMES = {"properties": "property", "certificate": "client_cert", "key": "client_key"}
CACHE = "grpcs://cache.example.org:443"


def options(**given: Any) -> Remote | None:
    fields = {f"remote_{NAMES.get(name, name)}": value for name, value in given.items()}
    request = RunRequest(**fields)
    refuse_invalid(request)
    return remote_cache.named_remote(request)


def remote(**given: Any) -> Remote:
    found = options(**given)
    assert found is not None
    return found


def lines(bazel: str, **given: Any) -> list[str]:
    """Return what Bazel gets, for CACHE unless the options say otherwise."""
    named = remote(**({"cache": CACHE} | given))
    return [line.removeprefix("build ") for line in named.bazelrc(bazel).splitlines()]


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    path = tmp_path / "client.pem"
    path.write_text("x\n-----BEGIN CERTIFICATE-----\n")
    return path


# --- the options ------------------------------------------------------------------------------------------------------


def test_a_remote_has_a_name_for_people() -> None:
    assert options() is None
    assert remote(cache="grpc://h:1").name == "cache grpc://h:1"
    assert remote(cache="grpc://h:1", readonly=True).name == "cache grpc://h:1, read only"
    assert remote(executor="grpcs://e").name == "executor grpcs://e"
    assert remote(cache="grpc://h:1", executor="grpc://e").name == "cache grpc://h:1; executor grpc://e"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("grpc://h:1/", "grpc://h:1"),
        ("https://h/a/", "https://h/a/"),
        ("http://[::1]:8080/x~y", "http://[::1]:8080/x~y"),
    ],
)
def test_an_address_is_kept_as_bazel_reads_it(given: str, kept: str) -> None:
    assert remote(cache=given).name == f"cache {kept}"


NO_ADDRESSES = (
    "http://h#f", "http://h?q", "http://h:65536", "http://h:0", "http://[::1", "http:///x", "grpcs://h:1/x", "ftp://h",
    "unix:///run/cache", "h:1", "grpc://", "grpc://h:port", "grpc://me@h", "http://h/a b", "http://h/$(x)",
)  # fmt: skip


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(UsageError, match="is not a valid address") as refusal:
        remote(cache=address)
    assert refusal.value.hint == "grpc://HOST:PORT or grpcs://HOST:PORT or http://HOST:PORT or https://HOST:PORT"


def test_a_header_file_has_one_header_a_line(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_text("# a\n\nA=1\n  \nB=x=y\n")
    shown = remote(cache="grpc://h", header_file=str(path))
    assert shown.flags[1:] == ("--remote_header='A=1'", "--remote_header='B=x=y'")
    assert "x=y" not in repr(shown) + shown.name


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"A=1\n\nsecret\n", r"line 3 of .* is not a header"),
        *((f"{line}\n".encode(), r"line 1 of .* is not a header") for line in ("=secret", "A=", "A=sec'ret", "A=s\\")),
        (b"\xff\xfe", "cannot read --remote-header-file"),
        (b"# a\n", r"line 1 of .* is not a header"),
    ],
)
def test_a_header_file_that_is_none_is_refused_by_its_line_alone(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=told) as refusal:
        remote(cache="grpc://h", header_file=str(path))
    assert "cret" not in str(refusal.value)


def test_a_certificate_and_its_key_are_secrets_of_the_builder(pem: Path) -> None:
    both = remote(cache="grpc://h", certificate=str(pem), key=str(pem))
    assert both.files == {"remote-certificate": pem, "remote-key": pem}
    assert str(pem) not in repr(both)
    tls = {"--tls_client_certificate=/mnt/remote-certificate", "--tls_client_key=/mnt/remote-key"}
    assert tls <= {*lines("6.5.0", certificate=str(pem), key=str(pem))}
    assert remote(cache="grpc://h").files == {}


# --- Bazel's lines ----------------------------------------------------------------------------------------------------


def test_read_only_fills_the_disk_cache_all_the_same() -> None:
    ignore = "--incompatible_remote_results_ignore_disk"
    assert lines("5.3.0", readonly=True) == [f"--remote_cache={CACHE}", "--noremote_upload_local_results", ignore]
    assert ignore not in lines("6.5.0", readonly=True)


def test_an_executor_that_fails_leaves_the_work_to_this_machine_in_every_bazel() -> None:
    properties = ("container-image=docker://x@sha256:1",)
    assert lines("6.5.0", executor="grpcs://host:8980", instance="main", properties=properties) == [
        f"--remote_cache={CACHE}", "--remote_executor=grpcs://host:8980", "--remote_local_fallback",
        "--spawn_strategy=remote,local", "--strategy=Genrule=remote,local", "--remote_instance_name=main",
        "--remote_default_exec_properties='container-image=docker://x@sha256:1'",
    ]  # fmt: skip
