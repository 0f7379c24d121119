# `polyvoc serve` for photographs that are mounted read-only (docs/serving.md):
#   docker build --tag polyvoc .
#   docker run --rm --publish 127.0.0.1:8000:8000 --volume ~/Pictures:/photographs:ro --volume polyvoc:/data polyvoc

FROM python:3.13.7-slim-bookworm AS build
# Extras of pyproject.toml, separated by commas: --build-arg EXTRAS=stores,mcp
ARG EXTRAS=""
WORKDIR /source
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN python -m venv /opt/polyvoc \
    && /opt/polyvoc/bin/python -m pip install --no-cache-dir --disable-pip-version-check ".${EXTRAS:+[$EXTRAS]}"

FROM python:3.13.7-slim-bookworm
# The index, compiled kernels and the notes of what may be read are on the volume /data, whoever the user is (`--user`).
# There is no folder /photographs: if nothing is mounted there, the index stays as it is.
RUN useradd --uid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin polyvoc && install --directory --mode 1777 /data
COPY --from=build /opt/polyvoc /opt/polyvoc
COPY container/start /usr/local/bin/start
ENV PATH="/opt/polyvoc/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    PHOTOGRAPHS=/photographs \
    POLYVOC_INDEX=/data/photos.polyvoc \
    POLYVOC_HOST=0.0.0.0 \
    HOME=/data \
    XDG_CONFIG_HOME=/data/config \
    NUMBA_CACHE_DIR=/data/kernels
USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8000
# The first index of many photographs takes long; the container is "starting" until then.
HEALTHCHECK --interval=30s --timeout=5s --start-period=6h --start-interval=2s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["start"]
