"""The examples in docs/registries.md: the workloads for Kubernetes, and the patterns for tags that move."""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tfbuild import plan
from tfbuild.context import labels
from tfbuild.facts import targets
from tfbuild.oci import client
from tfbuild.plan import Request
from tfbuild.publish import indexes

PAGE = (Path(__file__).parents[2] / "docs" / "registries.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
WORKLOADS: list[dict[str, Any]] = list(YAML(typ="safe").load_all(EXAMPLE))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload["metadata"]["name"])
def test_a_workload_runs_the_image_of_the_set_that_its_nodes_have(workload: dict[str, Any]) -> None:
    assert (workload["apiVersion"], workload["kind"]) == ("apps/v1", "Deployment")
    template = workload["spec"]["template"]
    assert workload["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    (label,) = template["spec"]["nodeSelector"]
    chosen = template["spec"]["nodeSelector"][label]
    assert f"kubectl label node web1 {label}=" in PAGE
    assert template["metadata"]["labels"]["set"] == chosen
    (container,) = template["spec"]["containers"]
    # It would replace the entry point, which checks the CPU.
    assert "command" not in container
    build = plan.select(Request(target="mkl", release="2.20.0", cpu=chosen, platform="linux/amd64"), None)
    assert labels.parse_name(container["image"]) == ("ghcr.io/us/tfbuild", build.id)


def test_the_patterns_for_ecr_fit_each_tag_that_moves_and_no_identifier() -> None:
    (line,) = re.findall(r"all moving tags of tfbuild: (.*)\.$", PAGE, re.MULTILINE)
    patterns = re.findall(r"`([^`]+)`", line)
    assert len(patterns) <= 5
    digest = f"sha256:{64 * '0'}"
    for target in targets.names():
        moving = indexes.index_tags("2.20.0", target)
        for tag in (*moving, client.fallback_tag(digest)):
            assert any(fnmatchcase(tag, pattern) for pattern in patterns), tag
        build = plan.select(Request(target=target, release="2.20.0", cpu="x86-64-v3", platform="linux/amd64"), None)
        assert not any(fnmatchcase(build.id, pattern) for pattern in patterns)
        assert fnmatchcase(build.id, "*-py*")
