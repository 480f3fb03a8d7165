# A stand-in for python:3.11-slim where no registry answers: Debian's Python, moved to /usr/local.
FROM {base}
RUN {mounts} . /mnt/network.sh \
    && apt-get update \
    && apt-get install --yes --no-install-recommends python3.11 python3.11-venv \
    && cp /usr/bin/python3.11 /usr/local/bin/ \
    && cp -r /usr/lib/python3.11 /usr/local/lib/ \
    && cp -r /usr/share/python-wheels /usr/share/kept-wheels \
    && apt-get purge --yes 'python3*' 'libpython3*' \
    && rm -rf /usr/share/python-wheels \
    && mv /usr/share/kept-wheels /usr/share/python-wheels \
    && find /usr/local -name __pycache__ -prune -exec rm -rf {{}} +
