package check

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/datapath/dpdk"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/libml/python"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/orchestrator/mps"
	"github.com/penstock/penstock/orchestrator/sandbox"
	"github.com/penstock/penstock/shm/cpuset"
)

// machine is what the checks examine, and the node that is to run there. A function field
// is a question that a test answers in place of the machine.
type machine struct {
	config configs.Config

	files       root   // for the checks of DPDK: /proc, /sys and /dev
	dpdkVersion string // empty in a build without DPDK

	onnxLibrary func() (path string, err error)
	trySandbox  func(ctx context.Context, u *sandbox.User, self string) (sandbox.State, error)
	tryGuests   func(uid int) (missing []error, err error)
	tryLimits   func(cgroup.Limits) error

	gpus       func() gpus // finds them once
	openNVML   func() (nvml.Session, error)
	tryMPS     func(context.Context, mps.Options) error
	foreignMPS func(dir, uuid string) []mps.Stranger

	// ffmpeg runs the program with these arguments.
	ffmpeg func(ctx context.Context, args ...string) (output string, err error)

	pythonCommand func(module string) ([]string, error)
	pyTorch       func(context.Context) (version string, err error)
	// otherPyTorch finds another interpreter that has PyTorch; empty if none has.
	otherPyTorch func(context.Context) (interpreter, version string)
}

func thisMachine(c configs.Config) *machine {
	m := &machine{
		config:        c,
		files:         "/",
		dpdkVersion:   dpdk.Version(),
		onnxLibrary:   onnx.Library,
		trySandbox:    sandbox.Try,
		tryGuests:     cgroup.TryGuests,
		tryLimits:     orchestrator.TryLimits,
		openNVML:      nvml.Open,
		tryMPS:        mps.Try,
		foreignMPS:    mps.Strangers,
		ffmpeg:        runFFmpeg,
		pythonCommand: python.Command,
		pyTorch:       python.PyTorch,
		otherPyTorch:  python.PyTorchElsewhere,
	}
	m.gpus = sync.OnceValue(m.findGPUs)
	return m
}

// dpdk is the DPDK section of the configuration. It is the zero value if packets come from
// kernel sockets.
func (m *machine) dpdk() (section configs.DPDK, configured bool) {
	if m.config.Source.DPDK == nil {
		return section, false
	}
	return *m.config.Source.DPDK, true
}

// root is the folder that a machine's files are in, "/" except in tests.
type root string

func (r root) path(name string) string { return filepath.Join(string(r), name) }

func (r root) exists(name string) bool {
	_, err := os.Stat(r.path(name))
	return err == nil
}

// text is the contents of a file without the white space around it.
func (r root) text(name string) (string, error) {
	text, err := os.ReadFile(r.path(name))
	return string(bytes.TrimSpace(text)), err
}

func (r root) number(name string) (int, error) {
	text, err := r.text(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// list reads the kernel's format for lists of numbers, such as 0-3,8.
func (r root) list(name string) ([]int, error) {
	text, err := r.text(name)
	if err != nil || text == "" {
		return nil, err
	}
	list, err := cpuset.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return list, nil
}

// names are those of a folder's entries.
func (r root) names(dir string) (names []string) {
	entries, _ := os.ReadDir(r.path(dir)) // a folder that is missing has none
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// link is the last part of a symbolic link's target, empty if there is no link.
func (r root) link(name string) string {
	target, err := os.Readlink(r.path(name))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}
