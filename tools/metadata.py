"""What an index shows of the package: the README, with links and pictures from the repository at the version's tag."""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[[^\[\]]*\]|\[!\[[^\[\]]*\]\([^()]*\)\])\((?!https?:)([^()\s]+)\)")


class RepositoryLinks(MetadataHookInterface):
    """Fills in `readme` and `urls`. Without TFBUILD_REPOSITORY, the repository's URL, links stay relative."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["urls"] = {}
        if repository := os.environ.get("TFBUILD_REPOSITORY", ""):
            tag = f"v{metadata['version']}"
            text = absolute(text, repository, tag).replace("`pipx install .`", f"`pipx install {metadata['name']}`")
            metadata["urls"] = {
                "Source": repository,
                "Documentation": f"{repository}/blob/{tag}/docs/index.md",
                "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, repository: str, tag: str) -> str:
    """Return Markdown with absolute links into a repository on GitHub: pictures to the file, others to its page."""

    def link(found: re.Match[str]) -> str:
        picture, shown, target = found.groups()
        if target.startswith("#"):
            where = f"{repository}/tree/{tag}{target}"
        elif target.startswith("../../"):  # GitHub's own pages beside the files, such as workflows
            where = f"{repository}/{target.removeprefix('../../')}"
        else:
            where = f"{repository}/{'raw' if picture else 'blob'}/{tag}/{target}"
        return f"{picture}{shown}({where})"

    # The second pass: a picture that is a link stands within that link's text.
    return LINK.sub(link, LINK.sub(link, text))
