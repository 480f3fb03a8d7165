"""options.py: prints the options of a verb for the inputs of action.yml or pull/action.yml, one a line.

INPUTS in the environment has the inputs as JSON, each named as its option; `options` has further ones, one a line.
"""

import json
import os
import sys

# The action plans, builds and verifies in steps of its own.
REFUSED = ("--dry-run", "--json", "--no-verify")

inputs = json.loads(os.environ["INPUTS"])
more = [line.strip() for line in inputs.pop("options", "").splitlines() if line.strip()]
options = []
for name, value in inputs.items():
    if "\n" in value:
        sys.exit(f"error: the input {name} has more than one line\nhint: only `options` may, one option per line")
    if value == "true":
        options.append(f"--{name}")
    elif value not in ("", "false"):
        options.append(f"--{name}={value}")
for option in more:
    if not option.startswith("--") or option in REFUSED:
        sys.exit(f"error: {option!r} is not an option of this action\nhint: `options` has lines such as --bazel=7.4.1")
sys.stdout.write("".join(f"{option}\n" for option in (*options, *more)))
