"""An image's labels agree with each other, and its configuration is the one that they ask for."""

import json
from collections.abc import Mapping
from typing import Any

from tests.rows import each
from tfbuild.context import dockerfile
from tfbuild.context.labels import labels_of
from tfbuild.engine import Image
from tfbuild.engine.image import parse_image
from tfbuild.plan import Build, Request, select
from tfbuild.verify import labelled_build
from tfbuild.verify.checks import configuration

BUILD: Build = select(
    Request(release="2.21.0", target="mkl", wheel="official", python="3.11", platform="linux/amd64"), None
)
PATH = "/opt/tensorflow/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LABELS = labels_of(BUILD) | {"org.opencontainers.image.base.name": "us/base:1"}
TCMALLOC = dockerfile.TCMALLOC


def image(*env: str, labels: Mapping[str, str] = {}, **config: Any) -> Image:
    """The image of BUILD as an engine describes it, with other variables ("NAME": none), labels and settings."""
    given = dict(line.partition("=")[::2] for line in env if "=" in line)
    variables = {"PATH": PATH, **dockerfile.environment(BUILD), **given}
    lines = [f"{name}={value}" for name, value in variables.items() if name not in env]
    plain = {"Hostname": "", "ArgsEscaped": True, "Volumes": None, "OnBuild": [], "Tty": False}
    own = {**plain, **dockerfile.CONFIGURATION, "Env": lines, "Labels": {**LABELS, **labels}, **config}
    # As JSON has it.
    return parse_image(json.loads(json.dumps({"Id": "1", "Size": 1, "Architecture": "amd64", "Config": own})))


def base(*env: str, **config: Any) -> Image:
    return parse_image({"Id": "2", "Size": 1, "Architecture": "amd64", "Config": {"Env": list(env), **config}})


def told(found: Image, on: Image | None = None) -> str:
    """Return the faults, "" if there are none."""
    planned = labelled_build("x", found.labels, "amd64")
    check = configuration.compare(found, planned, on)
    return "" if check.status == "pass" else check.detail


@each(
    "config, fault",
    [
        ({"User": ""}, "User is missing, not 1000:1000"),
        ({"WorkingDir": "/evil"}, "WorkingDir is /evil, not /home/tensorflow"),
        ({"Entrypoint": ["/bin/sh", "-c"]}, "Entrypoint is /bin/sh -c, not /usr/local/bin/tfbuild-entrypoint"),
        ({"Cmd": ["python", "/x.py"]}, "Cmd is python /x.py, not python"),
        ({"Volumes": {"/tmp/.": {}}}, "Volumes is set (/tmp/.)"),
        ({"OnBuild": ["RUN true"]}, "OnBuild is set (RUN true)"),
        ({"Healthcheck": {"Test": ["CMD", "x"]}}, "Healthcheck is set (Test)"),
        ({"OfALaterEngine": 1}, "OfALaterEngine is set (1)"),
    ],
)
def test_each_other_setting_is_named(config: dict[str, Any], fault: str) -> None:
    assert told(image(**config)) == fault


@each(
    "env, fault",
    [
        ("PYTHONPATH=/evil", "PYTHONPATH is set (/evil)"),
        ("PYTHON_VERSION=3.11.2; evil", "PYTHON_VERSION is set (3.11.2; evil)"),
        ("LD_AUDIT=/evil.so", "LD_AUDIT is set (/evil.so)"),
        ("LD_LIBRARY_PATH=/evil", "LD_LIBRARY_PATH is set (/evil)"),
        ("HARMLESS=1", "HARMLESS is set (1)"),
        ("PATH=/evil:/opt/tensorflow/bin", "PATH begins with /evil, not with /opt/tensorflow/bin"),
        ("PATH=/opt/tensorflow/bin:/evil:/usr/bin", "PATH continues with /evil:/usr/bin"),
        ("PATH", "PATH begins with nothing, not with /opt/tensorflow/bin"),
        ("TF_ENABLE_ONEDNN_OPTS=0", "TF_ENABLE_ONEDNN_OPTS is 0, not 1"),
        ("TF_ENABLE_ONEDNN_OPTS", "TF_ENABLE_ONEDNN_OPTS is missing"),
        ("LD_PRELOAD=", f"LD_PRELOAD is empty, not {TCMALLOC}"),
        (f"LD_PRELOAD={TCMALLOC}:/evil.so", f"LD_PRELOAD is {TCMALLOC}:/evil.so, not {TCMALLOC}"),
    ],
)
def test_each_other_variable_is_named(env: str, fault: str) -> None:
    assert told(image(env)) == fault


def test_a_variable_that_is_set_twice_is_named() -> None:
    twice = [*image().env, "LD_PRELOAD=/evil.so"]
    assert "a variable is set twice" in told(image(Env=twice))
    assert "a variable is set twice" in told(image(Env=[twice[-1], *image().env]))


@each("variable", ["LANG=C.UTF-8", f"GPG_KEY={40 * 'A'}", "PYTHON_VERSION=3.11.12", "PYTHON_PIP_VERSION=24.0"])
def test_variables_of_the_usual_base_images_are_no_fault(variable: str) -> None:
    assert told(image(variable)) == ""


def test_a_base_image_on_this_engine_may_have_variables_and_settings_of_its_own() -> None:
    own = base("LD_LIBRARY_PATH=/usr/local/cuda/lib64", f"PATH=/cuda/bin:{PATH}", ExposedPorts={"80/tcp": {}})
    of_base = image(*own.env[:1], f"PATH=/opt/tensorflow/bin:/cuda/bin:{PATH}", ExposedPorts={"80/tcp": {}})
    assert told(of_base, own) == ""
    assert "LD_LIBRARY_PATH is set" in told(of_base, base())
    assert "LD_LIBRARY_PATH is /evil, not /usr/local/cuda/lib64" in told(image("LD_LIBRARY_PATH=/evil"), own)


@each("variable", ["PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHON_VERSION=3.11", "LD_BIND_NOW=1"])
def test_a_base_image_may_have_variables_from_which_no_code_is_taken(variable: str) -> None:
    assert told(image(variable), base(variable)) == ""
    assert "is set" in told(image(variable), base())


@each(
    "variable",
    ["PYTHONPATH=/x", "PYTHONOPTIMIZE=1", "PYTHONSTARTUP=/x", "LD_AUDIT=/x", "OPENSSL_CONF=/x", "GLIBC_TUNABLES=x"],
)
def test_no_base_image_may_have_variables_from_which_code_is_taken(variable: str) -> None:
    assert f"{variable.partition('=')[0]} is set" in told(image(variable), base(variable))


@each(
    "labels, fault",
    [
        ({"io.tfbuild.release": "2.20.0"}, "id is 2.21.0-mkl-py3.11-f16c, but its other labels say 2.20.0-mkl-py3.11"),
        ({"io.tfbuild.python": "3.12"}, "but its other labels say 2.21.0-mkl-py3.12-f16c"),
        ({"io.tfbuild.features": "avx2"}, "instruction set is f16c, but its features are avx2"),
        ({"io.tfbuild.features": "nosuch"}, "instruction set is f16c, but its features are not all known"),
        ({"org.opencontainers.image.title": "x"}, "org.opencontainers.image.title is x, not TensorFlow 2.21.0 mkl"),
        ({"org.opencontainers.image.version": "2.20.0"}, "org.opencontainers.image.version is 2.20.0, not 2.21.0-mkl"),
    ],
)
def test_labels_that_contradict_others_are_named(labels: dict[str, str], fault: str) -> None:
    assert fault in told(image(labels=labels))
