package guest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock/penstock/cuda/swap"
)

// turnsServer gives turns to guests whose memory does not fit on the GPU together. It starts with the
// first of them.
type turnsServer struct {
	mu     sync.Mutex
	server *swap.Server
	socket string
	stop   context.CancelFunc
	done   chan error
}

// open returns the server's socket. Guests run as other users than the node, so the socket is in no folder.
func (t *turnsServer) open(config swap.Config) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.socket != "" {
		return t.socket, nil
	}
	socket := "@penstock-swap-" + token()
	l, err := swap.Listen(socket)
	if err != nil {
		return "", err
	}
	t.server = swap.New(config)
	ctx, stop := context.WithCancel(context.Background())
	t.socket, t.stop, t.done = socket, stop, make(chan error, 1)
	go func() { t.done <- t.server.Serve(ctx, l) }()
	return socket, nil
}

// reserve sets what guests of each GPU leave free together.
func (t *turnsServer) reserve(bytes int64) {
	if server := t.opened(); server != nil {
		server.Reserve(bytes)
	}
}

// endBlocking ends the guest that a process belongs to, because it keeps others from the GPU.
func (s *Server) endBlocking(pid int, why string) error {
	s.mu.Lock()
	guests := slices.Clone(s.guests)
	s.mu.Unlock()
	for _, g := range guests {
		if g.request.Swap && slices.Contains(s.groupOf(g).PIDs(), pid) {
			s.stop(g, why)
			return nil
		}
	}
	return fmt.Errorf("find guest of process %d: it has ended, or is no guest", pid)
}

// pause makes processes leave the GPU.
func (t *turnsServer) pause(pids []int) error {
	if server := t.opened(); server != nil {
		return server.Pause(pids)
	}
	return nil
}

func (t *turnsServer) resume(pids []int) {
	if server := t.opened(); server != nil {
		server.Resume(pids)
	}
}

// opened returns the server, nil before the first guest. A pause may take a minute, and must not hold t.mu.
func (t *turnsServer) opened() *swap.Server {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.server
}

func (t *turnsServer) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.socket == "" {
		return nil
	}
	t.stop()
	return <-t.done
}
