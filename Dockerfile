# docker build --build-arg VERSION=$(git describe --tags --always) -t gpu-node-provider:dev .
# `make image` builds it too, without a registry, into .cache/image.
FROM golang:1.26.11 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
# As in `make build`, so that the binaries are the same, byte for byte.
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o /out/ ./cmd/gpu-node-provider ./cmd/checkpoint-ack

# Nothing but the programs and the roots that AWS's certificates are checked against. A trainer's image takes its program
# from here: COPY --from=gpu-node-provider:dev /checkpoint-ack /usr/local/bin/
FROM scratch
ARG VERSION=dev
# The URL of the code, for a registry that shows it beside the image.
ARG SOURCE=gpu-node-provider
LABEL org.opencontainers.image.title=gpu-node-provider \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.source=${SOURCE} \
      org.opencontainers.image.licenses=Apache-2.0
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/ /
# A number, because Kubernetes cannot tell from a name that it is not root.
USER 65532:65532
EXPOSE 8086 8087 8443
ENTRYPOINT ["/gpu-node-provider"]
