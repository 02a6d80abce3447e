# sparsenmt on the CPU. Build: docker build -t sparsenmt .
# Run: docker run --rm -v "$PWD:/data" sparsenmt train recipe.yaml
# The kernels are compiled in the first stage, for every instruction set; the second one has no compiler.
FROM python:3.12-slim AS wheel

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1

RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/sparsenmt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY sparsenmt sparsenmt
COPY recipes recipes
RUN SPARSENMT_WHEEL_KERNELS=1 pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.12-slim

# The CPU build of torch; leave the argument empty for the default (CUDA) build.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

COPY constraints.txt /opt/sparsenmt/
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c /opt/sparsenmt/constraints.txt \
    "sparsenmt[plots] @ file://$(echo /wheels/*.whl)"

RUN useradd --create-home --uid 1000 sparsenmt && mkdir /data && chown sparsenmt /data
USER sparsenmt
WORKDIR /data
ENTRYPOINT ["sparsenmt"]
CMD ["--help"]
