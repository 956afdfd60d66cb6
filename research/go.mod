module github.com/penstock/penstock/research

go 1.26.0

require github.com/penstock/penstock v0.0.0

require (
	github.com/jedib0t/go-pretty/v6 v6.8.3
	github.com/rs/zerolog v1.35.1
	github.com/spf13/cobra v1.10.2
	golang.org/x/sys v0.49.0
	golang.org/x/term v0.46.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0 // indirect
	github.com/NVIDIA/go-nvml v0.13.0-1 // indirect
	github.com/docker/go-units v0.5.0
	github.com/go-zeromq/zmq4 v0.17.0 // indirect
	github.com/goccy/go-yaml v1.19.2 // indirect
	github.com/k2-fsa/sherpa-onnx-go-linux v1.13.4 // indirect
	github.com/landlock-lsm/go-landlock v0.11.0 // indirect
	github.com/lithammer/fuzzysearch v1.1.8 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	github.com/yalue/onnxruntime_go v1.27.0 // indirect
	github.com/yerden/go-dpdk v0.0.8 // indirect
	golang.org/x/image v0.47.0 // indirect
	golang.org/x/net v0.59.0 // indirect
)

require (
	github.com/dchest/siphash v1.2.3 // indirect
	github.com/go-zeromq/goczmq/v4 v4.2.2 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/mattn/go-colorable v0.1.14 // indirect
	github.com/mattn/go-isatty v0.0.20 // indirect
	github.com/mattn/go-runewidth v0.0.16 // indirect
	github.com/rivo/uniseg v0.4.7 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	kernel.org/pub/linux/libs/security/libcap/psx v1.2.77 // indirect
)

replace github.com/penstock/penstock => ../
