"""What `python -m benchmarks.fuzz` has found, and what its parsers must take without a search."""

import pytest

from benchmarks import fuzz_json
from benchmarks.fuzz import MEGABYTES, PARSERS, more_memory, seeds
from tests.rows import each

DEEP = b"[" * 100_000
FOUND = (
    ("bazel", b"INFO: Analyzed\n[, / 4] [cessw}"),
    ("bazel", b"[" + b"9" * 5000 + b" / 4] x"),
    ("buildkit", b"#6 [runtime 2/5] COPY hello /hello\n#6 DONE 0..0s"),
    ("buildkit", b"#" + b"9" * 5000 + b" DONE 0.0s"),
    ("buildkit", b"#1 [wheel " + b"9" * 5000 + b"/2] RUN true"),
    ("files", b"\x17:\x0c\x1f\x00\x0c\x1f\x14"),
    ("wheels", next(iter(fuzz_json.documents("wheels"))).replace(b"_2_28_", b"_9_" + b"9" * 5000 + b"_")),
)


@each("name", PARSERS)
@each(
    "content",
    [b"", b"{}", b"[]", b"null", b"\xff\x00", DEEP, b"9" * 5000, b'{"a":' * 5000, b'{"a": NaN}', b'{"a": "\\ud800"}'],
)
def test_each_parser_ends_with_its_documented_error_or_none(name: str, content: bytes) -> None:
    PARSERS[name].accepts(content)


@pytest.mark.parametrize(("name", "content"), FOUND)
def test_what_was_found_is_taken_now(name: str, content: bytes) -> None:
    PARSERS[name].accepts(content)


@each("name", ["library", "guard"])
def test_parsers_of_elf_files_start_from_whole_ones_with_little_memory(name: str) -> None:
    files = [content for content in seeds(PARSERS[name]) if content.startswith(b"\x7fELF")]
    assert len(files) == 2
    for content in files:
        with more_memory(MEGABYTES):
            PARSERS[name].accepts(content)


@each("name", ["wheels", "sidecar"])
def test_a_reader_starts_from_a_document_that_it_takes(name: str) -> None:
    (document,) = fuzz_json.documents(name)
    PARSERS[name].read(document)
