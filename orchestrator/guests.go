package orchestrator

import (
	"cmp"
	"os"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/orchestrator/guest"
	"github.com/penstock/penstock/orchestrator/mps"
	"github.com/penstock/penstock/orchestrator/program"
)

// guests is the supervisor's part of package guest. The zero value runs none.
type guests struct{ server guestServer }

// guestServer is the part of guest.Server that the supervisor uses.
type guestServer interface {
	SetDevice(guest.Device)
	Ended() <-chan struct{}
	Fault(why string, blame bool) (suspects bool)
	Held() string
	Restore() error
	Close() error
}

// openGuests listens for guests. Functions run without it, so an error is only logged.
func (s *supervisor) openGuests() {
	server, err := guest.Listen(guest.Options{Dir: s.o.Dir, Log: s.log, Groups: guestGroups{cgroup.NewGuests(s.id, s.log)}, User: s.o.Sandbox.clientUser(), CPUs: s.o.CPUs})
	if err != nil {
		s.log.Warn().Err(err).Msg("cannot serve `penstock run`")
		return
	}
	s.guests.server = server
}

// clientUser is the user that MPS serves.
func (b *Sandbox) clientUser() control.GuestUser {
	if b != nil && b.User != nil {
		return control.GuestUser{Name: b.User.Name, UID: b.User.UID, GID: b.User.GID, Groups: b.User.Groups}
	}
	u := control.GuestUser{Name: "of the node", UID: os.Getuid(), GID: os.Getgid()}
	u.Groups, _ = os.Getgroups()
	return u
}

func (g *guests) ended() <-chan struct{} {
	if g.server == nil {
		return nil
	}
	return g.server.Ended()
}

// update passes on what guests may use, and restores the socket.
func (g *guests) update(d guest.Device) {
	if g.server == nil {
		return
	}
	g.server.SetDevice(d)
	_ = g.server.Restore() // the next update tries again
}

// close ends all guests. It may be called twice.
func (g *guests) close(log zerolog.Logger) {
	if g.server == nil {
		return
	}
	if err := g.server.Close(); err != nil {
		log.Warn().Err(err).Msg("cannot close the socket of `penstock run`")
	}
}

// guestDevice is what guests may use now.
func (s *supervisor) guestDevice() guest.Device {
	switch {
	case s.target.desired == nil && s.gpu.device == nil:
		return guest.Device{Wait: "the node is starting"}
	case s.gpu.device == nil, s.gpu.Opened && s.gpu.CPU:
		return guest.Device{Kind: guest.OnCPU}
	case !s.gpu.Opened:
		return guest.Device{Wait: "the node waits until the GPU is found"}
	case s.gpu.Err != nil:
		return guest.Device{Wait: "the GPU cannot be used"}
	}
	device, uuid := s.gpu.device, s.gpu.UUID
	d := guest.Device{
		Kind: guest.InMPS, Client: s.gpu.Environment, Wait: s.gpu.recovery.holds(s.now()),
		Own:    map[string]string{"CUDA_VISIBLE_DEVICES": uuid, "CUDA_MPS_PIPE_DIRECTORY": program.NoMPS(s.o.Dir)},
		Memory: func() (guest.Usage, bool) { return device.Memory(uuid) }, EndWork: device.EndWork,
		ContextBytes: contextBytes, WorkerBytes: map[int]int64{},
	}
	for _, c := range s.processes {
		switch {
		case c.state.Ended() || c.process == nil:
		case c.desired.MemoryBytes > 0: // its members restart within the worker's memory
			d.WorkerBytes[c.process.pid()] = c.desired.MemoryBytes
		case c.notice.PersistentBytes > 0:
			d.RestartBytes = max(d.RestartBytes, c.gpuBytes())
		}
	}
	if !s.sharesAtOnce() {
		d.Kind, d.Why = guest.Beside, cmp.Or(s.gpu.Why, "the node runs without MPS")
	}
	if d.Wait == "" && !s.gpu.Serving {
		d.Wait = s.gpu.Idle
	}
	return d
}

// endClients ends the guests inside MPS after a fault, and reports whether they are blamed for it.
func (s *supervisor) endClients(blame bool) bool {
	if s.guests.server == nil || !s.sharesAtOnce() {
		return false
	}
	suspects := s.guests.server.Fault("the GPU failed for all clients of MPS", blame)
	if suspects {
		s.log.Error().Msg("a guest is suspected of the GPU's failure; its command may not run inside MPS for a while")
	}
	return suspects
}

// withGuests adds to the reason of a failure which guests have GPU memory, if there was too little of it.
// Each framework reports that in its own way, but with the same words.
func (g *guests) withGuests(reason string) string {
	if g.server == nil || !strings.Contains(reason, "out of memory") {
		return reason
	}
	if held := g.server.Held(); held != "" {
		reason += "; " + held
	}
	return reason
}

// noteGuestEnded asks whether a client of MPS that has ended failed the GPU. Idle functions would notice
// only with their next requests.
func (s *supervisor) noteGuestEnded() {
	if s.onGPU() && s.sharesAtOnce() {
		s.askFor(verdict{guest: true})
	}
}

// lossSettles is how long after a fault a failed server has the same cause.
const lossSettles = 2 * time.Second

// noteGuestVerdict takes the server's health after the end of a guest.
func (s *supervisor) noteGuestVerdict(h mps.Health) {
	if h != mps.Fault || !s.onGPU() || s.gpu.recovery.asking || s.now().Sub(s.gpu.recovery.began) < lossSettles {
		return
	}
	s.loseAll(key{}, "a guest failed the GPU")
	s.endClients(true)
	for _, c := range s.processes {
		if !c.lost && !c.failed.IsZero() {
			c.lost, c.blameless = true, true
		}
	}
	s.gpu.recovery.asking = true
	s.ask(key{})
}

// guestGroups implements guest.Groups.
type guestGroups struct{ *cgroup.Guests }

func (g guestGroups) Make(name string, memoryBytes int64, uid int) (guest.Group, []error, error) {
	return g.Guests.Make(name, memoryBytes, uid)
}
