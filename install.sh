#!/bin/sh
# Makes .venv with tfbuild's locked dependencies. Safe to run again.
set -eu
# What a shell may export for other work: where cd goes, where pip installs, and what it takes for installed.
unset CDPATH PYTHONPATH PIP_TARGET PIP_PREFIX PIP_ROOT
export PIP_USER=0
cd "$(dirname "$0")"

usage() {
    cat <<'END'
Usage: [PYTHON=python3.12] ./install.sh [--dev]

Installs tfbuild's locked dependencies into .venv, in this folder. Safe to run again.

  --dev    the test tools too
  --help   this help

PYTHON is the Python of .venv, 3.11 or newer (default: python3). If .venv has another one, it is made again.
END
}

say() { echo "install.sh: $*" >&2; }

lock=requirements.lock
for word in "$@"; do
    case $word in
        --dev) lock=requirements-dev.lock ;;
        --help | -h)
            usage
            exit 0
            ;;
        *)
            echo "error: unknown option $word" >&2
            echo "hint: ./install.sh --help" >&2
            exit 2
            ;;
    esac
done

# Prints the version, and fails where it is too old.
check='import sys; print("%d.%d" % sys.version_info[:2]); sys.exit(sys.version_info < (3, 11))'
python=${PYTHON:-python3}
if ! version=$("$python" -c "$check" 2>/dev/null); then
    echo "error: tfbuild needs Python 3.11 or newer; $python is ${version:-not there}" >&2
    for newer in python3.14 python3.13 python3.12 python3.11; do
        if "$newer" -c "$check" >/dev/null 2>&1; then
            echo "hint: PYTHON=$newer ./install.sh" >&2
            exit 1
        fi
    done
    echo "hint: Debian 12 and Ubuntu 24.04 have one (apt-get install python3); elsewhere install uv and run:" \
        "uv python install 3.13 && PYTHON=\$(uv python find 3.13) ./install.sh" >&2
    exit 1
fi
clear=
# In a folder that was moved, or with a Python that was upgraded, nothing in .venv runs any more.
[ ! -e .venv/bin/invoke ] || .venv/bin/invoke --version >/dev/null 2>&1 || clear=--clear
if [ -n "${PYTHON:-}" ] && [ -x .venv/bin/python ] && [ "$(.venv/bin/python -c "$check")" != "$version" ]; then
    clear=--clear
fi
# A Python that was replaced leaves a link to nothing, an installation that was stopped no pip.
if [ -n "$clear" ] || [ ! -x .venv/bin/python ] || [ ! -x .venv/bin/pip ]; then
    # Debian and Ubuntu keep ensurepip in a package of its own.
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        package=python3-venv
        [ -z "${PYTHON:-}" ] || package=python$version-venv
        if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
            echo "error: this Python cannot make virtual environments" >&2
            echo "hint: install its venv package, for example: sudo apt-get install $package" >&2
            exit 1
        fi
        say "installing $package"
        # Another source that fails, or another apt that runs, need not keep this package from being installed.
        apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends \
            "$package"
    fi
    [ -x .venv/bin/python ] || clear=--clear
    rm -f .venv/requirements*.lock
    say "making .venv with Python $version"
    "$python" -m venv $clear .venv
fi
# Installed before: pip has nothing to do, and is not asked.
if cmp -s "$lock" ".venv/$lock"; then
    say "$lock is installed"
else
    say "installing $lock"
    rm -f .venv/requirements*.lock
    # A pip that was killed can leave part of a package, which the next one takes for installed. INSTALLER comes last.
    for info in .venv/lib/python*/site-packages/*.dist-info; do
        [ -e "$info/INSTALLER" ] || rm -rf "$info"
    done
    # Only errors: pip warns of an index that its configuration names once for each package.
    .venv/bin/python -m pip install -qq --require-hashes -r "$lock"
    cp "$lock" ".venv/$lock"
fi
