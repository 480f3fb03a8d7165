"""The files of an image: who may change them, and what a start of Python runs of them."""

import stat
from collections.abc import Mapping
from dataclasses import replace

from tests.rows import each
from tests.verify.test_configuration import LABELS
from tfbuild.context.labels import Planned
from tfbuild.engine import FileEntry, Files
from tfbuild.verify.checks import files
from tfbuild.verify.checks.files import DEBIAN

PLAN = Planned.from_labels("x", LABELS, "amd64")
SITE = "/opt/tensorflow/lib/python3.11/site-packages"
STDLIB = "/usr/lib/python3.11"
SETTINGS = b"home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\n"
SETUPTOOLS = (
    "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; "
    "enabled and __import__('_distutils_hack').add_shim(); \n"
)
NAMESPACE = (
    "import sys, types, os;has_mfs = sys.version_info > (3, 5);p = os.path.join(sys._getframe(1).f_locals['sitedir'], "
    "*('google',));importlib = has_mfs and __import__('importlib.util');has_mfs and __import__('importlib.machinery');"
    "m = has_mfs and sys.modules.setdefault('google', importlib.util.module_from_spec(importlib.machinery.PathFinder."
    "find_spec('google', [os.path.dirname(p)])));m = m or sys.modules.setdefault('google', types.ModuleType('google'));"
    "mp = (m or []) and m.__dict__.setdefault('__path__',[]);(p not in mp) and mp.append(p)\n"
)
FILE, LINK, FOLDER = stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777, stat.S_IFDIR | 0o755
METADATA = f"{SITE}/tensorflow_cpu-2.21.0.dist-info/METADATA"
HONEST: dict[str, bytes | str] = {
    "/usr/bin/python3.11": b"",
    "/usr/bin/python3": "python3.11",
    "/opt/tensorflow/bin/python": "python3.11",
    "/opt/tensorflow/bin/python3": "python3.11",
    "/opt/tensorflow/bin/python3.11": "/usr/bin/python3.11",
    "/opt/tensorflow/bin/pip": b"",
    "/opt/tensorflow/pyvenv.cfg": SETTINGS,
    "/etc/python3.11/sitecustomize.py": DEBIAN,
    f"{STDLIB}/sitecustomize.py": "/etc/python3.11/sitecustomize.py",
    f"{STDLIB}/os.py": b"",
    f"{STDLIB}/__pycache__/os.cpython-311.pyc": b"",
    f"{SITE}/__pycache__/six.cpython-311.pyc": b"",
    f"{SITE}/distutils-precedence.pth": SETUPTOOLS.encode(),
    f"{SITE}/google-nspkg.pth": NAMESPACE.encode(),
    f"{SITE}/tensorflow/__init__.py": b"",
    METADATA: b"Metadata-Version: 2.4\nName: tensorflow_cpu\nVersion: 2.21.0\n",
    "/home/tensorflow/.bashrc": b"",
    "/lib": "usr/lib",
}


def listing(changed: Mapping[str, bytes | str], modes: Mapping[str, FileEntry] = {}) -> Files:
    """The files of an image: bytes, or a link's target. Folders above them are there, too."""
    contents = {**HONEST, **changed}
    entries = {
        path: FileEntry(mode=LINK, uid=0, gid=0, target=content)
        if isinstance(content, str)
        else FileEntry(mode=FILE, uid=0, gid=0)
        for path, content in contents.items()
    }
    folders = {path[:end] for path in contents for end, letter in enumerate(path) if letter == "/" and end}
    entries = {path: FileEntry(mode=FOLDER, uid=0, gid=0) for path in folders} | entries
    found = {path: content for path, content in contents.items() if isinstance(content, bytes) and files.wanted(path)}
    return Files(files=found, links={}, entries={**entries, **modes})


def told(changed: Mapping[str, bytes | str] = {}, modes: Mapping[str, FileEntry] = {}) -> str:
    check = files.compare(PLAN, listing(changed, modes))
    return "" if check.status == "pass" else check.detail


def test_the_files_of_an_honest_image_pass() -> None:
    assert told() == ""


def owned(mode: int = 0o644, uid: int = 0, gid: int = 0, kind: int = stat.S_IFREG) -> FileEntry:
    return FileEntry(mode=kind | mode, uid=uid, gid=gid)


@each(
    "path, entry, fault",
    [
        ("/usr/bin/su", owned(0o4755), "/usr/bin/su is setuid or setgid"),
        ("/usr/bin/wall", owned(0o2755), "/usr/bin/wall is setuid or setgid"),
        ("/home/tensorflow/.x", owned(0o6755), "/home/tensorflow/.x is setuid or setgid"),
        ("/usr/bin/ping", replace(owned(0o755), capable=True), "/usr/bin/ping has capabilities"),
        (
            f"{SITE}/six.py",
            owned(uid=1000),
            "can be changed by the image's user (owner 1000:0, mode 644)",
        ),
        (f"{SITE}/six.py", owned(0o664, gid=1000), f"{SITE}/six.py can be changed by the image's user"),
        (f"{SITE}/six.py", owned(0o646), f"{SITE}/six.py can be changed by the image's user (owner 0:0, mode 646)"),
        (SITE, owned(0o777, kind=stat.S_IFDIR), f"{SITE} can be changed by the image's user"),
        ("/opt", owned(0o755, uid=1000, kind=stat.S_IFDIR), "/opt can be changed by the image's user"),
        ("/usr/local/bin/x", owned(0o755, uid=1000), "/usr/local/bin/x can be changed by the image's user"),
        ("/etc/x\n/y", owned(uid=1000), "/etc/x\n/y can be changed by the image's user"),
    ],
)
def test_what_the_image_s_user_could_change_is_named(path: str, entry: FileEntry, fault: str) -> None:
    assert fault in told(modes={path: entry})


@each(
    "path, entry",
    [
        (f"{SITE}/six.py", owned(0o664)),
        (f"{SITE}/six.py", owned(0o644, gid=1000)),
        (f"{SITE}/six.so", FileEntry(mode=LINK, uid=0, gid=0, target="x")),
        ("/home/tensorflow", owned(0o755, uid=1000, gid=1000, kind=stat.S_IFDIR)),
        ("/tmp", owned(0o1777, kind=stat.S_IFDIR)),
        ("/opt/other", owned(uid=1000)),
        ("/var/mail", owned(0o2775, gid=8, kind=stat.S_IFDIR)),
    ],
)
def test_other_owners_and_modes_are_no_fault(path: str, entry: FileEntry) -> None:
    assert told(modes={path: entry}) == ""


USERS = owned(uid=1000)


@each(
    "changed, modes, fault",
    [
        (
            {f"{SITE}/six.py": "/data/six.py"},
            {"/data/six.py": USERS},
            f"/data/six.py can be changed by the image's user (owner 1000:0, mode 644), and {SITE}/six.py leads there",
        ),
        (
            {f"{SITE}/six.py": "/data/six.py", "/data/six.py": b""},
            {"/data": owned(0o777, kind=stat.S_IFDIR)},
            f"/data can be changed by the image's user (owner 0:0, mode 777), and {SITE}/six.py leads there",
        ),
        (
            {f"{SITE}/six": "/data/six", "/data/six/sub/x.py": b""},
            {"/data/six/sub/x.py": USERS},
            f"/data/six/sub/x.py can be changed by the image's user (owner 1000:0, mode 644), and {SITE}/six leads",
        ),
        # A link on the way, whose end is root's.
        (
            {f"{SITE}/six.py": "/data/link"},
            {"/data/link": FileEntry(mode=LINK, uid=1000, gid=0, target="/usr/bin/python3.11")},
            "/data/link can be changed",
        ),
        # A second link, in a folder that the first one leads to.
        (
            {f"{SITE}/six": "/data/six", "/data/six/y": "/more", "/more/y.py": b""},
            {"/more/y.py": USERS},
            "/more/y.py can be changed",
        ),
        # Nothing is there yet.
        (
            {f"{SITE}/six.py": "/home/tensorflow/.six"},
            {"/home/tensorflow": owned(0o755, uid=1000, kind=stat.S_IFDIR)},
            "/home/tensorflow can be changed",
        ),
        (
            {"/usr/lib/python3.11": "/data/lib", "/data/lib/os.py": b""},
            {"/data/lib/os.py": owned(0o666)},
            "/data/lib/os.py can be changed",
        ),
    ],
)
def test_what_the_system_s_links_lead_to_is_the_system_s(
    changed: dict[str, bytes | str], modes: dict[str, FileEntry], fault: str
) -> None:
    assert fault in told(changed, modes)


def test_a_python_elsewhere_is_judged_as_the_system_s() -> None:
    elsewhere: dict[str, bytes | str] = {
        "/data/bin/python3.11": "/usr/bin/python3.11",
        **settings("home = /data/bin\ninclude-system-site-packages = false\n"),
        "/data/lib/python3.11/os.py": b"",
    }
    assert told(elsewhere) == ""
    assert "and /data/lib/python3.11 leads there" in told(elsewhere, {"/data/lib/python3.11/os.py": owned(0o666)})
    assert "/data can be changed" in told(elsewhere, {"/data": owned(uid=1000, kind=stat.S_IFDIR)})


@each(
    "changed",
    [
        {"/etc/mtab": "/proc/mounts"},
        {f"{SITE}/six.py": "/data/six.py", "/data/six.py": b""},
        {"/usr/all": "/"},
        {"/etc/systemd/system/off.service": "/dev/null"},
        {"/usr/x": "y", "/usr/y": "x"},
    ],
)
def test_links_to_what_root_alone_can_change_are_no_fault(changed: dict[str, bytes | str]) -> None:
    null = owned(0o666, kind=stat.S_IFCHR)
    assert told(changed, {"/tmp": owned(0o1777, kind=stat.S_IFDIR), "/dev/null": null}) == ""


def settings(text: str) -> dict[str, bytes | str]:
    return {"/opt/tensorflow/pyvenv.cfg": text.encode()}


@each(
    "changed, fault",
    [
        ({"/opt/tensorflow/bin/python3": b""}, "/opt/tensorflow/bin/python3 is not /opt/tensorflow/bin/python"),
        ({"/opt/tensorflow/bin/python3.11": "/evil"}, "which is not that of /opt/tensorflow/bin/python"),
        ({"/opt/tensorflow/bin/python3.9": "/usr/bin/x"}, "/opt/tensorflow/bin/python3.9 is not"),
        (
            {"/opt/tensorflow/bin/pyvenv.cfg": SETTINGS},
            "by /opt/tensorflow/bin/pyvenv.cfg Python takes another library",
        ),
        ({"/opt/tensorflow/bin/python._pth": b""}, "by /opt/tensorflow/bin/python._pth Python takes another library"),
        ({"/usr/bin/python3.11._pth": b""}, "by /usr/bin/python3.11._pth Python takes another library"),
        ({"/usr/bin/pybuilddir.txt": b""}, "by /usr/bin/pybuilddir.txt Python takes another library"),
        ({"/usr/bin/Modules/Setup.local": b""}, "by /usr/bin/Modules/Setup.local Python takes another library"),
        (
            {"/usr/bin/Modules": "/usr/x", "/usr/x/Setup.local": b""},
            "by /usr/bin/Modules/Setup.local Python takes another library",
        ),
        (
            {
                **settings("home = /opt/tensorflow/3.11.7/bin\ninclude-system-site-packages = false\n"),
                "/opt/tensorflow/3.11.7/lib/python311.zip": b"",
            },
            "/opt/tensorflow/3.11.7/lib/python311.zip comes before Python's own library",
        ),
        (settings("home = /usr/bin\ninclude-system-site-packages = true\n"), "includes packages from elsewhere"),
        (
            settings("home = /usr/bin\nInclude-System-Site-Packages=false\ninclude-system-site-packages = true"),
            "includes",
        ),
        (settings("home = /usr/bin\n"), "includes packages from elsewhere"),
        (settings("home = /evil\ninclude-system-site-packages = false\n"), "has Python's home in /evil, which is not"),
        ({"/usr/lib/python311.zip": b""}, "/usr/lib/python311.zip comes before Python's own library"),
        ({f"{STDLIB}/tensorflow.py": b""}, f"{STDLIB} has tensorflow, which hides the package"),
        ({f"{STDLIB}/lib-dynload/tensorflow.cpython-311-x86_64-linux-gnu.so": b""}, "has tensorflow, which hides"),
        (
            {f"{SITE}/sitecustomize.py": DEBIAN + b"evil()\n"},
            f"Python also runs {SITE}/sitecustomize.py",
        ),
        ({f"{SITE}/usercustomize.py": b""}, f"at every start Python also runs {SITE}/usercustomize.py"),
        ({f"{SITE}/usercustomize/__init__.py": b""}, f"at every start Python also runs {SITE}/usercustomize"),
        ({f"{SITE}/sitecustomize.cpython-311-x86_64-linux-gnu.so": b""}, "at every start Python also runs"),
        ({f"{STDLIB}/apport_python_hook.py": b""}, "at every start Python also runs"),
        (
            {"/etc/python3.11/sitecustomize.py": b"evil()\n"},
            f"Python also runs {STDLIB}/sitecustomize.py",
        ),
        ({f"{SITE}/evil.pth": b"import evil\n"}, f"{SITE}/evil.pth says"),
        ({f"{SITE}/evil.pth": b"/elsewhere\n"}, f"{SITE}/evil.pth says"),
        ({f"{SITE}/x.pth": SETUPTOOLS.replace("; \n", "; import evil\n").encode()}, f"{SITE}/x.pth says"),
        ({f"{SITE}/x.pth": NAMESPACE.replace("\n", ";import evil\n").encode()}, f"{SITE}/x.pth says"),
        ({f"{SITE}/x.pth": NAMESPACE.replace("'google',)", "'google', evil())").encode()}, f"{SITE}/x.pth says"),
        ({"/home/tensorflow": "/usr/share/x"}, "the working folder /home/tensorflow is nowhere"),
        (
            {"/home/tensorflow": "/usr/share/x", "/usr/share/x/tensorflow.py": b""},
            "the working folder /home/tensorflow is /usr/share/x",
        ),
        (
            {"/home": "/usr/share/x", "/usr/share/x/tensorflow/tensorflow.py": b""},
            "the working folder /home/tensorflow is /usr/share/x/tensorflow",
        ),
        ({"/home/tensorflow/tensorflow.py": b""}, "/home/tensorflow/tensorflow.py is in the working folder"),
        ({"/home/tensorflow/tensorflow/__init__.py": b""}, "/home/tensorflow/tensorflow is in the working folder"),
        ({"/home/tensorflow/.keras/keras.json": b""}, "/home/tensorflow/.keras is in the working folder"),
        (
            {METADATA: b"Version: 2.20.0\n"},
            "package tensorflow-cpu is of release 2.20.0, but its label says 2.21.0",
        ),
        ({METADATA: b""}, "its package tensorflow-cpu is of release unknown"),
        (
            {f"{SITE}/tensorflow-2.20.0.dist-info/METADATA": b"Version: 2.20.0\n"},
            "package tensorflow is of",
        ),
    ],
)
def test_what_comes_before_or_beside_python_s_own_is_named(changed: dict[str, bytes | str], fault: str) -> None:
    assert fault in told(changed)


def test_another_package_than_the_label_s_is_named() -> None:
    found = listing({})
    assert "has no package tensorflow" in files.compare(replace(PLAN, requirement="tensorflow==2.21.0"), found).detail
    none = Files(files={}, links={}, entries=found.entries)
    assert "has no package" in files.compare(replace(PLAN, requirement=""), none).detail
    file = replace(PLAN, wheel="file", requirement="tensorflow_cpu-2.21.0-cp311-cp311-linux_x86_64.whl")
    assert files.compare(file, found).status == "pass"


def test_at_most_ten_faults_are_told() -> None:
    many = {f"/usr/bin/{number}": owned(0o4755) for number in range(99)}
    assert told(modes=many).count("setuid") == 10
