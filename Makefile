.DEFAULT_GOAL := help
SHELL := /bin/bash

BIN     := bin/gpu-node-provider
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
TOOLS   := .cache/bin
BUF     := $(TOOLS)/buf generate --config .ci/buf.yaml --template .ci/buf.gen.yaml
FUZZTIME ?= 10s
TESTBED := .cache/controlplane
IMAGE   := .cache/image/gpu-node-provider.tar
SOURCE  ?= gpu-node-provider
TRAINER := .cache/trainer
MOTO    := .cache/moto
E2E_PARALLEL ?= 6

# The Go that builds, tests and scans use, whichever Go starts them: newer toolchains come from the module proxy. The
# Dockerfile names the same version (test/image checks it).
export GOTOOLCHAIN := go$(shell awk '$$1 == "go" {print $$2}' go.mod)

# One setting for builds, tests and the image, so that none of them compiles everything again: -trimpath keeps the names of
# folders out, and the image is built in another one.
export CGO_ENABLED := 0
export GOFLAGS := $(sort $(GOFLAGS) -trimpath -buildvcs=false)

# Without vet, which golangci-lint runs too, and without what only a debugger reads.
GOTEST := go test -vet=off -ldflags=-w

# For what is compiled once to run for minutes: without inlining the compiler needs little more than half the time.
QUICK := -gcflags='all=-l -dwarf=false'

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

.PHONY: build
build: ## Build the static binaries into bin/
	go build -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/gpu-node-provider ./cmd/checkpoint-ack

.PHONY: image
image: build ## Build the image into .cache/image, without a registry (SOURCE=URL: where its code is; PULL=1: pull what it builds on)
	.ci/image '$(VERSION)' '$(SOURCE)' $(IMAGE)

.PHONY: image-test
image-test: image controlplane ## Start the image's programs in a root that holds nothing else
	$(GOTEST) -tags image -count 1 -timeout 10m ./test/image

.PHONY: run
run: build ## Serve on the simulated cloud, to rehearse
	$(BIN) serve --config deploy/examples/simulated.yaml

.PHONY: test
test: build $(MOTO)/bin/python ## Run all tests
	CONFORMANCE_BINARY=$(CURDIR)/$(BIN) $(GOTEST) -timeout 5m ./...

.PHONY: e2e
e2e: testbed ## Play the stories of the whole system on a real control plane (CLUSTER_AUTOSCALER=FILE: on a real autoscaler)
	$(GOTEST) -v -tags e2e -count 1 -timeout 30m -parallel $(E2E_PARALLEL) ./test/e2e

.PHONY: demo
demo: testbed ## Tell the acceptance round on the terminal, on a real control plane
	@go run ./test/testbed/demo

.PHONY: controlplane
controlplane: | .cache ## Build the real control plane for e2e and demo: 9 minutes the first time, then seconds
	@flock $(TESTBED).lock test/controlplane/build $(TESTBED)

.PHONY: trainer-test
trainer-test: $(TRAINER)/bin/python ## Test the example trainer: real processes, real Redis
	$(TRAINER)/bin/python deploy/train-worker/test_worker.py

.PHONY: testbed
testbed: build controlplane $(TRAINER)/bin/python $(MOTO)/bin/python
	@go build -o $(TOOLS)/autoscaler ./test/autoscaler

# The trainer's Python, with what it imports.
$(TRAINER)/bin/python: deploy/train-worker/requirements.txt
	python3 -m venv $(TRAINER)
	$(TRAINER)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: moto
moto: $(MOTO)/bin/python ## Install moto, a stand-in for AWS, for the tests

$(MOTO)/bin/python: cloud/aws/awstest/requirements.txt
	python3 -m venv $(MOTO)
	$(MOTO)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: pages
pages: controlplane $(TRAINER)/bin/python ## Run every command of the documentation, as written
	$(GOTEST) -tags pages -count 1 -timeout 40m -run TestBlocksRun ./test/pages

.PHONY: race
race: $(MOTO)/bin/python ## Run the tests of the program and the clouds under the race detector, long ones shortened
	CGO_ENABLED=1 $(GOTEST) $(QUICK) -race -short -timeout 10m ./provider/... ./cloud/... ./cmd/gpu-node-provider ./test/aws ./test/property/...

.PHONY: lint
lint: $(TOOLS)/golangci-lint ## Check code, formatting and go.mod
	$(TOOLS)/golangci-lint run ./...
	$(TOOLS)/golangci-lint fmt --diff
	go mod tidy -diff

.PHONY: vuln
vuln: $(TOOLS)/govulncheck ## Look for known vulnerabilities that the program can reach, in a database that is a Go module
	@go -C .ci/tools/vuln mod download golang.org/x/vulndb
	$(TOOLS)/govulncheck -db "file://$$(go -C .ci/tools/vuln list -m -f '{{.Dir}}' golang.org/x/vulndb)/data/osv" ./...

.PHONY: fmt
fmt: $(TOOLS)/golangci-lint ## Format the code
	$(TOOLS)/golangci-lint fmt

.PHONY: generate
generate: $(TOOLS)/buf $(TOOLS)/protoc-gen-go ## Generate the Go code in proto/
	$(BUF)

.PHONY: check-generate
check-generate: $(TOOLS)/buf $(TOOLS)/protoc-gen-go ## Check that proto/ holds what `make generate` makes, and nothing else
	@rm -rf .cache/generated
	@$(BUF) -o .cache/generated
	@diff -ru -x doc.go -x '*.proto' .cache/generated/proto proto || \
		{ echo 'proto/ is not what externalgrpc.proto generates: run `make generate` and commit the result' >&2; exit 1; }

# What `make test` plays in a minute is played twenty times and more here. Seeds change from run to run; a failure prints its own.
.PHONY: search
search: ## Play the random tests for long: some 90 minutes on two cores
	$(GOTEST) -count 1 -timeout 90m ./test/property -run '^Test(ProviderHolds|NoTraining)' -rapid.checks=500000
	$(GOTEST) -count 1 -timeout 90m ./test/property/aws -run '^TestCapacity$$' -rapid.checks=100000
	$(GOTEST) -count 1 -timeout 90m ./cloud/aws -run '^TestRaces$$' -rapid.checks=50000
	$(GOTEST) -count 1 -timeout 90m ./cloud/simulated -run '^TestRandomCalls$$' -rapid.checks=100000
	CONFORMANCE_SLOW=yes $(GOTEST) -count 1 -timeout 30m ./test/conformance -run '^TestRule01'
	$(GOTEST) -count 1 -timeout 30m ./test/conformance -run '^TestRule06' -rapid.checks=10000
	$(GOTEST) -count 20 -timeout 30m ./test/conformance ./cloud/simulated -run '^Test(Rule02|KillNine)'

.PHONY: mutants
mutants: ## Check that tests notice when a safeguard of the wiring is left out
	$(GOTEST) -tags mutants -count 1 -timeout 30m ./test/mutants

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s)
	.ci/fuzz $(FUZZTIME) $(QUICK)

.PHONY: bench
bench: controlplane ## Measure calls, gate, guard, AWS and memory; fails on a missed ratio
	go run ./test/bench

# The control plane is needed last and takes the longest. Beside it run the tests, which wait more than they compute, and
# beside e2e, which waits the most, what needs no part of the testbed.
.PHONY: ci
ci: ## Run all that has to pass
	@.ci/steps build test race trainer-test image-test pages e2e -- controlplane check-generate lint vuln fuzz mutants

.PHONY: clean
clean: ## Remove what was built, tools included
	rm -rf bin .cache

.cache:
	@mkdir -p $@

# Each folder of .ci/tools is a module of its own: the tools disagree about their dependencies, and the product's go.mod
# has no business with either.
$(TOOLS)/golangci-lint: .ci/tools/lint/go.mod
$(TOOLS)/govulncheck: .ci/tools/vuln/go.mod
$(TOOLS)/buf: .ci/tools/buf/go.mod
$(TOOLS)/protoc-gen-go: .ci/tools/protoc/go.mod
$(TOOLS)/%:
	go build -C $(<D) $(QUICK) -o $(CURDIR)/$(TOOLS)/ tool
	@touch $@
