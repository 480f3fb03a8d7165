"""Every refusal and failure of tfbuild: one base class, one exit code a kind, a hint with each.

The exit codes are part of the command line's contract (README, "Exit codes") and never change their meaning.
"""

import unicodedata

from invoke.exceptions import Exit


class TfbuildError(Exit):
    """Base of all errors that tfbuild raises on purpose.

    Invoke's program loop prints an ``Exit``'s message to stderr and leaves with its code, so no task has to catch it.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.reason = fit(message)
        self.hint = hint
        super().__init__(message=str(self), code=self.exit_code)

    def __str__(self) -> str:
        return f"error: {self.reason}" + (f"\nhint: {self.hint}" if self.hint else "")


def fit(text: str) -> str:
    """What a terminal may be shown: errors quote registries, images and logs, which may hold what steers it."""
    return "".join(letter for letter in text if letter in "\n\t" or unicodedata.category(letter)[0] != "C")


class UsageError(TfbuildError):
    """An option's value cannot be read at all."""

    exit_code = 2


class MklWithCuda(TfbuildError):
    """oneDNN ("MKL-DNN") and CUDA were asked for in one build."""

    exit_code = 10


class MklNeedsLinux(TfbuildError):
    """``mkl`` was asked for on a platform that is not Linux."""

    exit_code = 11


class UnknownRelease(TfbuildError):
    """The TensorFlow release is unknown, or does not fit the rest of the request."""

    exit_code = 12


class UnknownPython(TfbuildError):
    """The Python version is unknown, or the release was never built for it."""

    exit_code = 13


class UnknownCpu(TfbuildError):
    """A CPU, level or feature name is unknown, or a CPU description cannot be read."""

    exit_code = 14


class UnknownCompiler(TfbuildError):
    """The compiler is unknown, or cannot build this instruction set."""

    exit_code = 15


class BadWheel(TfbuildError):
    """A wheel file is missing, is not a wheel, or contradicts the plan."""

    exit_code = 16


class UncertainFact(TfbuildError):
    """A fact that the build needs is not known for certain for this release."""

    exit_code = 17


class BadMirror(TfbuildError):
    """A mirror or bundle lacks what the build asks for, breaks off, or was changed."""

    exit_code = 18


class BadSource(TfbuildError):
    """The source to compile is missing, is not TensorFlow's, or is not the one that its digest names."""

    exit_code = 19


class TimeUp(TfbuildError):
    """The compile was stopped at --time-limit; its cache is kept, and the same command goes on from there."""

    exit_code = 75


class Interrupted(TfbuildError):
    """Ctrl-C or SIGTERM; what ran was stopped and taken down."""

    exit_code = 130


class EngineMissing(TfbuildError):
    """No container engine answers, or its client cannot build with BuildKit."""

    exit_code = 20


class DiskFull(TfbuildError):
    """Too little free disk space for the work asked for."""

    exit_code = 21


class BaseUnavailable(TfbuildError):
    """The base image can neither be had from a registry nor be made here."""

    exit_code = 22


class BuildFailed(TfbuildError):
    """The engine could not build the image."""

    exit_code = 23


class VerificationFailed(TfbuildError):
    """The image was built, but is not what its plan claims."""

    exit_code = 24


class UnknownImage(TfbuildError):
    """An image is not on this engine, or was not made by tfbuild."""

    exit_code = 25


class RegistryRefused(TfbuildError):
    """A registry does not answer, refuses, or sends what is not what it should be."""

    exit_code = 26


class NothingFits(TfbuildError):
    """A registry has no image that this host can run."""

    exit_code = 27


class RegressionFound(TfbuildError):
    """A comparison of two benchmarks went beyond what --fail-if allows, or cannot be judged by it."""

    exit_code = 28


class Outdated(TfbuildError):
    """An image is published that was made from another context than the one asked for."""

    exit_code = 29


class Unfinished(TfbuildError):
    """The push of an image came to no end: no index of the registry offers it."""

    exit_code = 30


class CommandFailed(TfbuildError):
    """The command of `bench --command` failed, or the profiler saw nothing of TensorFlow in it."""

    exit_code = 31
