# continuo serve | gateway | engine, in one image; there are two targets:
#
#   cpu    (the default) no compiler: the wheel has the native decoder for classes of processors
#   cuda   with the C compiler that Triton needs for the launchers of its kernels
#
# PyTorch's default build includes CUDA. For a small image of the target cpu, as compose.yaml builds
# it, pass the index of its CPU builds:
#   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
#
# The base images, as any with the same programs: Python 3.11 or later with its headers; Node.js 20
# or later.
ARG BASE=python:3.11-slim
ARG NODE_BASE=node:22-slim

FROM ${NODE_BASE} AS page
WORKDIR /src
COPY web/package.json web/package-lock.json web/
RUN npm --prefix web ci --no-audit --no-fund
COPY tools/build_web.sh tools/
COPY web web
RUN mkdir -p realtime/server && sh tools/build_web.sh

# Everything except our own code, so that a change of our code neither downloads nor ships PyTorch
# again. The installation is editable, because only that can be built without our code.
FROM ${BASE} AS packages
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY tools/build_hook.py tools/
# PyTorch's own tests and C++ headers are not needed.
RUN if [ -n "$TORCH_INDEX" ]; then /opt/venv/bin/pip install --index-url "$TORCH_INDEX" "torch>=2.11,<2.14"; fi \
    && /opt/venv/bin/pip install -e . \
    && /opt/venv/bin/pip uninstall -y continuo-server \
    && cd /opt/venv/lib/python3.*/site-packages/torch && rm -rf test include

# The wheel has the native decoder, which is compiled here for processors with AVX2 and with AVX-512
# (or for Arm's), and for the head sizes of common models. A model of another shape runs on PyTorch's
# operations in an image without a compiler, several times slower.
FROM packages AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY continuo continuo
COPY engine engine
COPY realtime realtime
COPY bench bench
COPY --from=page /src/realtime/server/assets realtime/server/assets
RUN /opt/venv/bin/pip wheel --no-deps --wheel-dir /wheels .

FROM ${BASE} AS runtime
# All persistent files are in the home directory, a volume: models, compiled code, the conversations
# of `serve`. It is writable under a read-only root, and not noexec like Docker's tmpfs on /tmp.
RUN useradd --uid 10001 --home-dir /home/continuo --no-create-home --shell /usr/sbin/nologin continuo \
    && install -d -o continuo -g continuo /home/continuo
COPY --from=packages /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/home/continuo \
    CONTINUO_HOST=0.0.0.0
VOLUME /home/continuo
EXPOSE 8000 8100
STOPSIGNAL SIGTERM
ENTRYPOINT ["continuo"]
CMD ["serve"]

FROM runtime AS cuda
# Triton compiles the launcher of each kernel on first use, with Python's headers, which the base
# has. The assembler of CUDA is in Triton's package, the driver comes from the host.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    /opt/venv/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
USER 10001

FROM runtime AS cpu
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    /opt/venv/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
USER 10001
