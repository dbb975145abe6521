# continuo serve | gateway | engine, in one image.
#
# PyTorch's default build includes CUDA. For a small image, pass the index of its CPU builds:
#   docker build --build-arg TORCH_INDEX=URL .

FROM node:22-slim AS page
WORKDIR /src
COPY web/package.json web/package-lock.json web/
RUN npm --prefix web ci --no-audit --no-fund
COPY tools/build_web.sh tools/
COPY web web
RUN mkdir -p realtime/server && sh tools/build_web.sh

# Everything except our own code, so that a change of our code neither downloads nor ships PyTorch
# again.
FROM python:3.11-slim AS packages
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
# PyTorch's own tests and C++ headers are not needed.
RUN if [ -n "$TORCH_INDEX" ]; then /opt/venv/bin/pip install --index-url "$TORCH_INDEX" "torch>=2.11,<2.14"; fi \
    && mkdir continuo && touch continuo/__init__.py \
    && /opt/venv/bin/pip install . \
    && /opt/venv/bin/pip uninstall -y continuo-server \
    && cd /opt/venv/lib/python3.*/site-packages/torch && rm -rf test include

FROM packages AS build
COPY continuo continuo
COPY engine engine
COPY realtime realtime
COPY bench bench
COPY --from=page /src/realtime/server/assets realtime/server/assets
RUN /opt/venv/bin/pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
# The compiler runs on first use, for the processor at hand: it builds the native decoder on a CPU
# (engine/device/native: four times as fast) and the launchers of Triton's kernels on a GPU. Code
# built into the image would have to fit every processor and every shape of a model.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# All persistent files are in the home directory, a volume: models, compiled code, the conversations
# of `serve`. It is writable under a read-only root, and not noexec like Docker's tmpfs on /tmp.
RUN useradd --uid 10001 --home-dir /home/continuo --no-create-home --shell /usr/sbin/nologin continuo \
    && install -d -o continuo -g continuo /home/continuo
COPY --from=packages /opt/venv /opt/venv
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    /opt/venv/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/home/continuo \
    CONTINUO_HOST=0.0.0.0
USER 10001
VOLUME /home/continuo
EXPOSE 8000 8100
STOPSIGNAL SIGTERM
ENTRYPOINT ["continuo"]
CMD ["serve"]
