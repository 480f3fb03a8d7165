"""Names of images, as Docker reads them."""

import pytest

from tfbuild.errors import UsageError
from tfbuild.oci.references import Repository, parse_image

HUB = "https://registry-1.docker.io/v2"


@pytest.mark.parametrize(
    ("name", "url", "tag"),
    [
        ("python:3.11-slim-bookworm", f"{HUB}/library/python/", "3.11-slim-bookworm"),
        ("python", f"{HUB}/library/python/", "latest"),
        ("docker.io/library/python:3", f"{HUB}/library/python/", "3"),
        ("docker.io/python:3", f"{HUB}/library/python/", "3"),
        ("ghcr.io/us/python:3", "https://ghcr.io/v2/us/python/", "3"),
        ("127.0.0.1:5000/python", "http://127.0.0.1:5000/v2/python/", "latest"),
        ("localhost/us/python:3", "http://localhost/v2/us/python/", "3"),
        ("registry:5000/us/python:3", "https://registry:5000/v2/us/python/", "3"),
    ],
)
def test_an_image_s_name_is_a_repository_and_a_tag(name: str, url: str, tag: str) -> None:
    repository, found = parse_image(name)
    assert (repository.url, found) == (url, tag)
    assert Repository.parse(str(repository)) == repository


@pytest.mark.parametrize(
    "text",
    ["", "us/tfbuild", "ghcr.io", "ghcr.io/", "ghcr.io/UPPER", "ghcr.io/us/x:tag", "localhost5/x", "-x.io/x"]
    # requests would connect to ghcr.io for this one.
    + ["\N{FULLWIDTH LATIN SMALL LETTER G}hcr.io/us/tfbuild", "localhost:\N{FULLWIDTH DIGIT FIVE}000/x"]
    + [f"ghcr.io/{path}" for path in ("us//base", "us/./base", "us/x/../base", "us/", "us/-x", "us/a...b")],
)
def test_what_is_no_repository_in_a_registry_is_refused(text: str) -> None:
    """Docker would look for `us/tfbuild` on Docker Hub."""
    with pytest.raises(UsageError, match="is not a repository in a registry"):
        Repository.parse(text)
    for name in (":3", "Python:3", "python:a b"):
        with pytest.raises(UsageError, match="is not an image with a tag in a registry"):
            parse_image(name)
