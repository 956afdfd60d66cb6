package orchestrator

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
)

// The holder of shared weights is a process of this binary, `penstock weights`, beside
// those of the inference functions. It is started when the first process that shares is,
// and again, after a pause, when it has ended. Nobody waits for it: a process that finds no holder loads
// its own weights, and what is mapped stays mapped without one.

// weightsSocketName is the holder's, in the runtime folder.
const weightsSocketName = "weights.sock"

// holderGrace is how long a holder has to end: it kills its loaders.
const holderGrace = 2 * time.Second

// weightsHolder looks after the holder.
type weightsHolder struct {
	socket string
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	held *control.WeightsHeld // nil while there is no holder
}

// shareWeights starts the holder, unless it is there, and returns its socket.
func (s *supervisor) shareWeights() string {
	if s.weights == nil {
		s.weights = startHolder(s.o.Self, s.o.Dir, s.gpu.uuid, s.log)
	}
	return s.weights.socket
}

func startHolder(self, dir, uuid string, log zerolog.Logger) *weightsHolder {
	ctx, cancel := context.WithCancel(context.Background())
	h := &weightsHolder{socket: filepath.Join(dir, weightsSocketName), cancel: cancel, done: make(chan struct{})}
	// No client of MPS, whatever MPS there is: a fault of others' must not reach it.
	environment := append(inherited(uuid), "CUDA_VISIBLE_DEVICES="+uuid, "CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(dir, "no-mps"))
	go func() {
		defer close(h.done)
		// The parent-death signal comes when the thread that forked ends: this one.
		runtime.LockOSThread()
		var failures backoff
		for ctx.Err() == nil {
			began := time.Now()
			err := h.run(ctx, environment, log, self, "weights", "--socket", h.socket)
			h.set(nil)
			if ctx.Err() != nil {
				return
			}
			failures.ended(time.Now(), time.Since(began), true, "")
			log.Warn().Err(err).Dur("again_in_ms", failures.delay()).Msg("the holder of weights has ended; processes load their own meanwhile")
			select {
			case <-time.After(failures.delay()):
			case <-ctx.Done():
			}
		}
	}()
	return h
}

// run is one life of the holder.
func (h *weightsHolder) run(ctx context.Context, environment []string, log zerolog.Logger, command ...string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = environment
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	// Its loaders have its stderr, and one that hangs in the driver cannot be killed.
	cmd.WaitDelay = holderGrace
	out, stdout := io.Pipe()
	said, stderr := io.Pipe()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	var readers sync.WaitGroup
	readers.Go(func() { readLines(said, func(l string) { relay(log, "stderr", l) }) })
	readers.Go(func() {
		readLines(out, func(l string) {
			var now control.WeightsHeld
			if err := json.Unmarshal([]byte(l), &now); err != nil || now.Files < 0 || now.Bytes < 0 {
				log.Warn().Err(err).Msg("the holder of weights talks nonsense")
				return
			}
			h.set(&now)
		})
	})
	err := cmd.Wait()
	stdout.Close()
	stderr.Close()
	readers.Wait()
	return err
}

func (h *weightsHolder) set(now *control.WeightsHeld) {
	h.mu.Lock()
	h.held = now
	h.mu.Unlock()
}

// state is what is held; nil while there is no holder.
func (h *weightsHolder) state() *control.WeightsHeld {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held
}

// close ends the holder. The processes have ended.
func (h *weightsHolder) close() {
	if h == nil {
		return
	}
	h.cancel()
	<-h.done
	os.Remove(h.socket)
}
