"""Labels as they are written, and as anybody may have written them."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commandline import executable
from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.context.labels import labels_of, read_labels
from tfbuild.errors import Unsupported
from tfbuild.plan import Request
from tfbuild.verify import labelled_build

REQUESTS = st.builds(
    Request,
    target=st.sampled_from(["cpu", "mkl", "cuda"]),
    release=st.sampled_from(["2.12.1", "2.16.2", "2.20.0", "2.21.0"]),
    cpu=st.sampled_from(["x86-64-v2", "x86-64-v3", "x86-64-v4", "sapphirerapids"]),
    platform=st.just("linux/amd64"),
    with_headers=st.booleans(),
    bazel_flag=st.lists(
        st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)
        .filter(
            lambda text: not re.search("cuda|mkl", text, re.IGNORECASE)  # a flag with such a word asks for that target
        )
        .map("--x={}".format)
    ).map(tuple),
)


@given(REQUESTS)
def test_what_is_written_is_read(request_: Request) -> None:
    """Also by way of a Dockerfile, whose quotes are those of a shell."""
    built = plan.select(request_, None)
    written = labels_of(built)
    text = dockerfile.files(built)["Dockerfile"]
    lines = re.search(r"^LABEL \\\n((?:.*\\\n)*.*)\n", text, re.MULTILINE)
    assert lines
    rendered = dict(word.replace("\\$", "$").partition("=")[::2] for word in shlex.split(lines[1].replace("\\\n", " ")))
    assert rendered == written
    image_labels = read_labels(written)
    document = json.loads(image_labels.get("plan"))
    known = {
        name: value for name, value in json.loads(json.dumps(built.to_json())).items() if value and name != "notes"
    }
    assert known == {name: value for name, value in document.items() if name != "tfbuild"}
    # The Dockerfile's arguments, which the builder fills in.
    assert (image_labels.context, image_labels.base_name, image_labels.base_digest) == (
        "${CONTEXT_DIGEST}", "${BASE_NAME}", "${BASE_DIGEST}"
    )  # fmt: skip
    read = labelled_build("x", written, "amd64")
    for name in ("id", "release", "python", "target", "platform", "compiler", "threading", "compute_capabilities"):
        assert getattr(read, name) == getattr(built, name)
    assert (read.required, read.gpus, read.environment) == (built.required, built.gpus, built.environment)
    assert plan.alternatives(read) == plan.alternatives(built)


def test_a_plan_has_no_path_of_this_machine_and_a_size(tmp_path: Path) -> None:
    patch = tmp_path / "my.patch"
    patch.write_text("--- a/x\n+++ b/x\n")
    request = Request(release="2.20.0", cpu="x86-64-v3", platform="linux/amd64", patch=(str(patch),))
    own = labels_of(plan.select(request, None))["io.tfbuild.plan"]
    assert "my.patch" in own
    assert str(tmp_path) not in own
    long = replace(request, patch=(), bazel_flag=tuple(f"--x={'y' * 9_000}{number}" for number in range(4)))
    with pytest.raises(Unsupported, match=r"the plan takes 3\d,\d\d\d bytes as a label"):
        labels_of(plan.select(long, None))


def test_the_current_folder_has_its_name_in_the_command_and_in_the_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1] / "data" / "double")
    own = plan.select(Request(release="2.20.0", cpu="x86-64-v3", platform="linux/amd64", source="."), None)
    assert dockerfile.command(own).endswith(" --source double")
    assert '"path":"double"' in labels_of(own)["io.tfbuild.plan"]
    executable(tmp_path / "bin/bazel", "")
    monkeypatch.chdir(tmp_path)
    own = plan.select(Request(release="2.20.0", cpu="x86-64-v3", platform="linux/amd64", bazel="7.4.1=."), None)
    assert dockerfile.command(own).endswith(f" --bazel 7.4.1={tmp_path.name}")


ODD = ("", "{", "[]", "1", "[" * 9_999, '{"wheel": 1, "copts": {}}', '{"compiler": ["\\ud800"]}', "9" * 99_999)


@pytest.mark.parametrize("text", ODD)
def test_a_plan_of_any_content_is_read_without_an_error(text: str) -> None:
    assert read_labels({"io.tfbuild.plan": text, "io.tfbuild.id": "x"}).id == "x"


@pytest.mark.parametrize(
    "given", [None, "x", ["io.tfbuild.id"], 1, {}, {"id": "x"}, {1: {2: 3}}, {"io.tfbuild.": None}]
)
def test_labels_of_any_shape_are_read(given: object) -> None:
    image_labels = read_labels(given)
    assert (image_labels.id, image_labels.context, image_labels.base_digest) == ("", "", "")
