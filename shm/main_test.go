package shm

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
)

// patience bounds what should happen at once, so that a hang fails the test.
const patience = 60 * time.Second

// childVariable makes the test binary one of the processes of a test. Its value
// is a role and a generation; descriptors 3, 4 and 5 are the channel's files.
const childVariable = "PENSTOCK_SHM_TEST_CHILD"

func TestMain(m *testing.M) {
	if role, ok := os.LookupEnv(childVariable); ok {
		if err := child(role); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Go's poller opens its own files with the first pipe.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := openFiles()
	status := m.Run()
	if after := openFiles(); status == 0 && after > before {
		fmt.Fprintf(os.Stderr, "the tests left %d descriptors open\n", after-before)
		status = 1
	}
	os.Exit(status)
}

func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(entries)
}

// child runs a role.
func child(role string) error {
	role, number, _ := strings.Cut(role, " ")
	if role == "clock" {
		fmt.Println(Now())
		return nil
	}
	generation, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	c, err := NewConsumer(uint32(generation), testGeometry,
		os.NewFile(3, "table"), os.NewFile(4, "ring"), os.NewFile(5, "replies"))
	if err != nil {
		return err
	}
	fmt.Println("attached")
	if ok, err := c.Acquire(0); !ok || err != nil {
		return fmt.Errorf("acquire: %v, %v", ok, err)
	}
	switch role {
	case "serve": // until killed; releases the ring and acquires it again
		echo(c, 0)
	case "toil": // the same, with work to do
		echo(c, 300*time.Microsecond)
	case "take", "start": // then wait to be killed
		slots := c.Recover(nil)
		batch := make([]uint32, testGeometry.Slots)
		for len(slots) < 8 {
			c.Wait(0)
			slots = append(slots, batch[:c.Take(batch)]...)
		}
		if role == "start" {
			c.Start(slots[:4])
		}
		fmt.Println("ready to die")
		unix.Pause()
	default:
		return fmt.Errorf("unknown role %q", role)
	}
	return nil
}

// echo serves forever: the answer to a request is its id.
func echo(c *Consumer, work time.Duration) {
	batch := make([]uint32, 4)
	serve := func(slots []uint32) {
		c.Start(slots)
		time.Sleep(work)
		for _, slot := range slots {
			id := strconv.FormatUint(uint64(c.Request(slot).ID), 10)
			copy(c.ResultBuffer(slot), id)
			c.Complete(slot, Result{Length: uint32(len(id)), ModelVersion: c.generation, Inferred: Now()})
		}
		c.Flush()
		c.BatchEnded(Now())
	}
	for {
		serve(c.Recover(nil))
		for c.Entitled() {
			c.Wait(0)
			serve(batch[:c.Take(batch)])
		}
		c.Release()
		for ok := false; !ok; {
			var err error
			if ok, err = c.Acquire(0); err != nil {
				return
			}
		}
	}
}

// process is a child of a test.
type process struct {
	*exec.Cmd
	out *bufio.Scanner
}

// spawn starts a child with a channel's files.
func spawn(t *testing.T, role string, generation uint32, p *pair) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", childVariable, role, generation))
	cmd.Stderr = os.Stderr
	if p != nil {
		cmd.ExtraFiles = []*os.File{p.table.File(), p.channel.RingFile(), p.channel.RepliesFile()}
	}
	out, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	c := &process{cmd, bufio.NewScanner(out)}
	t.Cleanup(c.kill)
	return c
}

// readLine returns the child's next line.
func (p *process) readLine(t *testing.T) string {
	t.Helper()
	line := make(chan string, 1)
	go func() {
		p.out.Scan()
		line <- p.out.Text()
	}()
	select {
	case l := <-line:
		return l
	case <-time.After(patience):
		t.Fatal("the child says nothing")
		return ""
	}
}

// kill sends SIGKILL, and waits until the process is gone.
func (p *process) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}
