# sparsenmt on the CPU. Build: docker build -t sparsenmt .
# Run: docker run --rm -v "$PWD:/data" sparsenmt train recipe.yaml
FROM python:3.12-slim

# The CPU build of torch; leave the argument empty for the default (CUDA) build.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

WORKDIR /opt/sparsenmt
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY sparsenmt sparsenmt
COPY recipes recipes
RUN pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt '.[plots]'

RUN useradd --create-home --uid 1000 sparsenmt && mkdir /data && chown sparsenmt /data
USER sparsenmt
WORKDIR /data
ENTRYPOINT ["sparsenmt"]
CMD ["--help"]
