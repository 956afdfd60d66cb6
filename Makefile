# Penstock. `make demo` and `make test` are all that most people need.
#
#   make build   bin/penstock, and beside it in bin/lib ONNX Runtime, libpenstock.so and the libraries of guests
#   make test    build, then the tests; property tests draw fewer values: five minutes
#   make test-all  build, then the tests with every draw and the long cases, as in CI
#   make test-models  models of public packages, each next to its package's code: needs PyPI
#   make test-suites  clients and benchmarks that others wrote, unmodified: needs PyPI
#   make demo    three real models answer real pictures for DURATION (30s)
#   make  42 functions in one process with memory for a third of their models, for DURATION (60s)
#   make examples  bin/examples, the programs of examples/
#   make check   gofmt, go vet, staticcheck, and the prose check (test/prose)
#   make fuzz    each fuzz target for FUZZTIME (10s)
#   make race    the packages whose threads share memory, under the race detector
#   make test-devices  what uses the fake GPU driver, on two of three GPUs
#   make nightly all that CI does and what takes too long for it, before a release: two hours
#   make soak    property tests and packages with threads, random seeds, for SOAKTIME (30m)
#   make flaky   packages with threads 20 times, others 3 times, on a loaded machine;
#                continues where it stopped (test/repeat.sh)
#   make man     manual pages of all verbs in out/man
#   make release  Debian packages without and with DPDK, an archive, and their sums, in bin/release (docs/operations.md)
#   make test-release  release, then the tests of it
#   make ptx     the kernels' PTX from the .cu beside it, with nvcc or clang (PTXCC=...)
#
#   make build-dpdk  bin/penstock with packets from DPDK (apt-get install libdpdk-dev pkg-config)
#   make test-dpdk   build-dpdk, then the tests of it, as root: namespaces, veth, real traffic
#
#   make cluster-tools  the programs of a test cluster (cluster/Makefile), once per version: 20 minutes
#   make test-cluster   cluster-tools, then the tests of cluster/ on real Kubernetes nodes, as root
#   make cluster-demo   cluster-tools, then Penstock on two nodes of a cluster on this machine, as root
#   make bench-cluster  the operator on a cluster of 1,000 nodes that exist only as objects, as root; FLAGS are those of cluster/bench
#
# For a GPU server, which needs no Go (research/results/h200):
#
#   make gpu-kit ORT_CUDA=DIR   .kit/gpu: all there is to run there, with the ONNX Runtime of DIR
#   make test-gpu               there: every test that needs a GPU; fails where one is skipped
#
# research/Makefile has the targets of benchmarks and of the paper's evaluation.

GO       ?= go
DURATION ?= 30s
FUZZTIME ?= 10s
SOAKTIME ?= 30m
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
ARCH     := $(shell uname -m)

# Every compilation has the same flags, so that builds, tests and vet share what they compile.
export GOFLAGS ?= -trimpath

# More build tags of bin/penstock: null for the framework that tests and benchmarks run (cmd/penstock/null.go).
TAGS     ?=

# The module that carries libonnxruntime.so; its version and hash stand in
# go.mod and go.sum.
CARRIER := github.com/k2-fsa/sherpa-onnx-go-linux
ORT_amd64 := x86_64-unknown-linux-gnu
ORT_arm64 := aarch64-unknown-linux-gnu
GOARCH  := $(shell $(GO) env GOARCH 2>/dev/null)

# Property tests draw the same values in every run, so that a failure is the fault of
# the change at hand. `make soak` and `make flaky` draw others.
export RAPID_SEED ?= 20261122
# A failure names its seed; files that repeat it would stay in the tree.
export RAPID_NOFAILFILE ?= 1

# STRICT=1, as in CI: a skipped test fails the run (internal/testing/gotest).
GOTEST = $(GO) run ./internal/testing/gotest $(if $(STRICT),-strict)

# Every package but those that have a target of their own. The first one takes longest,
# so it starts first. `make check` has all of go vet.
TESTED = -vet=off ./test/e2e $$($(GO) list ./... | grep -vE '/test/(dpdk|models|release|suites)$$')

export PENSTOCK_ONNXRUNTIME := $(CURDIR)/bin/lib/libonnxruntime.so

# `make ptx` compiles with nvcc or clang, the first that is found.
PTXCC    ?=

.PHONY: build program man release library guest-libraries examples test test-all test-models test-release test-suites demo demo-camera check fuzz race nightly soak flaky ptx clean cluster-tools test-cluster cluster-demo bench-cluster build-dpdk test-dpdk test-devices gpu-kit test-gpu page-vendor

build: program library guest-libraries

# All that users of the demos need. A first build compiles 490 packages; -v names each.
program: bin/lib/libonnxruntime.so
	$(if $(wildcard bin/penstock),,@echo "Compiling Penstock and its libraries. This takes one to two minutes the first time, and seconds later.")
	$(GO) build $(if $(wildcard bin/penstock),,-v) -tags "$(TAGS)" -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/penstock ./cmd/penstock

# libml for programs in C and Python. It shows what libml/capi/penstock.h declares.
CAPI_LDFLAGS := -s -w -extldflags '-Wl,-soname,libpenstock.so -Wl,--version-script=$(CURDIR)/libml/capi/penstock.map'

LIBRARY      ?= bin/lib/libpenstock.so

library:
	$(GO) build -buildmode=c-shared -trimpath -ldflags "$(CAPI_LDFLAGS)" -o $(LIBRARY) ./libml/libpenstock

# The libraries that penstock run preloads into guests. That of --swap has x86-64 assembly.
GUEST_LIBRARIES ?= bin/lib

guest-libraries:
	CC="$(CC)" cuda/yield/library/build.sh $(GUEST_LIBRARIES)/libpenstock-yield.so
	$(if $(filter x86_64,$(ARCH)),CC="$(CC)" cuda/swap/library/build.sh $(GUEST_LIBRARIES)/libpenstock-swap.so)

bin/lib/libonnxruntime.so: go.mod
	$(if $(ORT_$(GOARCH)),,$(error no ONNX Runtime for $(GOARCH): the carrier has amd64 and arm64))
	@echo "Getting ONNX Runtime from the Go module $(CARRIER), 34 MB."
	$(GO) mod download $(CARRIER)
	mkdir -p bin/lib
	install -m 0755 "$$($(GO) list -m -f '{{.Dir}}' $(CARRIER))/lib/$(ORT_$(GOARCH))/libonnxruntime.so" $@

# pkg-config finds DPDK. cgo would not say what is missing.
build-dpdk: PROGRAM ?= bin/penstock
build-dpdk: bin/lib/libonnxruntime.so
	@pkg-config --exists libdpdk || { echo "no DPDK to build with: apt-get install libdpdk-dev pkg-config" >&2; exit 1; }
	$(GO) build -tags "$(strip dpdk $(TAGS))" -trimpath -ldflags "-X main.version=$(VERSION)" -o $(PROGRAM) ./cmd/penstock

# The packages that the tag changes (all with DPDK_TESTS=./...), then whole nodes on real traffic.
DPDK_TESTS ?= $$(GO="$(GO)" test/tagged.sh dpdk tests)

test-dpdk: TAGS = null
test-dpdk: build-dpdk
	@test "$$(id -u)" = 0 || { echo "make test-dpdk makes network namespaces and opens raw sockets: run it as root" >&2; exit 1; }
	$(GO) vet -tags dpdk $$(GO="$(GO)" test/tagged.sh dpdk)
	$(GOTEST) -vet=off -tags dpdk -count=1 $(DPDK_TESTS)
	PENSTOCK_DPDK_BINARY=$(CURDIR)/bin/penstock $(GOTEST) -vet=off -tags dpdk -count=1 -timeout 20m $(TESTFLAGS) ./test/dpdk

test-devices: export PENSTOCK_FAKE_GPUS = 3
test-devices: export CUDA_VISIBLE_DEVICES = 0,2
test-devices: build
	$(GOTEST) -vet=off -count=1 ./cuda ./libml/gpu ./libml/weights ./orchestrator
	$(GOTEST) -vet=off -count=1 -run '^(TestGPU|TestTimeSharing)' -skip '^TestGPU(Vanishes|Fails)$$' ./test/e2e

man: build
	bin/penstock man out/man

release: build
	$(MAKE) --no-print-directory build-dpdk PROGRAM=bin/penstock-dpdk
	GO="$(GO)" VERSION="$(VERSION)" configs/release/build.sh bin/release

test-release: release
	PENSTOCK_RELEASE=$(CURDIR)/bin/release $(GOTEST) -vet=off -count=1 $(TESTFLAGS) ./test/release

examples: library
	$(GO) build -trimpath -o bin/examples/callbacks ./examples/callbacks
	CC="$(CC)" examples/c/build.sh bin/lib bin/examples/c

test: export RAPID_CHECKS ?= 30
test: build examples
	@echo "The tests take about five minutes on two idle cores. Each package is printed when it is done."
	$(GOTEST) -short -timeout 20m $(TESTED)

test-all: build examples
	$(GOTEST) -slow 10 -timeout 40m $(TESTED)

test-models: program
	PENSTOCK_MODELS_BINARY=$(CURDIR)/bin/penstock $(GOTEST) -vet=off -count=1 $(TESTFLAGS) ./test/models

test-suites: program
	PENSTOCK_SUITES_BINARY=$(CURDIR)/bin/penstock $(GOTEST) -vet=off -count=1 -timeout 90m $(TESTFLAGS) ./test/suites

demo: program
	bin/penstock demo --duration $(DURATION) --out out $(if $(DEVICE),--device $(DEVICE))

demo-camera: program
	bin/penstock demo --camera --out out $(if $(OPEN),--open)

check:
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "not gofmt-ed:" $$unformatted; exit 1; fi
	$(GO) vet ./...
	CGO_ENABLED=0 $(GO) vet $(if $(NIGHTLY),./...,./cmd/penstock)
	for system in darwin windows; do GOOS=$$system $(GO) build ./client || exit 1; done
	$(GO) tool staticcheck ./...
	$(GO) run ./test/prose

# Whole nodes are other processes, which the race detector does not see. The values that a property draws matter less than the
# threads that run. The detector lets every process sleep for a second before it exits, so that late races are seen: 50 ms are
# enough, and tests start hundreds of processes. TestPTX interprets kernels in one thread for a minute.
race: export RAPID_CHECKS ?= $(if $(NIGHTLY),100,10)
race: export GORACE ?= atexit_sleep_ms=50
race: build
	$(GOTEST) -vet=off -race $(if $(NIGHTLY),,-short -skip '^TestPTX$$') -timeout 30m $$(GO="$(GO)" test/threaded.sh shared | grep -vE '/test/(e2e|dpdk|gpu|models|release|suites)$$')

soak: build examples
	GO="$(GO)" test/repeat.sh soak $(SOAKTIME)

flaky: build examples
	GO="$(GO)" test/repeat.sh flaky

fuzz: build
	GOWORK=$(CURDIR)/research/go.work GO="$(GO)" FUZZTIME=$(FUZZTIME) test/fuzz.sh

# CI with its limits removed. Its output goes into the note that closes an issue.
nightly: export NIGHTLY = 1
nightly:
	.ci/run

ptx:
	libml/gpu/ptx.sh "$(PTXCC)"
	libml/gpu/ptx.sh "$(PTXCC)" internal/testing/null/null.cu
	libml/gpu/ptx.sh "$(PTXCC)" examples/c/fashion.cu

gpu-kit:
	GO="$(GO)" VERSION="$(VERSION)" ORT_CUDA="$(ORT_CUDA)" test/gpu/kit.sh

test-gpu:
	test/gpu/run.sh test $(TESTFLAGS)

# The chart library of the gateway's page. Its version is also in NOTICE.
UPLOT := uplot@1.6.32

page-vendor:
	dir=$$(mktemp -d) && cd $$dir && npm pack --silent $(UPLOT) && tar xf *.tgz && \
	install -m 0644 package/dist/uPlot.esm.js package/dist/uPlot.min.css package/LICENSE $(CURDIR)/gateway/page/vendor/uplot/ && rm -rf $$dir

cluster-tools test-cluster cluster-demo bench-cluster:
	$(MAKE) --no-print-directory -C cluster $@

clean:
	rm -rf bin out
