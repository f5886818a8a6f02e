# Two images of lit_fed: `docker build --target cpu .` and `docker build --target cuda .`.
# Untried: written where no image can be built. docs/guides/containers.md says how they are meant.

FROM python:3.11-slim AS wheel
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY lit_fed lit_fed
COPY configs configs
COPY docs/benchmark docs/benchmark
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.11-slim AS installed
RUN useradd --create-home --uid 1000 lit_fed && install --directory --owner lit_fed /work
WORKDIR /work
ENTRYPOINT ["lit-fed"]

FROM installed AS cpu
# The address that pytorch.org shows for CPUs: packages of the usual index bring 4 GB of CUDA libraries.
ARG TORCH_INDEX
RUN test -n "$TORCH_INDEX" && pip install --no-cache-dir --index-url "$TORCH_INDEX" torch torchvision
ARG EXTRAS=federation
RUN --mount=from=wheel,source=/wheel,target=/wheel pip install --no-cache-dir "$(echo /wheel/*.whl)[$EXTRAS]"
USER lit_fed

FROM installed AS cuda
# PyTorch's packages hold the CUDA libraries; the host has the driver and NVIDIA's container toolkit.
ARG EXTRAS=federation
RUN --mount=from=wheel,source=/wheel,target=/wheel pip install --no-cache-dir "$(echo /wheel/*.whl)[$EXTRAS]"
USER lit_fed
