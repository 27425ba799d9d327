# CUDA's compiler, which FlashInfer needs to build kernels, FlashInfer, and this. In a clone:
#   docker build -t flashinfer-perf . && docker run --rm --gpus all flashinfer-perf doctor
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/venv/bin:$PATH
COPY . /opt/pytest-flashinfer-perf
RUN python3 -m venv /opt/venv \
    && pip install --no-cache-dir '/opt/pytest-flashinfer-perf[fuzz,gpu,many,report,trace]'
WORKDIR /work
ENTRYPOINT ["flashinfer-perf"]
CMD ["doctor"]
