"""A cluster that runs actions, on loopback: BuildGrid's scheduler on PostgreSQL, and buildbox workers in containers.

PostgreSQL is Debian 12's and buildbox sid's, both out of one image. buildbox runs by its own loader, so that it needs
nothing of the image that a worker compiles in.
"""

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.ports import free_port
from tests.with_engine import buildgrid
from tests.with_engine.buildgrid import Server
from tests.with_engine.conftest import debian
from tfbuild.engine import Engine

TOOLS = ("buildbox-casd", "buildbox-worker", "buildbox-run-hosttools")
WANTED = "--recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances"
# sid's programs, each with a script of its own that starts it by sid's loader.
BUILDBOX = rf"""cd /etc/apt && sed -n '/^deb.* bookworm main/s/bookworm/sid/p' sources.list > sources.list.d/sid.list \
    && apt-get -o Acquire::Check-Valid-Until=false update && mkdir /opt/debs && cd /opt/debs \
    && apt-cache depends {WANTED} buildbox | grep '^\w' | grep -v '^debconf\|^perl\|^tar$' | sort -u > wanted \
    && apt-get download $(cat wanted) \
    && for file in *.deb; do dpkg-deb --extract $file /opt/buildbox; done && rm -r /opt/debs \
    && mkdir -p /opt/buildbox/bin && libraries=/opt/buildbox/usr/lib/x86_64-linux-gnu \
    && for tool in {" ".join(TOOLS)}; do \
        printf '#!/bin/sh\nexec %s/ld-linux-x86-64.so.2 --library-path %s /opt/buildbox/usr/bin/%s "$@"\n' \
            $libraries $libraries $tool > /opt/buildbox/bin/$tool; \
    done && chmod 755 /opt/buildbox/bin/*"""
# A worker, whose programs are in /opt/buildbox; casd beside it keeps what actions share.
WORKER = """\
docker run --detach --init --restart unless-stopped --network host \\
    --volume /opt/buildbox:/opt/buildbox:ro {image} sh -c '
    PATH=/opt/buildbox/bin:$PATH
    buildbox-casd --cas-remote={url} --bind=unix:/tmp/casd.sock /tmp/casd &
    exec buildbox-worker --bots-remote={url} --cas-remote=unix:/tmp/casd.sock \\
        --buildbox-run=buildbox-run-hosttools --concurrent-jobs=$(nproc) "$(hostname)-$(date +%s%N)"'"""
DATABASE = """set -e
cd /tmp && PATH=/usr/lib/postgresql/15/bin:$PATH
runuser -u postgres -- initdb -D data -A trust > log
exec runuser -u postgres -- postgres -D data -p {port} -c listen_addresses=127.0.0.1 -c fsync=off -k /tmp
"""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Its server, and the workers' containers."""

    engine: Engine
    server: Server
    image: str
    volume: str
    workers: list[str] = field(default_factory=list)

    def add_worker(self, command: str) -> None:
        """Start a worker by the command WORKER."""
        places = {"--volume /opt/buildbox:": f"--volume {self.volume}:", "http://SCHEDULER:50051": self.http}
        for place, own in places.items():
            assert place in command
            command = command.replace(place, own)
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.workers.append(done.stdout.strip())

    @property
    def http(self) -> str:
        return self.server.url.replace("grpc", "http")


def worker(image: str) -> str:
    """The command that starts a worker in an image of one's own choice."""
    return WORKER.format(image=image, url="http://SCHEDULER:50051")


def docker(*words: str) -> str:
    env = {**os.environ, "DOCKER_BUILDKIT": "1"}
    done = subprocess.run(["docker", *words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextlib.contextmanager
def start(engine: Engine, folder: Path) -> Iterator[Cluster]:
    """A cluster without workers."""
    folder.mkdir()
    name, port = f"tfbuild-test-cluster-{uuid.uuid4().hex[:8]}", free_port()
    image = f"tfbuild-test:{name}"
    debian(engine, folder / "image", image, "postgresql", more=BUILDBOX)
    cluster = None
    try:
        docker("run", "--rm", "--volume", f"{name}:/opt/buildbox", "--entrypoint", "true", image)
        script = DATABASE.format(port=port)
        start = ("run", "--detach", "--init", "--network", "host", "--name", name, "--entrypoint", "sh")
        docker(*start, image, "-c", script)
        database = f"postgresql+psycopg2://postgres@127.0.0.1:{port}/postgres"
        with buildgrid.schedule(folder, database) as server:
            cluster = Cluster(engine=engine, server=server, image=image, volume=name)
            yield cluster
    finally:
        for container in (*(cluster.workers if cluster else ()), name):
            subprocess.run(["docker", "rm", "--force", container], capture_output=True, check=False)
        subprocess.run(["docker", "volume", "rm", "--force", name], capture_output=True, check=False)
        engine.untag(image)
