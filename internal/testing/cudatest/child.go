package cudatest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
)

// childEnv tells a child process its role: a name and its arguments.
const childEnv = "PENSTOCK_CUDATEST"

// Child runs the other process of a test and exits, if this process was started as
// one. Some tests need two processes. Every TestMain of a package that calls Run
// must call Child first.
func Child() {
	words := strings.Fields(os.Getenv(childEnv))
	if len(words) == 0 {
		return
	}
	play := map[string]func([]string) error{
		"arena": importArena,
		"fault": fault,
	}[words[0]]
	if play == nil {
		fmt.Printf("no child plays %q\n", words[0])
		os.Exit(2)
	}
	if err := play(words[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// inChild runs this test's program again as a child; files become its descriptors
// from 3 on.
func inChild(t *testing.T, files []*os.File, words ...string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(words, " "))
	cmd.ExtraFiles = files
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the other process (%s): %v\n%s", words[0], err, out)
	}
}

// child returns a bound context in a child process.
func child() (*cuda.Context, error) {
	runtime.LockOSThread()
	device, err := cuda.Find("cuda")
	if err != nil {
		return nil, err
	}
	c, err := device.OpenContext()
	if err != nil {
		return nil, err
	}
	return c, c.Bind()
}

// The values that the two processes write.
const (
	parentByte = 0x31
	childByte  = 0x77
)

// expect returns an error unless every byte of device memory has that value.
func expect(c *cuda.Context, p cuda.Pointer, n int, want byte) error {
	got, err := read(c, p, n)
	if err != nil {
		return err
	}
	for i, b := range got {
		if b != want {
			return fmt.Errorf("byte %d of %d is %#x, not %#x", i, n, b, want)
		}
	}
	return nil
}

// read copies device memory to the host.
func read(c *cuda.Context, p cuda.Pointer, n int) ([]byte, error) {
	host, err := c.AllocateHost(n)
	if err != nil {
		return nil, err
	}
	defer c.FreeHost(host)
	s, err := c.NewStream()
	if err != nil {
		return nil, err
	}
	defer s.Destroy()
	if err := s.Copy(cuda.At(host), p, n); err != nil {
		return nil, err
	}
	if err := s.Synchronize(); err != nil {
		return nil, err
	}
	return append([]byte(nil), host...), nil
}

// set fills device memory and waits.
func set(c *cuda.Context, p cuda.Pointer, n int, value byte) error {
	s, err := c.NewStream()
	if err != nil {
		return err
	}
	defer s.Destroy()
	if err := s.Set(p, value, n); err != nil {
		return err
	}
	return s.Synchronize()
}

// importArena maps the parent's arena, which is descriptor 3.
func importArena(words []string) error {
	n, err := strconv.Atoi(words[0])
	if err != nil {
		return err
	}
	c, err := child()
	if err != nil {
		return err
	}
	a, err := c.ImportArena(3, n, false)
	if err != nil {
		return err
	}
	return errors.Join(expect(c, a.Pointer(), n, parentByte), set(c, a.Pointer(), n, childByte), a.Close(), c.Close())
}

// fault makes a kernel write to an invalid address, and checks the errors that the
// process gets from then on.
func fault([]string) error {
	c, err := child()
	if err != nil {
		return err
	}
	m, err := c.Load(PTX)
	if err != nil {
		return err
	}
	f, err := m.Function("penstock_fault")
	if err != nil {
		return err
	}
	s, err := c.NewStream()
	if err != nil {
		return err
	}
	args := cuda.NewArgs(8)
	args.SetPointer(0, 0x10)
	one := [3]uint32{1, 1, 1}
	if err := f.Launch(one, one, 0, s, args); err != nil {
		return fmt.Errorf("the launch itself: %w", err)
	}
	if err := s.Synchronize(); !errors.Is(err, cuda.ErrLost) {
		return fmt.Errorf("after the fault Synchronize says %v", err)
	}
	if _, err := s.Query(); !errors.Is(err, cuda.ErrLost) {
		return fmt.Errorf("after the fault Query says %v", err)
	}
	if _, err := c.Allocate(1 << 20); !errors.Is(err, cuda.ErrLost) {
		return fmt.Errorf("after the fault Allocate says %v", err)
	}
	if err := f.Launch(one, one, 0, s, args); !errors.Is(err, cuda.ErrLost) {
		return fmt.Errorf("after the fault Launch says %v", err)
	}
	return nil
}
