"""What each option of a remote cache means, which refusal it ends in, and what Bazel gets for it."""

from pathlib import Path
from typing import Any

import pytest

from tfbuild.errors import UsageError
from tfbuild.plan import RunRequest, remote_cache
from tfbuild.plan.remote_cache import Remote
from tfbuild.util.options import refuse_invalid

# Short names of options here; the others have `remote-` in front.
NAMES = {"properties": "property", "certificate": "client_cert", "key": "client_key"}


def options(**given: Any) -> Remote | None:
    fields = {f"remote_{NAMES.get(name, name)}": value for name, value in given.items()}
    request = RunRequest(**fields)
    refuse_invalid(request)
    return remote_cache.named_remote(request)


def remote(**given: Any) -> Remote:
    found = options(**given)
    assert found is not None
    return found


def test_a_remote_has_a_name_for_people() -> None:
    assert remote(cache="grpc://h:1").name == "cache grpc://h:1"
    assert remote(cache="grpc://h:1", readonly=True).name == "cache grpc://h:1, read only"
    assert remote(executor="grpcs://e").name == "executor grpcs://e"
    assert remote(cache="grpc://h:1", executor="grpc://e").name == "cache grpc://h:1; executor grpc://e"
    assert remote(cache="http://h:1").over_grpc is False
    assert remote(cache="grpcs://h:1").over_grpc is True


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("grpc://h:1/", "grpc://h:1"),
        ("grpcs://h:1/", "grpcs://h:1"),
        ("https://h/a/", "https://h/a/"),
        ("http://[::1]:8080/x~y", "http://[::1]:8080/x~y"),
        ("grpcs://a-b.c_d", "grpcs://a-b.c_d"),
    ],
)
def test_an_address_is_kept_as_bazel_reads_it(given: str, kept: str) -> None:
    assert remote(cache=given).cache == kept


@pytest.mark.parametrize(
    "address",
    [
        "http://h#f",
        "http://h?q",
        "http://h:99999",
        "http://h:0",
        "http://[::1",
        "http://h/a b",
        "http://h/$(x)",
        "http:///x",
        "grpcs://h:1/x",
        "ftp://h",
    ],
)
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(UsageError, match="is not a valid address") as refusal:
        remote(cache=address)
    assert (
        refusal.value.hint
        == "grpc://HOST:PORT or grpcs://HOST:PORT or http://HOST:PORT or https://HOST:PORT, or oci://HOST/PATH"
    )


@pytest.mark.parametrize(
    ("options", "reason", "hint"),
    [
        ({"readonly": True}, "need a remote cache or a remote executor", "--remote-cache grpcs://HOST:PORT"),
        ({"instance": "x"}, "need a remote cache or a remote executor", "--remote-cache"),
        ({"properties": ("a=b",)}, "need a remote cache or a remote executor", "--remote-cache"),
        ({"certificate": "x"}, "need a remote cache or a remote executor", "--remote-cache"),
        ({"key": "x"}, "need a remote cache or a remote executor", "--remote-cache"),
        ({"cache": "grpc://h", "executor": "grpc://h", "readonly": True}, "an executor stores", "leave out one"),
        ({"cache": "https://h", "executor": "grpc://h"}, "needs a cache over gRPC", "leave out --remote-cache"),
        ({"cache": "grpc://h", "certificate": "x"}, "needs its key", "--set remote-client-key=FILE"),
        ({"cache": "grpc://h", "key": "x"}, "needs its key", "--set remote-client-cert=FILE"),
        ({"cache": "grpc://h", "instance": "a b"}, "is not an instance name", "--set remote-instance=main"),
        ({"executor": "grpc://h", "fallback": "No"}, "'No' is not yes or no", "--set remote-fallback=no"),
        ({"cache": "grpc://me@h"}, "holds a user or a password", "--remote-header-file"),
        ({"cache": "grpc://h", "properties": ("x",)}, "is not NAME=VALUE", "container-image=docker"),
        ({"cache": "grpc://h", "properties": ("cache-silo-key=x",)}, "sets cache-silo-key", "leave it out"),
        ({"cache": "grpc://h", "certificate": "/no", "key": "/no"}, "remote-client-cert /no is not a PEM", "BEGIN"),
        ({"cache": "grpc://h", "header_file": "/no"}, "cannot read --remote-header-file /no", "NAME=VALUE"),
    ],
)
def test_each_refusal_has_its_reason_and_its_hint(options: dict[str, object], reason: str, hint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        remote(**options)
    assert reason in refusal.value.reason
    assert hint in refusal.value.hint


def test_a_key_that_is_none_is_named_by_its_own_option(tmp_path: Path) -> None:
    certificate = tmp_path / "certificate.pem"
    certificate.write_text("-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(UsageError, match="remote-client-key /no is not a PEM file"):
        remote(cache="grpc://h", certificate=str(certificate), key="/no")


def test_a_header_file_has_one_header_a_line_and_names_the_line_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_text("# a\n\nA=1\n  \nB=x=y\n")
    assert remote(cache="grpc://h", header_file=str(path)).headers == (("A", "1"), ("B", "x=y"))
    path.write_text("A=1\n\nbroken\n")
    with pytest.raises(UsageError, match=r"line 3 of .* is not a header"):
        remote(cache="grpc://h", header_file=str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot read --remote-header-file"):
        remote(cache="grpc://h", header_file=str(path))
    path.write_text("# a\n")
    with pytest.raises(UsageError, match="there is no header in"):
        remote(cache="grpc://h", header_file=str(path))


def test_a_certificate_and_its_key_are_secrets_of_the_builder(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.write_text("x\n-----BEGIN KEY-----\n")
    both = remote(cache="grpc://h", certificate=str(pem), key=str(pem))
    assert both.secrets() == {"remote-certificate": pem, "remote-key": pem}
    assert str(pem) not in repr(both)
    assert remote(cache="grpc://h").secrets() == {}
    assert "--tls_client_key=/mnt/remote-key" in remote_cache.bazelrc(both, "6.5.0")
    with pytest.raises(UsageError, match=r"Bazel 2\.0\.0, which this release is built with, has no") as refusal:
        remote_cache.bazelrc(both, "2.0.0")
    assert "Bazel has it from" in refusal.value.hint


def test_an_ability_begins_with_its_version_and_ends_before_another() -> None:
    for row in remote_cache.abilities().values():
        assert not remote_cache.can(row.last_without, row.name)
        if not row.before:
            assert remote_cache.can(row.since, row.name)
            assert remote_cache.can("99.0.0", row.name)
        else:
            assert not remote_cache.can(row.before, row.name)
            assert not remote_cache.can("99.0.0", row.name)


def test_an_executor_and_a_cache_over_http_keep_the_disk_cache_where_they_can() -> None:
    executor, http = remote(executor="grpc://e"), remote(cache="http://h")
    assert remote_cache.keeps_disk(http, "0.26.1")
    assert remote_cache.keeps_disk(executor, "7.4.1")
    assert not remote_cache.keeps_disk(executor, "0.26.1")
    (kept,) = remote_cache.notes(remote(cache="grpc://h"), "0.26.1")
    assert kept.endswith("results are kept only there")
    (lost,) = remote_cache.notes(remote(cache="grpc://h", readonly=True), "0.26.1")
    assert lost.endswith("nothing is kept of a build that ends early")


def test_old_and_new_bazels_keep_builders_apart_by_the_flag_that_they_know() -> None:
    value = "2.1.4-@BUILDER@"
    assert remote_cache.silo("7.4.1", "2.1.4") == f"--remote_default_exec_properties=cache-silo-key={value}"
    assert remote_cache.silo("0.26.1", "2.1.4") == (
        "--remote_default_platform_properties="
        f"""'properties:{{name:"cache-silo-key" value:"{value}"}}'"""
    )


def test_an_executor_that_fails_leaves_the_work_to_this_machine_in_every_bazel() -> None:
    new = remote_cache.bazelrc(remote(executor="grpc://e", properties=("a=b",)), "7.4.1").splitlines()
    assert new == [
        "build --remote_executor=grpc://e", "build --remote_local_fallback",
        "build --spawn_strategy=remote,local", "build --strategy=Genrule=remote,local",
        "build --remote_default_exec_properties='a=b'",
    ]  # fmt: skip
    old = remote_cache.bazelrc(remote(executor="grpc://e"), "0.26.1").splitlines()
    assert old[2:] == ["build --spawn_strategy=remote", "build --genrule_strategy=remote", "build --disk_cache="]
