# A small image with the command `rdrr`: the wheel with the extra `serve`, and a software Vulkan driver.
#
# NOT BUILT YET: it was written on a machine without Docker. hadolint accepts it.
#
#   docker build -t rdrr .
#   docker run --rm -v "$PWD:/work" rdrr convert examples/small-llama package
#   docker run --rm -v "$PWD:/work" -p 127.0.0.1:8080:8080 rdrr serve package --host 0.0.0.0
#
# A GPU of the host needs its vendor's driver in the container. For NVIDIA's, install its container
# toolkit and run with `--gpus all -e NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility`.

FROM python:3.11-slim-bookworm AS build
WORKDIR /source
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY . .
# The pip of the image is too old to take hashes from constraints, so it is replaced first.
RUN awk '/^pip==/ {on = 1} on; on && !/\\$/ {exit}' hashes.txt >/tmp/pip.txt \
 && python -m venv /build && python -m venv /opt/rdrr \
 && /build/bin/pip install --require-hashes --upgrade --requirement /tmp/pip.txt \
 && /opt/rdrr/bin/pip install --require-hashes --upgrade --requirement /tmp/pip.txt \
 && /build/bin/pip install --require-hashes -c hashes.txt hatchling \
 && /build/bin/python -m hatchling build -t wheel -d /dist \
 && sha256sum /dist/*.whl >/tmp/sums.txt \
 && awk '{print $2 "[serve] --hash=sha256:" $1}' /tmp/sums.txt >/tmp/wheel.txt \
 && /opt/rdrr/bin/pip install --require-hashes -c hashes.txt --requirement /tmp/wheel.txt \
 && /opt/rdrr/bin/python -m pip uninstall --yes pip

FROM python:3.11-slim-bookworm
# Versions of Debian's packages are those of the base image's release.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends libvulkan1 mesa-vulkan-drivers \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --create-home rdrr
COPY --from=build /opt/rdrr /opt/rdrr
ENV PATH=/opt/rdrr/bin:$PATH
USER 1000
WORKDIR /work
ENTRYPOINT ["rdrr"]
CMD ["--help"]
