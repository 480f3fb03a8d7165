"""What --repo_env says of the wheel: its name, and the Python that it is for. Up to 2.17 the latter is TF_PYTHON_VERSION."""

def _python_version_repo_impl(ctx):
    env = ctx.os.environ
    version = env.get("HERMETIC_PYTHON_VERSION", env.get("TF_PYTHON_VERSION", ""))
    ctx.file("BUILD", "")
    ctx.file("py_version.bzl", "HERMETIC_PYTHON_VERSION = %r\nWHEEL_NAME = %r\n" % (
        version,
        env.get("WHEEL_NAME", "tensorflow"),
    ))

python_version_repo = repository_rule(
    implementation = _python_version_repo_impl,
    environ = [
        "HERMETIC_PYTHON_VERSION",
        "TF_PYTHON_VERSION",
        "WHEEL_NAME",
    ],
)
