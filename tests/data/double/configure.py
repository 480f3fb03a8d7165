"""Asks for each variable that is not set, as TensorFlow's does, and fails where nobody can answer."""

import os
import sys

VARIABLES = (
    "PYTHON_BIN_PATH",
    "USE_DEFAULT_PYTHON_LIB_PATH",
    "TF_NEED_ROCM",
    "TF_NEED_CUDA",
    "CC_OPT_FLAGS",
    "TF_SET_ANDROID_WORKSPACE",
)


def value(name):
    if name in os.environ:
        return os.environ[name]
    print(f"Please specify {name}: ", end="", flush=True)
    answer = sys.stdin.readline()
    if not answer:
        sys.exit(f"configure.py: nobody answered the question for {name}")
    return answer.strip()


answers = {name: value(name) for name in VARIABLES}
if not os.access(answers["PYTHON_BIN_PATH"], os.X_OK):
    sys.exit(f"configure.py: {answers['PYTHON_BIN_PATH']} is no Python")
with open(".tf_configure.bazelrc", "w", encoding="utf-8") as file:
    file.write(f'build --action_env PYTHON_BIN_PATH="{answers["PYTHON_BIN_PATH"]}"\n')
    for flag in answers["CC_OPT_FLAGS"].split():
        file.write(f"build:opt --copt={flag}\nbuild:opt --host_copt={flag}\n")
