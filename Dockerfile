# continuo serve | gateway | engine, in one image.
#
# PyTorch's default build carries CUDA. For an image that is small, give the index of its CPU builds:
#   docker build --build-arg TORCH_INDEX=URL .

FROM node:22-slim AS page
WORKDIR /src
COPY web/package.json web/package-lock.json web/
RUN npm --prefix web ci --no-audit --no-fund
COPY tools/build_web.sh tools/
COPY web web
RUN mkdir -p realtime/server && sh tools/build_web.sh

FROM python:3.11-slim AS build
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
# Everything but our own code first, so that a change of it does not fetch PyTorch again.
RUN if [ -n "$TORCH_INDEX" ]; then /opt/venv/bin/pip install --index-url "$TORCH_INDEX" "torch>=2.11,<2.14"; fi \
    && mkdir engine realtime bench && touch engine/__init__.py realtime/__init__.py bench/__init__.py \
    && /opt/venv/bin/pip install . \
    && /opt/venv/bin/pip uninstall -y continuo
COPY engine engine
COPY realtime realtime
COPY bench bench
COPY --from=page /src/realtime/server/assets realtime/server/assets
RUN /opt/venv/bin/pip install --no-deps .

FROM python:3.11-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin continuo \
    && install -d -o continuo /models
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    HF_HOME=/models
USER 10001
VOLUME /models
EXPOSE 8000 8100
STOPSIGNAL SIGTERM
ENTRYPOINT ["continuo"]
CMD ["serve"]
