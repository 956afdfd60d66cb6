package shm

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"golang.org/x/sys/unix"
)

func newRegion(t *testing.T, size int, o Options) *Region {
	t.Helper()
	r, err := Create("test", size, o)
	must.OK(t, err)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestRegion(t *testing.T) {
	for _, o := range []Options{{}, {Writable: true}, {HugePages: true}, {HugePages: true, Writable: true}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			r := newRegion(t, 10000, o)
			if r.Size() != 10000 || len(r.Bytes()) != 10000 {
				t.Fatalf("size %d, %d bytes", r.Size(), len(r.Bytes()))
			}
			for i, b := range r.Bytes() {
				if b != 0 {
					t.Fatalf("byte %d is %d", i, b)
				}
			}
			other, err := Map(dup(t, r.File()), 10000, o.Writable)
			must.OK(t, err)
			defer other.Close()
			r.Bytes()[9999] = 7
			if other.Bytes()[9999] != 7 {
				t.Error("what one writes the other does not read")
			}
			if o.Writable {
				other.Bytes()[0] = 8
				if r.Bytes()[0] != 8 {
					t.Error("what the other writes this one does not read")
				}
			}
		})
	}
}

func TestReadOnlyRegion(t *testing.T) {
	r := newRegion(t, 4096, Options{})
	if w, err := Map(dup(t, r.File()), 4096, true); err == nil {
		w.Close()
		t.Error("mapped for writing")
	}
	// Opening it again does not make it writable either.
	again, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(r.File().Fd())), os.O_RDWR, 0)
	if err != nil {
		return // cannot even be opened
	}
	if w, err := Map(again, 4096, true); err == nil {
		w.Close()
		t.Error("opened anew and mapped for writing")
	}
	if _, err := unix.Pwrite(int(r.File().Fd()), []byte("x"), 0); err == nil {
		t.Error("written through its descriptor")
	}
}

func TestReadOnlyMap(t *testing.T) {
	r := newRegion(t, 4096, Options{})
	other, err := Map(dup(t, r.File()), 4096, false)
	must.OK(t, err)
	defer other.Close()
	if err := unix.Mprotect(other.mem, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		t.Error("protection lifted")
	}
}

func TestRegionSize(t *testing.T) {
	for _, o := range []Options{{}, {Writable: true}} {
		r := newRegion(t, 8192, o)
		for _, size := range []int64{0, 4096, 16384} {
			if err := unix.Ftruncate(int(r.File().Fd()), size); err == nil {
				t.Errorf("%+v: size changed to %d", o, size)
			}
		}
	}
}

func TestMapTooSmall(t *testing.T) {
	r := newRegion(t, 4096, Options{})
	if _, err := Map(dup(t, r.File()), 8192, false); !errors.Is(err, ErrTooSmall) {
		t.Errorf("map twice the size: %v, want ErrTooSmall", err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "short"))
	must.OK(t, err)
	if _, err := Map(file, 10, false); !errors.Is(err, ErrTooSmall) {
		t.Errorf("map an empty file: %v, want ErrTooSmall", err)
	}
}

func TestCreateErrors(t *testing.T) {
	for name, size := range map[string]int{
		"nothing": 0, "less": -5, "more than the machine has": 1 << 45, "more than there is": math.MaxInt64,
	} {
		t.Run(name, func(t *testing.T) {
			before := openFiles()
			r, err := Create("big", size, Options{HugePages: true})
			if err == nil {
				r.Close()
				t.Fatal("made")
			}
			if !strings.Contains(err.Error(), "big") || strings.Contains(err.Error(), "\n") {
				t.Errorf("unclear: %q", err)
			}
			if openFiles() > before {
				t.Error("a file is left open")
			}
		})
	}
}

func TestCreateFileLimit(t *testing.T) {
	var old unix.Rlimit
	must.OK(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &old))
	limit := unix.Rlimit{Cur: 1 << 20, Max: old.Max}
	must.OK(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &limit))
	defer unix.Setrlimit(unix.RLIMIT_FSIZE, &old)
	newRegion(t, 1<<20, Options{})
	// Without a check SIGXFSZ would end the test here.
	if r, err := Create("test", 1<<20+1, Options{}); !errors.Is(err, unix.EFBIG) {
		if err == nil {
			r.Close()
		}
		t.Errorf("%v, want EFBIG", err)
	}
}

func TestAvailableMemory(t *testing.T) {
	const meminfo = "MemTotal:  1000 kB\nMemAvailable:  100 kB\n"
	for _, test := range []struct {
		name   string
		files  map[string]string
		free   int64
		holder string
		total  int64
	}{
		{"nothing known", nil, math.MaxInt64, "the machine", math.MaxInt64},
		{"machine", map[string]string{"proc/meminfo": meminfo}, 100 << 10, "the machine", 1000 << 10},
		{"version 2", map[string]string{
			"proc/meminfo":                        meminfo,
			"proc/self/cgroup":                    "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max":        "max\n",
			"sys/fs/cgroup/a/b/memory.current":    "5000\n",
			"sys/fs/cgroup/a/memory.max":          "9000\n",
			"sys/fs/cgroup/a/memory.current":      "6000\n",
			"sys/fs/cgroup/a/memory.stat":         "anon 5\ninactive_file 1000\n",
			"sys/fs/cgroup/memory.current":        "1\n",
			"sys/fs/cgroup/memory/memory.strange": "",
		}, 4000, "memory cgroup /sys/fs/cgroup/a", 9000},
		{"version 1", map[string]string{
			"proc/meminfo":     meminfo,
			"proc/self/cgroup": "7:blkio:/x\n4:cpu,memory:/m\n0::/\n",
			"sys/fs/cgroup/memory/m/memory.limit_in_bytes": "50000\n",
			"sys/fs/cgroup/memory/m/memory.usage_in_bytes": "60000\n",
			"sys/fs/cgroup/memory/m/memory.stat":           "inactive_file 3\ntotal_inactive_file 30000\n",
		}, 20000, "memory cgroup /sys/fs/cgroup/memory/m", 50000},
		{"over its limit", map[string]string{
			"proc/self/cgroup":             "0::/\n",
			"sys/fs/cgroup/memory.max":     "10\n",
			"sys/fs/cgroup/memory.current": "20\n",
		}, 0, "memory cgroup /sys/fs/cgroup", 10},
		{"limit above the machine", map[string]string{
			"proc/meminfo":                 meminfo,
			"proc/self/cgroup":             "0::/\n",
			"sys/fs/cgroup/memory.max":     "1000000000\n",
			"sys/fs/cgroup/memory.current": "20\n",
		}, 100 << 10, "the machine", 1000 << 10},
		{"nonsense", map[string]string{
			"proc/meminfo":                 "MemAvailable:\nMemAvailable: x kB\n",
			"proc/self/cgroup":             "\n:\n0\n0::\n",
			"sys/fs/cgroup/memory.max":     "?\n",
			"sys/fs/cgroup/memory.current": "20\n",
		}, math.MaxInt64, "the machine", math.MaxInt64},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range test.files {
				name = filepath.Join(root, name)
				must.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
				must.OK(t, os.WriteFile(name, []byte(text), 0o644))
			}
			if free, holder := availableMemory(root); free != test.free || holder != test.holder {
				t.Errorf("%d of %s, want %d of %s", free, holder, test.free, test.holder)
			}
			if total := totalMemory(root); total != test.total {
				t.Errorf("%d in all, want %d", total, test.total)
			}
		})
	}
}
