package testbed

import (
	"bufio"
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/libml/onnx"
)

// Machine says where, when and with what a report was measured. Every stored
// report has it.
type Machine struct {
	Date     string `json:"date"` // RFC 3339, UTC
	Penstock string `json:"penstock"`
	Go       string `json:"go"`
	Kernel   string `json:"kernel"`
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"`
	// GPUs is empty if there is no driver. Driver is the kernel driver's
	// version, CUDA the max version that it supports, ONNXRuntime the library's
	// version.
	GPUs        []GPU  `json:"gpus,omitempty"`
	Driver      string `json:"driver,omitempty"`
	CUDA        string `json:"cuda,omitempty"`
	ONNXRuntime string `json:"onnx_runtime,omitempty"`
}

// GPU is one of a machine's GPUs.
type GPU struct {
	Name        string `json:"name"`
	UUID        string `json:"uuid"`
	MemoryBytes int64  `json:"memory_bytes"`
}

// ThisMachine describes the machine that this process runs on. penstock is this
// binary's version. Unknown fields stay empty.
func ThisMachine(penstock string) Machine {
	m := Machine{
		Date: time.Now().UTC().Format(time.RFC3339), Penstock: penstock, Go: runtime.Version(),
		CPU: processorName(), CPUs: runtime.NumCPU(),
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
	}
	m.ONNXRuntime = runtimeVersion()
	session, err := nvml.Open()
	if err != nil {
		return m
	}
	if driver, cuda, err := session.Driver(); err == nil {
		m.Driver = driver
		m.CUDA = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10) // 13000 means 13.0
	}
	devices, err := session.Devices()
	if err != nil {
		return m
	}
	for _, d := range devices {
		m.GPUs = append(m.GPUs, GPU{Name: d.Name, UUID: d.UUID, MemoryBytes: d.MemoryBytes})
	}
	return m
}

// runtimeVersion returns ONNX Runtime's version from its symbols, without
// loading it.
func runtimeVersion() string {
	path, err := onnx.Library()
	if err != nil {
		return ""
	}
	library, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer library.Close()
	symbols, err := library.DynamicSymbols()
	if err != nil {
		return ""
	}
	for _, s := range symbols {
		if s.Name == "OrtGetApiBase" {
			return strings.TrimPrefix(s.Version, "VERS_")
		}
	}
	return ""
}

// processorName returns the first processor's name, as the kernel reports it.
func processorName() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
