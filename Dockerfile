# The program with what the CUDA path finds at run time: NVRTC and cuBLASLt. The driver comes from the host.
#
#   docker build --tag packed-adamw .
#   docker run --rm --gpus all packed-adamw doctor
#   docker run --rm --gpus all --volume "$PWD":/work packed-adamw train

FROM rust:1.95.0-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc git libc6-dev make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package cli

FROM nvidia/cuda:13.0.1-base-ubuntu24.04
RUN apt-get update \
    && apt-get install --yes --no-install-recommends cuda-nvrtc-13-0 libcublas-13-0 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /source/target/release/packed-adamw /usr/local/bin/packed-adamw
COPY LICENSE THIRD_PARTY.md /usr/local/share/doc/packed-adamw/
# Compiled kernels are kept here; a volume keeps them from one run to the next.
ENV PACKED_ADAMW_KERNEL_CACHE=/var/cache/packed-adamw
RUN useradd --create-home --uid 10001 trainer \
    && install --directory --owner trainer /var/cache/packed-adamw /work
USER trainer
WORKDIR /work
HEALTHCHECK --interval=5m --timeout=1m CMD ["packed-adamw", "doctor"]
ENTRYPOINT ["packed-adamw"]
CMD ["doctor"]
