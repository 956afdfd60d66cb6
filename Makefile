# Penstock. `make demo` and `make test` are all that most people need.
#
#   make build   bin/penstock, and beside it in bin/lib ONNX Runtime and libpenstock.so
#   make test    build, then every test
#   make demo    three real models answer real pictures for DURATION (30s)
#   make examples  bin/examples, the programs of examples/
#   make check   gofmt, go vet, staticcheck
#   make fuzz    each fuzz target for FUZZTIME (10s)
#   make race    every test under the race detector
#   make ptx     the kernels' PTX from the .cu beside it, with nvcc or clang (PTXCC=...)
#
#   make build-dpdk  bin/penstock with packets from DPDK (apt-get install libdpdk-dev pkg-config)
#   make test-dpdk   build-dpdk, then every test of it, as root: namespaces, veth, real traffic
#
# For a GPU server, which needs no Go (docs/benchmarks/h200.md):
#
#   make gpu-kit ORT_CUDA=DIR   .kit/gpu: all there is to run there, with the ONNX Runtime of DIR
#   make test-gpu               there: every test that needs a GPU; fails where one is skipped
#   make bench-gpu WHAT=all     there: gather, overhead, swap, limit, fault, weights, dpdk; JSON into OUT (out)
#   make evaluate-gpu FIGURE=all  there: the paper's evaluation; goes on where it stopped; JSON into OUT/evaluation
#   make plots                  figures and tables of docs/benchmarks and docs/evaluation, from the JSON beside them
#   make bench-plan             the planner's policies beside each other, half an hour; JSON for make plots

GO       ?= go
DURATION ?= 30s
FUZZTIME ?= 10s
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
ARCH     := $(shell uname -m)

# The module that carries libonnxruntime.so; its version and hash stand in
# go.mod and go.sum.
CARRIER := github.com/k2-fsa/sherpa-onnx-go-linux
ORT_amd64 := x86_64-unknown-linux-gnu
ORT_arm64 := aarch64-unknown-linux-gnu
GOARCH  := $(shell $(GO) env GOARCH 2>/dev/null)

export PENSTOCK_ONNXRUNTIME := $(CURDIR)/bin/lib/libonnxruntime.so

# What `make ptx` compiles with: nvcc or clang, whichever is found first.
PTXCC    ?=

.PHONY: build library examples test demo check fuzz race ptx clean build-dpdk test-dpdk gpu-kit test-gpu bench-gpu evaluate-gpu bench-plan plots

build: bin/lib/libonnxruntime.so library
	$(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/penstock ./cmd/penstock

# libml for programs in C and Python. It shows what libml/capi/penstock.h declares.
CAPI_LDFLAGS := -s -w -extldflags '-Wl,-soname,libpenstock.so -Wl,--version-script=$(CURDIR)/libml/capi/penstock.map'

LIBRARY      ?= bin/lib/libpenstock.so

library:
	$(GO) build -buildmode=c-shared -trimpath -ldflags "$(CAPI_LDFLAGS)" -o $(LIBRARY) ./libml/capi/libpenstock

bin/lib/libonnxruntime.so: go.mod
	$(if $(ORT_$(GOARCH)),,$(error no ONNX Runtime for $(GOARCH): the carrier has amd64 and arm64))
	$(GO) mod download $(CARRIER)
	mkdir -p bin/lib
	install -m 0755 "$$($(GO) list -m -f '{{.Dir}}' $(CARRIER))/lib/$(ORT_$(GOARCH))/libonnxruntime.so" $@

# DPDK is found by pkg-config; cgo is told here what to say when it is not there.
build-dpdk: bin/lib/libonnxruntime.so
	@pkg-config --exists libdpdk || { echo "no DPDK to build with: apt-get install libdpdk-dev pkg-config" >&2; exit 1; }
	$(GO) build -tags dpdk -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/penstock ./cmd/penstock

# The packages that change with the tag, then whole nodes on real traffic.
test-dpdk: build-dpdk
	@test "$$(id -u)" = 0 || { echo "make test-dpdk makes network namespaces and opens raw sockets: run it as root" >&2; exit 1; }
	$(GO) vet -tags dpdk ./...
	$(GO) test -tags dpdk -count=1 ./manager/... ./cmd/... ./bench/...
	PENSTOCK_DPDK_BINARY=$(CURDIR)/bin/penstock $(GO) test -tags dpdk -count=1 -timeout 20m $(TESTFLAGS) ./test/dpdk

examples: library
	$(GO) build -trimpath -o bin/examples/callbacks ./examples/callbacks
	CC="$(CC)" examples/c/build.sh bin/lib bin/examples/c

test: build examples
	$(GO) test -timeout 20m ./...

demo: build
	bin/penstock demo --duration $(DURATION) --out out

check:
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "not gofmt-ed:" $$unformatted; exit 1; fi
	$(GO) vet ./...
	CGO_ENABLED=0 $(GO) vet ./...
	$(GO) tool staticcheck ./...

race: build
	$(GO) test -race ./...

# Few tries at making each interesting input smaller: a minute an input, which is the
# default, would be all that a short run does.
fuzz: build
	@for pkg in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
	    echo "$$pkg $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$pkg || exit 1; \
	  done; \
	done

ptx:
	libml/device/gpu/ptx.sh "$(PTXCC)"
	libml/device/gpu/ptx.sh "$(PTXCC)" libml/null/null.cu
	libml/device/gpu/ptx.sh "$(PTXCC)" examples/c/fashion.cu

gpu-kit:
	GO="$(GO)" VERSION="$(VERSION)" ORT_CUDA="$(ORT_CUDA)" test/gpu/kit.sh

test-gpu:
	test/gpu/run.sh test $(TESTFLAGS)

bench-gpu:
	test/gpu/run.sh bench $(or $(WHAT),all)

evaluate-gpu:
	test/gpu/run.sh evaluate $(or $(FIGURE),all)

bench-plan: build
	mkdir -p docs/benchmarks/planner
	bin/penstock bench plan --only delays --limit 60s -o json > docs/benchmarks/planner/delays.json
	bin/penstock bench plan --only counts -o json > docs/benchmarks/planner/counts.json

plots:
	$(GO) run ./bench/plot docs/benchmarks/h200
	$(GO) run ./bench/plot docs/benchmarks/ingest
	$(GO) run ./bench/plot docs/benchmarks/planner
	$(GO) run ./bench/plot docs/evaluation

clean:
	rm -rf bin out
