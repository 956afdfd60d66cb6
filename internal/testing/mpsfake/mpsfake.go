// Package mpsfake replaces nvidia-cuda-mps-control and its server in tests, with real
// processes. They start, answer and quit like the originals (driver 580). A test can
// make them refuse, hang, answer late and die.
//
//	func TestMain(m *testing.M) {
//	remove, err := mpsfake.Build()
//	…
//	code := m.Run()
//	remove()
//	os.Exit(code)
//	}
package mpsfake

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock/penstock/internal/testing/wait"
)

const (
	control = "nvidia-cuda-mps-control"
	server  = "nvidia-cuda-mps-server"
	// role is an environment variable that distinguishes the daemon from the program
	// that starts it.
	role = "PENSTOCK_MPSFAKE_ROLE"
)

// Behaviour is how the programs behave; the zero value has no faults.
type Behaviour struct {
	// RefuseStart is the message with which `-d` fails. HangStart makes it never
	// return. DieAtStart makes the daemon exit right after its start.
	RefuseStart string `json:",omitempty"`
	HangStart   bool   `json:",omitempty"`
	DieAtStart  bool   `json:",omitempty"`
	// AnswerAfter delays every answer. Mute suppresses all answers, MuteDaemon only the
	// daemon's.
	AnswerAfter time.Duration `json:",omitempty"`
	Mute        bool          `json:",omitempty"`
	MuteDaemon  int           `json:",omitempty"`
	// NoServer makes start_server start no server. ServerAfter is how long a server
	// initializes.
	NoServer    bool          `json:",omitempty"`
	ServerAfter time.Duration `json:",omitempty"`
	// MuteAfterStart is how long the daemon does not answer after an order to start a
	// server. DieAfterStart makes it exit then.
	MuteAfterStart time.Duration `json:",omitempty"`
	DieAfterStart  bool          `json:",omitempty"`
	// Fault puts the server into the state FAULT.
	Fault bool `json:",omitempty"`
	// HangQuit makes quit wait, as it does if there are clients.
	HangQuit bool `json:",omitempty"`
	// Clients are the process ids that get_client_list lists.
	Clients []int `json:",omitempty"`
}

// Programs are the fake programs in a folder.
type Programs struct{ dir string }

// built is the program that Build built.
var built string

// Build builds the programs with the go command, once per test binary. remove removes
// them.
func Build() (remove func(), err error) {
	dir, err := os.MkdirTemp("", "mpsfake-")
	if err != nil {
		return nil, fmt.Errorf("build fake MPS: %w", err)
	}
	built = filepath.Join(dir, "program")
	const source = "github.com/penstock/penstock/internal/testing/mpsprogram"
	if out, err := exec.Command("go", "build", "-o", built, source).CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("build fake MPS: %w: %s", err, out)
	}
	return func() { os.RemoveAll(dir) }, nil
}

// Install copies the built programs into a folder.
func Install(dir string) (*Programs, error) {
	for _, name := range []string{control, server} {
		if err := os.Symlink(built, filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("install fake MPS: %w", err)
		}
	}
	return &Programs{dir}, nil
}

// Control returns the control program's path.
func (p *Programs) Control() string { return filepath.Join(p.dir, control) }

// Behave changes the behaviour of the programs, including running ones.
func (p *Programs) Behave(b Behaviour) error {
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	file := filepath.Join(p.dir, "behaviour.json")
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// terminated is the file that lists the servers and clients of all orders to terminate a client.
const terminated = "terminated"

// Terminated returns the process ids of all clients that were ordered to be terminated.
func (p *Programs) Terminated() (pids []int) {
	text, _ := os.ReadFile(filepath.Join(p.dir, terminated))
	for line := range strings.Lines(string(text)) {
		var server, pid int
		if _, err := fmt.Sscan(line, &server, &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func behaviour() (b Behaviour) {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(os.Args[0]), "behaviour.json"))
	if err == nil {
		json.Unmarshal(text, &b)
	}
	return b
}

// Main is the programs' main function.
func Main() {
	switch filepath.Base(os.Args[0]) {
	case server:
		io.Copy(io.Discard, os.Stdin) // the server exits when its daemon has exited
		os.Exit(0)
	}
	switch {
	case os.Getenv(role) == "daemon":
		os.Exit(daemon())
	case slices.Contains(os.Args[1:], "-d"):
		os.Exit(start())
	}
	os.Exit(ask())
}

func pipe(name string) string { return filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), name) }

// start makes a daemon, as `-d` does.
func start() int {
	b := behaviour()
	switch {
	case b.RefuseStart != "":
		fmt.Println(b.RefuseStart)
		return 1
	case b.HangStart:
		select {}
	}
	if c, err := net.Dial("unix", pipe("control")); err == nil {
		c.Close()
		fmt.Println("An instance of this daemon is already running")
		return 1
	}
	d := exec.Command(os.Args[0])
	d.Env = append(os.Environ(), role+"=daemon")
	d.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := d.StdoutPipe()
	if err == nil {
		err = d.Start()
	}
	if err == nil {
		_, err = bufio.NewReader(out).ReadString('\n') // the daemon listens
	}
	if err != nil {
		fmt.Println("start:", err)
		return 1
	}
	return 0
}

// ask is the control program without an argument: it reads commands from standard
// input.
func ask() int {
	c, err := net.Dial("unix", pipe("control"))
	if err != nil {
		fmt.Println("Cannot find MPS control daemon process")
		return 1
	}
	defer c.Close()
	go func() {
		io.Copy(c, os.Stdin)
		c.(*net.UnixConn).CloseWrite()
	}()
	io.Copy(os.Stdout, c)
	return 0
}

// servers are the daemon's servers.
type servers struct {
	mu   sync.Mutex
	list []*one
	mute time.Time // the daemon does not answer until then
}

type one struct {
	cmd     *exec.Cmd
	stdin   io.Closer // kept open: closing it ends the server
	started time.Time
}

func (s *servers) start() {
	cmd := exec.Command(filepath.Join(filepath.Dir(os.Args[0]), server))
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return
	}
	o := &one{cmd, stdin, time.Now()}
	s.mu.Lock()
	s.list = append(s.list, o)
	s.mu.Unlock()
	go func() {
		cmd.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.list = slices.DeleteFunc(s.list, func(x *one) bool { return x == o })
	}()
}

func (s *servers) find(pid int) *one {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.list {
		if o.cmd.Process.Pid == pid {
			return o
		}
	}
	return nil
}

func daemon() int {
	pid := []byte(strconv.Itoa(os.Getpid()) + "\n")
	if err := os.WriteFile(pipe(control+".pid"), pid, 0o600); err != nil {
		return 1
	}
	os.Remove(pipe("control"))
	l, err := net.Listen("unix", pipe("control"))
	if err != nil {
		return 1
	}
	os.WriteFile(filepath.Join(os.Getenv("CUDA_MPS_LOG_DIRECTORY"), "control.log"), []byte("[now Control 1] Starting control daemon\n"), 0o600)
	fmt.Println("listening")
	os.Stdout.Close()
	if behaviour().DieAtStart {
		return 1
	}
	var s servers
	for {
		c, err := l.Accept()
		if err != nil {
			return 1
		}
		go func() {
			defer c.Close()
			for lines := bufio.NewScanner(c); lines.Scan(); {
				s.answer(c, lines.Text())
			}
		}()
	}
}

var errNotFound = errors.New("not found")

func (s *servers) answer(w io.Writer, command string) {
	b := behaviour()
	if b.Mute || b.MuteDaemon == os.Getpid() {
		select {}
	}
	s.mu.Lock()
	mute := s.mute
	s.mu.Unlock()
	time.Sleep(max(b.AnswerAfter, time.Until(mute)))
	words := strings.Fields(command)
	asked := func() (*one, error) {
		if len(words) < 2 {
			return nil, errNotFound
		}
		pid, _ := strconv.Atoi(words[1])
		if o := s.find(pid); o != nil {
			return o, nil
		}
		fmt.Fprintf(w, "Server %s not found\n", words[1])
		return nil, errNotFound
	}
	switch words[0] {
	case "start_server":
		if !b.NoServer {
			s.start()
		}
		if b.DieAfterStart {
			os.Exit(1)
		}
		s.mu.Lock()
		s.mute = time.Now().Add(b.MuteAfterStart)
		s.mu.Unlock()
		time.Sleep(b.MuteAfterStart)
	case "get_server_list":
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, o := range s.list {
			fmt.Fprintln(w, o.cmd.Process.Pid)
		}
	case "get_server_status":
		if o, err := asked(); err == nil {
			if time.Sleep(time.Until(o.started.Add(b.ServerAfter))); b.Fault {
				fmt.Fprintln(w, "FAULT")
			} else {
				fmt.Fprintln(w, "ACTIVE")
			}
		}
	case "get_client_list":
		if _, err := asked(); err == nil {
			for _, pid := range b.Clients {
				fmt.Fprintln(w, pid)
			}
		}
	case "terminate_client":
		if o, err := asked(); err == nil && len(words) == 3 {
			f, _ := os.OpenFile(filepath.Join(filepath.Dir(os.Args[0]), terminated), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			fmt.Fprintln(f, o.cmd.Process.Pid, words[2])
			f.Close()
			fmt.Fprintln(w, 0)
		}
	case "quit":
		if b.HangQuit {
			select {}
		}
		for _, name := range []string{control + ".pid", "control"} {
			os.Remove(pipe(name))
		}
		s.mu.Lock()
		for _, o := range s.list {
			o.stdin.Close()
		}
		s.mu.Unlock()
		wait.Until(func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.list) == 0 })
		os.Exit(0)
	default:
		fmt.Fprintf(w, "Unknown command: %s\n", command)
	}
}
