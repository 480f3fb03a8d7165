"""Bazel's rc files: https://bazel.build/run/bazelrc."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rc:
    """`options`: by "command" or "command:config", in the order of the file; `imports`: paths as they stand."""

    options: Mapping[str, tuple[str, ...]]
    imports: tuple[str, ...]

    @property
    def configs(self) -> frozenset[str]:
        """What --config can name in a build."""
        return frozenset(key.partition(":")[2] for key in self.options if key.startswith(("build:", "common:")))

    def build(self, config: str = "") -> tuple[str, ...]:
        """The options of `build`, or those that --config=CONFIG stands for in it, not followed further."""
        return self.options.get(f"build:{config}" if config else "build", ())


def parse(text: str) -> Rc:
    """Read the text of an rc file; raises ValueError with a line that Bazel could not read either."""
    options: dict[str, tuple[str, ...]] = {}
    imports: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ValueError(f".bazelrc: {error}: {line.strip()[:80]}") from error
        if words and words[0] in ("import", "try-import"):
            imports += words[1:]
        elif words:
            options[words[0]] = (*options.get(words[0], ()), *words[1:])
    return Rc(options=options, imports=tuple(imports))
