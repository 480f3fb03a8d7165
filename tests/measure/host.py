"""The machine of made-up reports."""

from tfbuild.measure.records import Host

HOST = Host(
    cpu="AMD EPYC", flags=("avx",), machine="x86_64", kernel="6.1.0", cpus=2, quota=None, memory=2**14, engine="20.10"
)
