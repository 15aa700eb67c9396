# Two images: `services` (no PyTorch, some 170 MB of packages) and `demo` (a training job on the CPU with everything around it).
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS source
# For the scanner of traces; it stays out of the images that are run.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY LICENSE README.md pyproject.toml constraints.txt ./
COPY eroica eroica
COPY schemas schemas
COPY topology topology
COPY bus bus
COPY producers producers
COPY streams streams
COPY localizer localizer
COPY consumers consumers
COPY simulator simulator
COPY offline offline
COPY cli cli
RUN python -m venv /opt/eroica

FROM source AS services-build
RUN /opt/eroica/bin/pip install --no-cache-dir -c constraints.txt '.[streams,agent]'

FROM source AS demo-build
RUN /opt/eroica/bin/pip install --no-cache-dir -c constraints.txt '.[demo]'

FROM python:${PYTHON}-slim AS runtime
RUN groupadd --gid 10001 eroica && useradd --uid 10001 --gid 10001 --create-home eroica
ENV PATH=/opt/eroica/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /home/eroica
ENTRYPOINT ["eroica"]

FROM runtime AS demo
COPY --from=demo-build /opt/eroica /opt/eroica
CMD ["demo"]

FROM runtime AS services
COPY --from=services-build /opt/eroica /opt/eroica
CMD ["--help"]
