"""The CI run that this is, by the CI's own variables, which are only as trustworthy as whoever sets them.

Sources: docs.github.com/en/actions/reference/workflows-and-actions/variables; docs.gitlab.com/ci/variables/
predefined_variables; slsa.dev/spec/v1.0/provenance, "builder.id" (who must be trusted) and "invocationId".
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CiRun:
    """`builder`: the workflow or pipeline that ran; `invocation`: this run of it; `source`: the checkout it ran in."""

    builder: str
    invocation: str
    source: str
    commit: str


def this_run(env: Mapping[str, str]) -> CiRun | None:
    """The current CI run; None outside of a CI, or if it does not set all variables."""
    if env.get("GITHUB_ACTIONS") == "true":
        return _github(env)
    if env.get("GITLAB_CI") == "true":
        return _gitlab(env)
    return None


def _github(env: Mapping[str, str]) -> CiRun | None:
    server, repository, run = (env.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
    workflow, commit = env.get("GITHUB_WORKFLOW_REF"), env.get("GITHUB_SHA")
    if not (server and repository and run and workflow and commit):
        return None
    return CiRun(
        builder=f"{server}/{workflow}",
        invocation=f"{server}/{repository}/actions/runs/{run}/attempts/{env.get('GITHUB_RUN_ATTEMPT') or '1'}",
        source=f"git+{server}/{repository}",
        commit=commit,
    )


def _gitlab(env: Mapping[str, str]) -> CiRun | None:
    project, job, commit = env.get("CI_PROJECT_URL"), env.get("CI_JOB_URL"), env.get("CI_COMMIT_SHA")
    if not (project and job and commit):
        return None
    reference = env.get("CI_COMMIT_REF_NAME") or commit
    return CiRun(
        builder=f"{project}//{env.get('CI_CONFIG_PATH') or '.gitlab-ci.yml'}@{reference}",
        invocation=job,
        source=f"git+{project}",
        commit=commit,
    )
