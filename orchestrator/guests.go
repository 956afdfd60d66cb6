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
	SetDevices([]guest.Device)
	Ended() <-chan string
	Fault(device, why string, blame bool) (suspects bool)
	Lose(device, why string)
	Held(device string) string
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

func (g *guests) ended() <-chan string {
	if g.server == nil {
		return nil
	}
	return g.server.Ended()
}

// update passes on what guests may use, and restores the socket.
func (g *guests) update(devices []*device) {
	if g.server == nil {
		return
	}
	list := make([]guest.Device, len(devices))
	for i, d := range devices {
		list[i] = d.forGuests()
		list[i].Name = d.Device
	}
	g.server.SetDevices(list)
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

// forGuests is what guests may use of the device now.
func (on *device) forGuests() guest.Device {
	switch {
	case on.opening():
		return guest.Device{Wait: "the node waits until the GPU is found"}
	case on.Err != nil:
		return guest.Device{Wait: "the GPU cannot be used"}
	case on.Lost != "":
		return guest.Device{Wait: on.Idle}
	case !on.onGPU():
		return guest.Device{Kind: guest.OnCPU}
	}
	handle, uuid := on.handle, on.UUID
	d := guest.Device{
		Kind: guest.InMPS, UUID: uuid, Client: on.Environment, Wait: on.recovery.holds(on.s.now()),
		Own:       map[string]string{"CUDA_VISIBLE_DEVICES": uuid, "CUDA_MPS_PIPE_DIRECTORY": program.NoMPS(on.s.o.Dir)},
		FreeBytes: on.FreeBytes, Memory: func() (guest.Usage, bool) { return handle.Memory(uuid) }, EndWork: handle.EndWork,
		ContextBytes: contextBytes, WorkerBytes: map[int]int64{},
	}
	for _, c := range on.s.processes {
		switch {
		case c.device != on || c.state.Ended() || c.process == nil:
		case c.desired.MemoryBytes > 0: // its members restart within the worker's memory
			d.WorkerBytes[c.process.pid()] = c.desired.MemoryBytes
		case c.notice.PersistentBytes > 0:
			d.RestartBytes = max(d.RestartBytes, c.gpuBytes())
		}
	}
	if !on.sharesAtOnce() {
		d.Kind, d.Why = guest.Beside, cmp.Or(on.Why, "the node runs without MPS")
	}
	if d.Wait == "" && !on.Serving {
		d.Wait = on.Idle
	}
	return d
}

// endClients ends the guests inside MPS after a fault, and reports whether they are blamed for it.
func (d *device) endClients(blame bool) bool {
	guests := d.s.guests.server
	if guests == nil || !d.sharesAtOnce() {
		return false
	}
	suspects := guests.Fault(d.Device, "the GPU failed for all clients of MPS", blame)
	if suspects {
		d.log.Error().Msg("a guest is suspected of the GPU's failure; its command may not run inside MPS for a while")
	}
	return suspects
}

// withGuests adds to the reason of a failure which guests have GPU memory, if there was too little of it.
// Each framework reports that in its own way, but with the same words.
func (g *guests) withGuests(device, reason string) string {
	if g.server == nil || !strings.Contains(reason, "out of memory") {
		return reason
	}
	if held := g.server.Held(device); held != "" {
		reason += "; " + held
	}
	return reason
}

// noteGuestEnded asks whether a client of MPS that has ended failed the GPU. Idle functions would notice
// only with their next requests.
func (s *supervisor) noteGuestEnded(device string) {
	if d := s.deviceOf(device); d != nil && d.onGPU() && d.sharesAtOnce() {
		d.askFor(verdict{guest: true})
	}
}

// lossSettles is how long after a fault a failed server has the same cause.
const lossSettles = 2 * time.Second

// noteGuestVerdict takes the server's health after the end of a guest.
func (d *device) noteGuestVerdict(h mps.Health) {
	if h != mps.Fault || !d.onGPU() || d.recovery.asking || d.s.now().Sub(d.recovery.began) < lossSettles {
		return
	}
	d.loseAll(key{}, "a guest failed the GPU")
	d.endClients(true)
	d.acquit()
	d.recovery.asking = true
	d.ask(key{})
}

// guestGroups implements guest.Groups.
type guestGroups struct{ *cgroup.Guests }

func (g guestGroups) Make(name string, memoryBytes int64, uid int) (guest.Group, []error, error) {
	return g.Guests.Make(name, memoryBytes, uid)
}
