"""Recorded last lines of failed builds, and the errors that they become."""

import pytest

from tests.rows import each
from tfbuild.errors import BadInput, BuildFailed, TfbuildError, Unsupported, UsageError
from tfbuild.pipeline import diagnosis

CONFIGURE = """the image could not be built
  Traceback (most recent call last):
    File "/src/configure.py", line 1, in <module>
  RuntimeError: no such toolkit
  tfbuild: this tree's configure.py failed
  executor failed running [/bin/sh -c sh /mnt/compile.sh]: exit code: 1"""
URL = "http://mirror.site"
TAG = "has no tag v9.9.9, or does not answer"
# What the tools print, and the first words of the error.
ROWS = (
    (f"  Cloning into '/src'...\n  tfbuild: https://x.org/us/tf {TAG}", BadInput, f"https://x.org/us/tf {TAG}"),
    ("  Error in extract: java.io.IOException: Error downloading [https://m.org/icu.zip, https://g.com/icu.zip]"
     " to /root/icu.zip: Checksum was 10cd but wanted dfc6",
     BuildFailed, "https://m.org/icu.zip is not what TensorFlow pins: its sha256 is 10cd, not dfc6"),
    (f"  Could not find any cudnn.h, cudnn_version.h matching version '8' in any subdirectory:\n  {CONFIGURE}",
     Unsupported, "the base image has no cudnn.h, cudnn_version.h of version '8' where configure.py looks for it"),
    ("  tfbuild: the tag v2.13.1 is the commit abc, and not def", BadInput, "the tag v2.13.1 is the commit abc"),
    ("  tfbuild: this is not TensorFlow's source: it has no .bazelrc", BadInput, "this is not TensorFlow's source"),
    ("  tfbuild: the fix x-y does not apply to this tree", BadInput, "the fix x-y does not apply to this tree"),
    ("  tfbuild: 02-my.patch does not apply to this tree", BadInput, "my.patch does not apply to this tree"),
    ("  ERROR: no such package '@@curl//': BUILD file not found in directory '' of external repository @@curl. Add",
     BadInput, "the repository curl has no BUILD file for @curl//; nothing was compiled"),
    ("  ERROR: /src/tensorflow/BUILD:2:10: no such target '@@llvm-project//mlir:Transforms': target 'Transforms' not",
     BadInput, "the repository llvm-project has no //mlir:Transforms, which this tree uses; nothing was compiled"),
    # tensorflow issue 90331
    ("  ERROR: /opt/BUILD:49:21: no such target '@local_config_cuda//cuda:cuda_runtime': target 'cuda_runtime' not",
     BadInput, "the tree's rules for local_config_cuda make no //cuda:cuda_runtime, which the tree uses;"),
    ("  [FATAL 04:50:11.599 src/blaze.cc:1106] Unexpected error reading config file '/src/.none': (error: 2): No",
     BadInput, "Bazel cannot read /src/.none: (error: 2): No; nothing was compiled"),
    ("  ERROR: Config value 'zz' is not defined in any .rc file", Unsupported, "this TensorFlow has no --config=zz;"),
    ("  ERROR: Unrecognized option: --zz\n  INFO: Elapsed", UsageError, "this Bazel does not know --zz;"),
    ("  ERROR: Skipping '//tensorflow:wheel': no such target '//tensorflow:wheel': target 'wheel' not declared in",
     Unsupported, "this TensorFlow has no target //tensorflow:wheel;"),
    ("  ERROR: no such package 'tensorflow/core/kernels/mkl': BUILD file not found in any of the following directories",
     Unsupported, "this TensorFlow has no package tensorflow/core/kernels/mkl;"),
    ("  ERROR: Error computing the main repository mapping: Every .bzl file must have a corresponding package, but "
     "'@@rules_x//py:a.bzl' does not have one. Please", BadInput, "the repository rules_x has no BUILD file for @rule"),
    ("  Label '@@x//y:a.bzl' is invalid because 'y' is not a package; perhaps", BadInput,
     "the repository x has no BUILD file for @x//y;"),
    ("  ERROR: /src/x/BUILD:3:6: //x:y: missing input file '//x:z.cc'", BadInput, "the source tree has no //x:z.cc"),
    ("  ERROR: /src/tensorflow/BUILD:3:6: cannot load '//tensorflow:x.bzl': no such file",
     Unsupported, "this TensorFlow has no file //tensorflow:x.bzl;"),
    ('          fail("\n  Current Bazel version is 0.26.1, expected at least 1.0.0\n',
     Unsupported, "this tree refuses this Bazel: Current Bazel version is 0.26.1, expected at least 1.0.0;"),
    ("  ERROR: The project you're trying to build requires Bazel 2.0.0 (specified in /src/.bazelversion), but it",
     Unsupported, "this tree refuses this Bazel: The project you're trying to build requires Bazel 2.0.0;"),
    (CONFIGURE, BadInput, "this tree's configure.py failed: RuntimeError: no such toolkit"),
    ("  tfbuild: neither this base image nor its distribution has Python 3.9; name a base that has it",
     Unsupported, "neither the base image nor its distribution has Python 3.9"),
    # pip 25.1
    ("  error: incomplete-download\n\n  × Download failed because not enough bytes were received (1 kB/2 kB)",
     BuildFailed, "a download failed: Download failed because not enough bytes were received (1 kB/2 kB)"),
    ("  E: Unable to locate package clang-18", Unsupported, "the base image's distribution has no clang-18"),
    ("  E: Package 'gcc-9' has no installation candidate", Unsupported, "the base image's distribution has no gcc-9"),
    # The builder's last line quotes the script.
    ('  sh: 1: apt-get: not found\n  executor failed running [/bin/sh -c apt-get update || { echo "tfbuild: neither '
     'this base image nor its distribution has Python 3.11; name a base that has it" >&2; exit 1; }]: exit code: 127',
     Unsupported, "the base image has no apt-get"),
    ("  13:37:57 Downloading http://127.0.0.1:43563/releases/download/0.26.0/bazel-0.26.0-linux-x86_64...\n"
     "  13:37:57 could not download Bazel: failed to download bazel: not found",
     BuildFailed, "there is no Bazel 0.26.0 where Bazelisk looks for it"),
    ("  mkdir: cannot create directory '/mnt/cache/0a1b/disk': Not a directory",
     BuildFailed, "a cache of the builder is damaged: mkdir: cannot create directory '/mnt/cache/0a1b/disk': Not a"),
    ("  Error downloading [https://x.org/x.tar.gz] to /root/x.tar.gz: java.io.IOException: "
     "/mnt/cache/0a1b/repository/content_addressable/sha256/2c/file (Is a directory)",
     BuildFailed, "a cache of the builder is damaged: Error downloading [https://x.org/x.tar.gz] to /root/x.tar.gz: "),
    ("  OSError: [Errno 5] Input/output error: '/mnt/pip/http-v2/8/1/81.body'",
     BuildFailed, "a cache of the builder is damaged: OSError: [Errno 5] Input/output error: '/mnt/pip/http-v2/8/1/81"),
    ("  ERROR: /src/tensorflow/double/BUILD:7:1: output 'tensorflow/double/kernel.o' was not created\n  ERROR: /src/t",
     BuildFailed, "tensorflow/double/kernel.o was not created: the tree's rule does not make it, or its result in"),
    ("  ERROR: /src/BUILD:18:2: error while parsing .d file: /var/tmp/_objs/kernel_1/kernel.pic.d (No such file or",
     BuildFailed, "kernel.pic.d was not created: the tree's rule does not make it, or its result in the cache is"),
)  # fmt: skip


@pytest.mark.parametrize(("output", "error", "message"), ROWS)
def test_the_cause_is_named(output: str, error: type[TfbuildError], message: str) -> None:
    cause = diagnosis.explain(BuildFailed(f"the image could not be built\n{output}", hint="the full log: x.log"))
    assert type(cause) is error
    assert cause.reason.startswith(message)
    assert "\n" not in cause.reason
    assert cause.hint.endswith("; the full log: x.log")


# --- a mirror ---------------------------------------------------------------------------------------------------------


@each(
    "line",
    [
        "E: The repository 'http://mirror.site/deb.debian.org/debian bookworm Release' does not have a Release file.",
        "E: Failed to fetch http://mirror.site/x.deb  Connection failed [IP: 127.0.0.1 80]",
        "E: Release file for http://mirror.site/dists/x/InRelease is expired (invalid since 2d 1h 5min 10s).",
        "ERROR: No matching distribution found for tensorflow-cpu==2.21.0",
        "pip._vendor.urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead(1000 bytes read)",
        "pip._vendor.requests.exceptions.RetryError: HTTPConnectionPool(host='mirror.site'): Max retries exceeded with",
        "× Download failed after 6 attempts because not enough bytes were received (1 kB/2 kB)",  # pip 25.1
        "× Unable to fetch http://mirror.site/files.pythonhosted.org/x.whl",  # pip 26
        "curl: (18) transfer closed with 5000000 bytes remaining to read",
        "fatal: repository 'http://mirror.site/github.com/tensorflow/tensorflow/' not found",
        "Error in download_and_extract: java.io.IOException: Error downloading [http://mirror.site/x.zip] to /x: GET",
    ],
)
def test_a_mirror_is_named_where_a_download_failed(line: str) -> None:
    output = f"the image could not be built\n  {line}\n  executor failed running [/bin/sh -c ...]"
    error = diagnosis.explain_mirror(BuildFailed(output), URL)
    assert error is not None
    assert error.reason.splitlines()[0] == f"the mirror {URL} lacks something, or broke off: {line}"


@each(
    "output",
    [
        "fatal: Remote branch v9 not found in upstream origin\ntfbuild: URL has no tag v9, or does not answer",
        "WARNING: Download from http://127.0.0.1/asked failed: GET returned 404 Not Found\n"
        "kernel.cc:1:10: fatal error: 'Eigen/Core' file not found\nFAILED: Build did NOT complete successfully",
    ],
)
def test_another_failure_is_not_the_mirror_s(output: str) -> None:
    assert diagnosis.explain_mirror(BuildFailed(output), URL) is None
