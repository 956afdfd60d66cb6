package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Spec is what a process may do. Paths are absolute; those that do not exist are skipped.
type Spec struct {
	// User is the user to become; nil keeps the launcher's.
	User *User `json:"user,omitempty"`
	// Path and Args are the program, as in os/exec. Without a program the launcher reports
	// what is in force (see Try). Dir is its working folder; empty keeps the launcher's.
	Path string   `json:"path"`
	Args []string `json:"args"`
	Dir  string   `json:"dir,omitempty"`
	// Parent is the process whose end ends the program.
	Parent int `json:"parent"`
	// Private is the program's own folder, its HOME and TMPDIR. It is locked (flock) while
	// the program, or a process that it started, runs.
	Private string `json:"private,omitempty"`

	// Join lists files of control groups (cgroup.procs). The launcher joins these groups before it does anything
	// else, so the program cannot start a process outside of them.
	Join []string `json:"join,omitempty"`
	// FileBytes bounds the files in the private folder, and those in /dev/shm without a GPU. They are in memory and
	// belong to the program alone, if the launcher may mount.
	FileBytes int64 `json:"file_bytes,omitempty"`

	// The program may read and execute the paths in Execute, read those in Read, and read
	// and change those in Write. Each is a file, or a folder with all its contents. Devices
	// are device files, or folders of them, which may also be controlled (ioctl).
	Execute []string `json:"execute,omitempty"`
	Read    []string `json:"read,omitempty"`
	Write   []string `json:"write,omitempty"`
	Devices []string `json:"devices,omitempty"`
	// Reach lists paths that must be accessible, without a right to read: they have sockets.
	Reach []string `json:"reach,omitempty"`

	// UserOnly changes the user and drops capabilities, but restricts nothing else. The
	// program may then outlive its parent. It is for MPS.
	UserOnly bool `json:"user_only,omitempty"`

	// Nice is the lowest niceness that the program may give itself; 0 leaves the limit.
	Nice int `json:"nice,omitempty"`
	// GPU lets the program and its children do what CUDA does apart from using devices. CUDA
	// connects to abstract Unix sockets of processes outside the sandbox, and writes the
	// names of threads (below /proc).
	GPU bool `json:"gpu,omitempty"`
}

// software lists the folders of software for all users of a machine.
var software = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store"}

// settings are the files in /etc that programs and their libraries read. The whole folder
// would include keys of services that set loose modes.
var settings = []string{
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/alternatives",
	"/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/localtime", "/etc/timezone", "/etc/locale.alias",
	"/etc/os-release", "/etc/mime.types", "/etc/python3", "/etc/OpenCL", "/etc/vulkan", "/etc/nvidia", "/etc/ssl/openssl.cnf",
	"/etc/ssl/certs",
}

// kernel lists the file systems that describe the machine and the process. Landlock protects
// the files in /proc of one sandboxed process from another.
var kernel = []string{"/proc", "/sys"}

// gpuDevices are the device files of NVIDIA's driver, as patterns.
var gpuDevices = []string{"/dev/nvidia*", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"}

// Base is the part of a Spec that all processes have: libraries, settings, the kernel's
// files and the harmless devices. With gpu it includes the driver's devices.
func Base(gpu bool) Spec {
	s := Spec{
		Execute: slices.Clone(software),
		Read:    slices.Concat(settings, kernel),
		Write:   []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm"},
	}
	if gpu {
		for _, pattern := range gpuDevices {
			found, _ := filepath.Glob(pattern) // the only error is a bad pattern
			s.Devices = append(s.Devices, found...)
		}
		s.GPU = true
	}
	return s
}

// AllowProgram lets the process execute a program and what is installed with it. That is its
// folder and, if the folder is named bin, the lib folders next to it. Shims of version
// managers are installed with all versions. A program behind a link (the python3 of a
// virtual environment) is installed in two places.
func (s *Spec) AllowProgram(path string) {
	for _, p := range withTargets(path) {
		dir := filepath.Dir(p)
		s.Execute = append(s.Execute, dir)
		prefix := filepath.Dir(dir)
		switch filepath.Base(dir) {
		case "shims": // of pyenv or asdf: scripts that start programs elsewhere below the prefix
			s.Execute = append(s.Execute, prefix)
		case "bin":
			for _, name := range []string{"lib", "lib64", "share", "include", "pyvenv.cfg"} {
				s.Execute = append(s.Execute, filepath.Join(prefix, name))
			}
		}
	}
}

// AllowArguments lets the process read the files and folders that its arguments name with an
// absolute path. The first file is the script of an interpreter, which also reads modules
// from the script's folder.
func (s *Spec) AllowArguments(arguments []string) {
	script := true
	for _, a := range arguments {
		info, err := os.Stat(a)
		if !filepath.IsAbs(a) || err != nil {
			continue
		}
		s.Read = append(s.Read, a)
		if script && info.Mode().IsRegular() {
			script = false
			s.Read = append(s.Read, filepath.Dir(a))
		}
	}
}

// AllowEnvironment lets the process use the software that search paths in its environment
// name (NAME=value).
func (s *Spec) AllowEnvironment(environment []string) {
	for _, e := range environment {
		name, value, _ := strings.Cut(e, "=")
		if !searched[name] {
			continue
		}
		for _, path := range filepath.SplitList(value) {
			switch {
			case name == "PYTHONUSERBASE":
				path = filepath.Join(path, "lib") // the rest belongs to the user
			case strings.HasPrefix(name, "PENSTOCK_") && filepath.Ext(path) == ".so":
				s.Execute = append(s.Execute, filepath.Dir(path)) // it opens other libraries in its folder
			}
			if filepath.IsAbs(path) && filepath.Clean(path) != "/" {
				s.Execute = append(s.Execute, path)
			}
		}
	}
}

// searched are the variables that name files or folders of code and libraries.
var searched = map[string]bool{
	"LD_LIBRARY_PATH": true, "LD_PRELOAD": true, "PYTHONPATH": true, "PYTHONUSERBASE": true,
	"PENSTOCK_LIBRARY": true, "PENSTOCK_PYTHONPATH": true, "PENSTOCK_ONNXRUNTIME": true, "PENSTOCK_LIBCUDA": true,
	"PENSTOCK_LIBNVML": true,
}

// uid returns the user that the program runs as.
func (s *Spec) uid() int {
	if s.User == nil {
		return os.Geteuid()
	}
	return s.User.UID
}

// needed lists all paths that the program needs, without duplicates.
func (s *Spec) needed() []string {
	all := slices.Concat([]string{s.Path}, s.Execute, s.Read, s.Write, s.Devices, s.Reach)
	if s.Dir != "" {
		all = append(all, s.Dir)
	}
	if s.Private != "" {
		all = append(all, s.Private)
	}
	for i, p := range all {
		all[i] = filepath.Clean(p)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// withTargets returns a path and, if it has links, every path that they lead to.
func withTargets(path string) []string {
	const maxLinks = 40 // the kernel's own bound (path_resolution(7))
	all := []string{path}
	for range maxLinks {
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
		all = append(all, path)
	}
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		all = append(all, real)
	}
	return all
}
