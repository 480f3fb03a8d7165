"""A rule whose output is the wheel: Bazel knows its name before it is made."""

load("@python_version_repo//:py_version.bzl", "HERMETIC_PYTHON_VERSION", "WHEEL_NAME")
load("//tensorflow:tf_version.bzl", "TF_VERSION")

def _tf_wheel_impl(ctx):
    if not HERMETIC_PYTHON_VERSION:
        fail("no --repo_env=HERMETIC_PYTHON_VERSION says which Python the wheel is for")
    tag = "cp" + HERMETIC_PYTHON_VERSION.replace(".", "")
    wheel = ctx.actions.declare_file("wheel_house/%s-%s-%s-%s-linux_x86_64.whl" % (WHEEL_NAME, TF_VERSION, tag, tag))
    ctx.actions.run_shell(
        outputs = [wheel],
        inputs = [ctx.file.maker, ctx.file.library],
        command = 'exec python3 "$@"',
        arguments = [ctx.file.maker.path, WHEEL_NAME, TF_VERSION, tag, ctx.file.library.path, wheel.dirname],
        mnemonic = "TfWheel",
        progress_message = "Building wheel " + wheel.basename,
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([wheel]))]

tf_wheel = rule(
    implementation = _tf_wheel_impl,
    attrs = {
        "library": attr.label(allow_single_file = True),
        "maker": attr.label(allow_single_file = True),
    },
)
