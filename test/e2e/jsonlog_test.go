package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/logtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// checkRecord returns an error if a line of a JSON log is invalid. It must be one object without
// duplicate keys, and its message must say what happened.
func checkRecord(line []byte) error {
	if err := checkKeys(line); err != nil {
		return err
	}
	var record struct{ Level, Message, Process string }
	if err := json.Unmarshal(line, &record); err != nil {
		return err
	}
	if record.Level == "" || record.Process == "" || record.Message == "" || record.Message == "process" {
		return errors.New("lacks a level, a process, or a message that says what happened")
	}
	return nil
}

// checkKeys returns an error unless data is one JSON value without duplicate keys.
// encoding/json keeps the last of them silently.
func checkKeys(data []byte) error {
	type object struct {
		keys map[string]bool // nil: an array
		key  bool            // the next token is a key
	}
	var open []object
	d := json.NewDecoder(bytes.NewReader(data))
	for {
		token, err := d.Token()
		if err == io.EOF && len(open) == 0 {
			return nil
		}
		if err != nil {
			return err
		}

		top := len(open) - 1
		if top >= 0 && open[top].keys != nil && token != json.Delim('}') {
			if name, is := token.(string); open[top].key && is {
				if open[top].keys[name] {
					return fmt.Errorf("key %q twice", name)
				}
				open[top].keys[name] = true
			}
			open[top].key = !open[top].key
		}
		switch token {
		case json.Delim('{'):
			open = append(open, object{keys: map[string]bool{}, key: true})
		case json.Delim('['):
			open = append(open, object{})
		case json.Delim('}'), json.Delim(']'):
			open = open[:top]
		}
		if len(open) == 0 && d.More() {
			return errors.New("more than one value")
		}
	}
}

func TestCheckRecord(t *testing.T) {
	for line, want := range map[string]string{
		`{"level":"info","process":"up","message":"a","x":{"y":[1,{"z":2}]},"z":3}`: "",
		`{"level":"info","process":"up","process":"if","message":"a"}`:              `key "process" twice`,
		`{"level":"info","process":"up","message":"a","x":[{"y":1,"y":2}]}`:         `key "y" twice`,
		`{"level":"info","process":"up","message":"process"}`:                       "says what happened",
		`{"level":"info","process":"up","message":"a"}{}`:                           "more than one value",
		`http: Accept error: accept tcp 127.0.0.1:9650`:                             "invalid character",
		`{"level":"info"`: "EOF",
	} {
		if err := checkRecord([]byte(line)); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// lines is a node's whole log.
type lines struct{ logtest.Log }

// check fails the test for each invalid line. A killed node may leave the last one incomplete.
func (l *lines) check(t testing.TB) (records int) {
	t.Helper()
	for line := range strings.Lines(l.String()) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		records++
		if err := checkRecord([]byte(line)); err != nil {
			t.Errorf("%v: %s", err, line)
		}
	}
	return records
}

// TestLogIsJSON runs a node that uses up its descriptors, and one whose manager dies. Their logs
// must be JSON that a program can read, to the last line.
func TestLogIsJSON(t *testing.T) {
	var log lines
	nd, err := node.Start(nodetest.Context(t), node.Options{Binary: penstock, Config: oneFunction(nodetest.Card(t, "digest", small)), Log: &log})
	must.OK(t, err)
	t.Cleanup(nd.Kill)
	pids := map[string]int{}
	for _, p := range nodetest.Processes(nd.Dir) {
		pids[p.Command] = p.PID
	}

	// No process can open another descriptor, so accepting connections and starting processes
	// fail.
	before := map[string]unix.Rlimit{}
	for _, command := range []string{"up", "manager", "orchestrator"} {
		var was unix.Rlimit
		err := unix.Prlimit(pids[command], unix.RLIMIT_NOFILE, nil, &was)
		if err == nil {
			err = unix.Prlimit(pids[command], unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}, nil)
		}
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		before[command] = was
	}
	for _, address := range []struct{ network, name string }{
		{"tcp", nd.HTTP.String()}, {"unix", nd.Dir + "/admin.sock"}, {"unixpacket", nd.Dir + "/attach.sock"}, {"unix", nd.Dir + "/manager.sock"},
	} {
		c, err := net.DialTimeout(address.network, address.name, patience)
		must.OK(t, err)
		defer c.Close()
	}
	for _, p := range nodetest.Processes(nd.Dir) {
		if p.Command == "if" {
			syscall.Kill(p.PID, syscall.SIGKILL)
		}
	}
	wait.For(t, "both listeners, and the orchestrator, to be short of descriptors", func() bool {
		said := log.String()
		return strings.Count(said, "too many open files") > 4 && strings.Contains(said, `"listener":"`+nd.HTTP.String()) && strings.Contains(said, "admin.sock")
	})
	for command, was := range before {
		if err := unix.Prlimit(pids[command], unix.RLIMIT_NOFILE, &was, nil); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
	}
	must.OK(t, nd.WaitReady(nodetest.Context(t)))

	// The last message of a function's process is that its manager has ended. The orchestrator
	// relays it, but only while the orchestrator lives, because it ends the processes of a dead
	// manager.
	syscall.Kill(pids["manager"], syscall.SIGKILL)
	wait.For(t, "up to miss its manager", func() bool { return strings.Contains(log.String(), "child ended") })
	must.OK(t, nd.WaitReady(nodetest.Context(t)))
	if err := nd.Stop(); err != nil {
		t.Error(err)
	}

	t.Logf("%d records, %d of them short of descriptors", log.check(t), strings.Count(log.String(), "too many open files"))
}
