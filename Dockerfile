# SPDX-License-Identifier: Apache-2.0
# Build and run on the same interpreter path, so that the virtual environment can be copied.
FROM python:3.13-slim-trixie AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY hack/image.sh hack/image.sh
COPY flexinfer flexinfer
COPY api api
COPY controllers controllers
COPY internal internal
RUN hack/image.sh /opt/flexinfer

FROM python:3.13-slim-trixie
COPY --from=build /opt/flexinfer /opt/flexinfer
# Where the build step put the bytecode of all that is imported.
ENV PATH=/opt/flexinfer/bin:$PATH PYTHONPYCACHEPREFIX=/opt/flexinfer/pycache
USER 65532:65532
ENTRYPOINT ["/opt/flexinfer/bin/flexinfer"]
