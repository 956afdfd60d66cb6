package orchestrator

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/keeper"
	"github.com/penstock/penstock/orchestrator/mps"
	"github.com/penstock/penstock/orchestrator/program"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// The weight server of a GPU is a separate process of this binary, `penstock weights`. It is started
// with the first process there that shares weights, and again, after a pause, when it has ended.
// No process waits for it: a process that finds no server loads its own weights. Mapped
// weights stay mapped without a server.

// weightsFolder is a folder of the runtime folder, for the sockets of servers. It belongs to their
// user.
const weightsFolder = "weights"

// weightsSocket returns the path of a server's socket.
func weightsSocket(dir, uuid string) string {
	return filepath.Join(dir, weightsFolder, mps.OfGPU("weights", uuid))
}

// weightsID, with the UUID of its GPU, is the keeper's name for a server. No process of a function has a colon in its name.
const weightsID = "weights:"

// runningWeightServer starts and watches the weight server.
type runningWeightServer struct {
	socket string
	uuid   string
	keeper keeper.Keeper
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	held *control.WeightsHeld // nil while there is no server
}

// savedWeights is the server's note.
type savedWeights struct {
	Version int                  `json:"version"` // control.Version
	UUID    string               `json:"uuid"`
	Held    *control.WeightsHeld `json:"held,omitempty"`
}

// weightServer is the weight server of a device.
type weightServer struct {
	running *runningWeightServer // nil: no process shares weights
	// last is the server that the last orchestrator started, until this one takes it over.
	last *keeper.Process
}

// shareWeights starts the server, unless it runs, and returns its socket.
func (d *device) shareWeights() string {
	if o := &d.s.o; d.weights.running == nil {
		d.weights.running = startWeightServer(o.Keeper, d.weights.last, o.Self, o.Dir, d.UUID, o.Sandbox, d.log)
		d.weights.last = nil
	}
	return d.weights.running.socket
}

// startWeightServer starts and watches a weight server for the GPU. last is the server that
// another orchestrator started, nil if there is none.
func startWeightServer(k keeper.Keeper, last *keeper.Process, self, dir, uuid string, confined *Sandbox, log zerolog.Logger) *runningWeightServer {
	ctx, cancel := context.WithCancel(context.Background())
	h := &runningWeightServer{socket: weightsSocket(dir, uuid), uuid: uuid, keeper: k, cancel: cancel, done: make(chan struct{})}
	environment := program.BesideMPS(uuid, dir)
	go func() {
		defer close(h.done)
		var failures backoff
		for ctx.Err() == nil {
			began := time.Now()
			var err error
			p := h.resume(last, log)
			if last = nil; p == nil {
				p, err = h.start(self, environment, confined)
			}
			if err == nil {
				err = h.run(ctx, p, log)
			}
			h.set(nil)
			if ctx.Err() != nil {
				return
			}
			failures.ended(time.Now(), time.Since(began), true, "")
			log.Warn().Err(err).Dur("again_in_ms", failures.delay()).Msg("weight server ended; processes load their own weights until it is back")
			select {
			case <-time.After(failures.delay()):
			case <-ctx.Done():
			}
		}
	}()
	return h
}

// start starts a server, in the sandbox if there is one.
func (h *runningWeightServer) start(self string, environment []string, confined *Sandbox) (*keeper.Process, error) {
	folder := filepath.Dir(h.socket)
	if err := program.MakeFolder(folder, confined.user()); err != nil {
		return nil, fmt.Errorf("make folder for the weight server: %w", err)
	}
	cmd := exec.Command(self, "weights", "--socket", h.socket)
	cmd.Env = slices.Clip(environment)
	if confined != nil {
		// The server writes only to its folder. Its loaders run this binary as well.
		spec := sandbox.Base(true)
		spec.User, spec.Dir, spec.Parent = confined.User, folder, h.keeper.PID()
		spec.Reach, spec.Write = []string{filepath.Dir(folder)}, append(spec.Write, folder)
		if err := program.Confine(cmd, self, &spec); err != nil {
			return nil, err
		}
	}
	return h.keeper.Start(keeper.Command{
		ID: weightsID + h.uuid, Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, CPUs: allowedCPUs(), Note: h.note(nil),
	})
}

// resume takes over the server of another orchestrator. If that has another version or GPU,
// resume ends it and returns nil.
func (h *runningWeightServer) resume(last *keeper.Process, log zerolog.Logger) *keeper.Process {
	if last == nil {
		return nil
	}
	var n savedWeights
	err := json.Unmarshal(last.Note, &n)
	if err == nil && n.Version == control.Version && n.UUID == h.uuid {
		h.set(n.Held)
		return last
	}
	log.Warn().Err(err).Int("version", n.Version).Str("uuid", n.UUID).Msg("cannot take over the weight server of the last orchestrator; ending it")
	keeper.Drop(h.keeper, last, program.EndTimeout)
	return nil
}

// run watches one server until it ends. It returns how the server ended.
func (h *runningWeightServer) run(ctx context.Context, p *keeper.Process, log zerolog.Logger) error {
	p.Link.Close() // the server uses only its output
	state := func(line string) {
		var now control.WeightsHeld
		if err := json.Unmarshal([]byte(line), &now); err != nil || now.Files < 0 || now.Bytes < 0 {
			log.Warn().Err(err).Msg("cannot read state of the weight server")
			return
		}
		h.set(&now)
		h.keeper.Note(p.ID, h.note(&now))
	}
	// The server's loaders have its stderr, and a loader that hangs in the driver cannot be killed: passOn waits for
	// the server alone.
	end := passOn(p, state, func(l string) { program.Relay(log, "stderr", l) }, func() keeper.Exit {
		select {
		case end := <-p.Exit:
			return end
		case <-ctx.Done():
			return keeper.Stop(h.keeper, p, program.EndTimeout)
		}
	})
	os.Remove(h.socket) // first: once the server is forgotten, there may be another
	h.keeper.Forget(p.ID)
	return fmt.Errorf("%s", exit{code: end.Code, signal: end.Signal, ours: end.Ours})
}

// note is what another orchestrator needs to resume the server.
func (h *runningWeightServer) note(held *control.WeightsHeld) json.RawMessage {
	b, _ := json.Marshal(savedWeights{Version: control.Version, UUID: h.uuid, Held: held}) // plain data cannot fail
	return b
}

func (h *runningWeightServer) set(now *control.WeightsHeld) {
	h.mu.Lock()
	h.held = now
	h.mu.Unlock()
}

// state returns what the server holds; nil while there is no server.
func (h *runningWeightServer) state() *control.WeightsHeld {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held
}

// close ends the server. The processes must have ended.
func (h *runningWeightServer) close() {
	if h == nil {
		return
	}
	h.cancel()
	<-h.done
}
