// Package node runs a complete Penstock node, `penstock up` with its processes, as a
// child process. The demo, the benchmarks and the end-to-end tests use it. Each node has
// its own runtime folder, which is removed with the node.
package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/freeport"
)

// Options describe the node to start.
type Options struct {
	// Binary is the penstock binary.
	Binary string
	// Config is the configuration as YAML, without http, gateway and runtime_dir, which
	// come from the fields below. If ConfigFile is set, the node uses that file instead,
	// as it is.
	Config     string
	ConfigFile string
	// HTTP is the address of the node's status. The zero value is a free loopback port.
	HTTP netip.AddrPort
	// Gateway is the address of HTTP inference. The zero value starts no gateway.
	Gateway netip.AddrPort
	// GatewayOptions are more keys of its configuration, like "load: true".
	GatewayOptions []string
	// Args are more arguments for `penstock up`.
	Args []string
	// Environment is added to this process's own, as NAME=value.
	Environment []string
	// Log receives the node's log. Every error also includes its last lines.
	Log io.Writer
	// User is the id of the node's user; 0 is the user of this process.
	User int
	// OnThread starts the node from the caller's thread, so that it gets that thread's
	// namespaces. The node then survives the end of this process.
	OnThread bool
}

// Node is a running node.
type Node struct {
	Dir    string // runtime folder, also holds the configuration
	Config string // configuration file
	HTTP   netip.AddrPort

	command *exec.Cmd
	ended   chan struct{}
	err     error // exit error; valid once ended is closed
	tail    *tail
}

// Start starts a node and waits until every function has a serving process. If the node
// ends before that, the error includes its last log lines. When this process ends, for
// any reason, the node drains; see Options.OnThread for the exception.
func Start(ctx context.Context, o Options) (_ *Node, err error) {
	n := &Node{HTTP: o.HTTP, ended: make(chan struct{}), tail: &tail{}}
	if n.Dir, err = os.MkdirTemp("", "penstock-node-"); err != nil {
		return nil, fmt.Errorf("make runtime folder: %w", err)
	}
	defer func() {
		if err != nil {
			n.Kill()
		}
	}()
	if !n.HTTP.IsValid() {
		if n.HTTP, err = freeport.Find(); err != nil {
			return nil, err
		}
	}
	if n.Config = o.ConfigFile; n.Config == "" {
		if err := n.writeConfig(o); err != nil {
			return nil, err
		}
	}
	args := append([]string{"up", "--config", n.Config, "--runtime-dir", n.Dir}, o.Args...)
	n.command = exec.Command(o.Binary, args...)
	n.command.Env = append(os.Environ(), o.Environment...)
	n.command.Stderr = n.tail
	if o.Log != nil {
		n.command.Stderr = io.MultiWriter(n.tail, o.Log)
	}
	n.command.Stdout = n.command.Stderr
	// Draining grandchildren keep the log's pipe open. Do not wait for them.
	n.command.WaitDelay = time.Second
	n.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if o.User != 0 {
		if err := n.setUser(o.User); err != nil {
			return nil, fmt.Errorf("start node as user %d: %w", o.User, err)
		}
	}
	if o.OnThread {
		if err = n.command.Start(); err == nil {
			go n.wait()
		}
	} else {
		n.command.SysProcAttr.Pdeathsig = syscall.SIGTERM
		started := make(chan error, 1)
		go n.keep(started)
		err = <-started
	}
	if err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	if err := n.WaitReady(ctx); err != nil {
		return nil, err
	}
	return n, nil
}

// writeConfig writes the configuration into the node's folder.
func (n *Node) writeConfig(o Options) error {
	n.Config = filepath.Join(n.Dir, "config.yaml")
	gateway := "off"
	if o.Gateway.IsValid() {
		keys := append([]string{fmt.Sprintf("address: %q", o.Gateway)}, o.GatewayOptions...)
		gateway = "{" + strings.Join(keys, ", ") + "}"
	}
	text := fmt.Sprintf("http: %s\ngateway: %s\n%s", n.HTTP, gateway, o.Config)
	if err := os.WriteFile(n.Config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// setUser makes another user the owner of the node and of its files.
func (n *Node) setUser(user int) error {
	n.command.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
	n.command.Env = append(n.command.Env, "HOME="+n.Dir, "XDG_CACHE_HOME="+filepath.Join(n.Dir, "cache"))
	return errors.Join(os.Chown(n.Dir, user, user), os.Chown(n.Config, user, user))
}

// keep starts the command and waits for its end.
func (n *Node) keep(started chan<- error) {
	// The kernel signals the children of this thread when it ends (PDEATHSIG), so keep
	// it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := n.command.Start()
	started <- err
	if err == nil {
		n.wait()
	}
}

func (n *Node) wait() {
	n.err = n.command.Wait()
	close(n.ended)
}

// browser has a timeout for a node that does not answer.
var browser = &http.Client{Timeout: 5 * time.Second}

// pollEvery is the polling interval while the node starts.
const pollEvery = 20 * time.Millisecond

// WaitReady waits until /readyz reports that the node is ready.
func (n *Node) WaitReady(ctx context.Context) error {
	return n.WaitFor(ctx, "readiness", func() bool {
		response, err := browser.Get(n.url("/readyz"))
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

// WaitFor polls until done is true. It fails if the node or ctx ends first.
func (n *Node) WaitFor(ctx context.Context, what string, done func() bool) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-n.ended:
			return fmt.Errorf("wait for %s: node ended (%v); its last output:\n%s", what, n.err, n.tail)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last output of the node:\n%s", what, context.Cause(ctx), n.tail)
		}
	}
	return nil
}

// Status reads the node's status.
func (n *Node) Status() (control.Status, error) {
	var status control.Status
	response, err := browser.Get(n.url(control.StatusPath))
	if err != nil {
		return status, fmt.Errorf("get status: %w", err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		return status, fmt.Errorf("read status: %w", err)
	}
	return status, nil
}

// Function is the status of one function.
func (n *Node) Function(name string) (control.FunctionStatus, error) {
	status, err := n.Status()
	if err != nil {
		return control.FunctionStatus{}, err
	}
	f, ok := status.Function(name)
	if !ok {
		return f, fmt.Errorf("get status: node has no function %q", name)
	}
	return f, nil
}

// Order sends an order to the manager, like `penstock if`.
func (n *Node) Order(path string, order any) error {
	_, err := control.SendOrder(context.Background(), n.Dir, path, order)
	return err
}

// Metrics is the node's /metrics page.
func (n *Node) Metrics() (string, error) {
	response, err := browser.Get(n.url("/metrics"))
	if err != nil {
		return "", fmt.Errorf("get metrics: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

func (n *Node) url(path string) string { return "http://" + n.HTTP.String() + path }

// Log returns the last lines of the node's log.
func (n *Node) Log() string { return n.tail.String() }

// Ended is closed when the node has ended.
func (n *Node) Ended() <-chan struct{} { return n.ended }

// PID is the process of `penstock up`.
func (n *Node) PID() int { return n.command.Process.Pid }

// Stop drains the node and returns its exit error.
func (n *Node) Stop() error {
	n.command.Process.Signal(syscall.SIGTERM)
	<-n.ended
	os.RemoveAll(n.Dir)
	if n.err != nil {
		return fmt.Errorf("stop node: %w; its last output:\n%s", n.err, n.tail)
	}
	return nil
}

// Kill kills the node. All its processes die with their parents. Kill may be called after
// Stop.
func (n *Node) Kill() {
	if n.command != nil && n.command.Process != nil {
		n.command.Process.Kill()
		<-n.ended
	}
	os.RemoveAll(n.Dir)
}

// tail keeps the last lines written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

// keptBytes of a node's log are enough to show why it ended.
const keptBytes = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - keptBytes; over > 0 {
		// Begin with a whole line, unless no line follows.
		if i := bytes.IndexByte(t.kept[over:], '\n'); i >= 0 && over+i+1 < len(t.kept) {
			over += i + 1
		}
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
