# docker build --build-arg VERSION=$(git describe --tags --always) -t gpu-node-provider:dev .
FROM golang:1.26.11 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/gpu-node-provider ./cmd/gpu-node-provider

# Nothing but the program. It needs no CA roots yet: the API server's come with the service account, those of TLS with its files.
FROM scratch
COPY --from=build /out/gpu-node-provider /gpu-node-provider
# A number, because Kubernetes cannot tell from a name that it is not root.
USER 65532:65532
EXPOSE 8086 8087
ENTRYPOINT ["/gpu-node-provider"]
