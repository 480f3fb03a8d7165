"""What --repo_env says of the wheel: its name, the Python that it is for, and the archive of it. Up to 2.17 the latter is TF_PYTHON_VERSION."""

def _python_version_repo_impl(ctx):
    env = ctx.os.environ
    version = env.get("HERMETIC_PYTHON_VERSION", env.get("TF_PYTHON_VERSION", ""))
    if env.get("HERMETIC_PYTHON_URL"):
        ctx.download_and_extract(env["HERMETIC_PYTHON_URL"], "python", env["HERMETIC_PYTHON_SHA256"], stripPrefix = "python")
    ctx.file("BUILD", "")
    ctx.file("py_version.bzl", "HERMETIC_PYTHON_VERSION = %r\nWHEEL_NAME = %r\n" % (
        version,
        env.get("WHEEL_NAME", "tensorflow"),
    ))

python_version_repo = repository_rule(
    implementation = _python_version_repo_impl,
    environ = [
        "HERMETIC_PYTHON_SHA256",
        "HERMETIC_PYTHON_URL",
        "HERMETIC_PYTHON_VERSION",
        "TF_PYTHON_VERSION",
        "WHEEL_NAME",
    ],
)
