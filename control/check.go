package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
)

// maxNameBytes is the max length of an inference function's name. Names become parts of cgroup
// and file names (255 bytes, NAME_MAX of limits.h), together with two numbers of at most 20
// digits.
const maxNameBytes = 128

// decodeStrict decodes one JSON value into v. It refuses unknown fields, and data after the value.
func decodeStrict(message []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(message))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", ErrBadMessage, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w: more than one value", ErrBadMessage)
	}
	return nil
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// CheckName refuses a name that could not be part of a file name.
func CheckName(name string) error {
	if name == "" || len(name) > maxNameBytes {
		return fmt.Errorf("%w: name %.20q has %d bytes, want 1 to %d", ErrBadMessage, name, len(name), maxNameBytes)
	}
	if !plainName.MatchString(name) {
		return fmt.Errorf("%w: name %q: want letters, digits, '-' and '_' only", ErrBadMessage, name)
	}
	return nil
}

// identity identifies a process. It is never reused.
type identity struct {
	name       string
	instance   int
	generation uint32
}

func (i identity) check() error {
	if err := CheckName(i.name); err != nil {
		return err
	}
	if i.instance < 0 {
		return fmt.Errorf("%w: instance %d of %s is negative", ErrBadMessage, i.instance, i.name)
	}
	if i.generation == 0 {
		return fmt.Errorf("%w: generation 0 of %s, want 1 or more (epoch 0 has no owner)", ErrBadMessage, i.name)
	}
	return nil
}

// listed has the processes of a state, each of which may appear once.
type listed map[identity]bool

func (l listed) add(id identity) error {
	if err := id.check(); err != nil {
		return err
	}
	if l[id] {
		return fmt.Errorf("%w: %s/%d generation %d is listed twice", ErrBadMessage, id.name, id.instance, id.generation)
	}
	l[id] = true
	return nil
}

func checkShare(name string, percent float64) error {
	if !(percent >= 0 && percent <= 100) { // also refuses NaN
		return fmt.Errorf("%w: share of %s is %v %%, want 0 to 100", ErrBadMessage, name, percent)
	}
	return nil
}

// Check refuses a state that no orchestrator could follow. It refuses bad names, unknown roles,
// devices and processes listed twice, processes on other devices, shares outside 0 to 100, and relative folders.
func (d *Desired) Check() error {
	if err := checkVersion("manager", d.Version); err != nil {
		return err
	}
	if d.ManagerID == "" {
		return fmt.Errorf("%w: no manager id", ErrBadMessage)
	}
	for i, name := range d.Devices {
		if name == "" || slices.Contains(d.Devices[:i], name) {
			return fmt.Errorf("%w: device %q is empty or listed twice", ErrBadMessage, name)
		}
	}
	seen := make(listed, len(d.Processes))
	for _, p := range d.Processes {
		if !slices.Contains(d.Devices, p.Device) {
			return fmt.Errorf("%w: device of %s is %q, want one of %q", ErrBadMessage, p.IF, p.Device, d.Devices)
		}
		if err := seen.add(identity{p.IF, p.Instance, p.Generation}); err != nil {
			return err
		}
		switch p.Role {
		case Shadow, Serve, Drain, Kill:
		default:
			return fmt.Errorf("%w: role of %s is %q, want shadow, serve, drain or kill", ErrBadMessage, p.IF, p.Role)
		}
		if err := checkShare(p.IF, p.SharePercent); err != nil {
			return err
		}
		if p.Dir != "" && !filepath.IsAbs(p.Dir) {
			return fmt.Errorf("%w: folder of %s is %q, want an absolute path", ErrBadMessage, p.IF, p.Dir)
		}
	}
	return nil
}

// Check refuses an inconsistent state: bad names, unknown states, a process listed twice.
func (o *Observed) Check() error {
	if err := checkVersion("orchestrator", o.Version); err != nil {
		return err
	}
	if o.OrchestratorID == "" {
		return fmt.Errorf("%w: no orchestrator id", ErrBadMessage)
	}
	seen := make(listed, len(o.Processes))
	for _, p := range o.Processes {
		if err := seen.add(identity{p.IF, p.Instance, p.Generation}); err != nil {
			return err
		}
		if !p.State.Known() {
			return fmt.Errorf("%w: state of %s is %q", ErrBadMessage, p.IF, p.State)
		}
		if err := checkShare(p.IF, p.SharePercent); err != nil {
			return err
		}
	}
	return nil
}

// order lists the states in the order of a successful life.
var order = []State{Starting, Loaded, Linking, Ready, Active, Draining, Stopped, Failed}

// Known reports whether s is one of the states.
func (s State) Known() bool { return s.rank() >= 0 }

// Follows reports whether a process in state before may report s next. States only go forward;
// a process may skip or repeat a state.
func (s State) Follows(before State) bool {
	return s.Known() && before.Known() && !before.Ended() && s.rank() >= before.rank()
}

func (s State) rank() int { return slices.Index(order, s) }

func decodeDesired(message []byte) (d Desired, err error) {
	err = decodeState("manager", message, &d)
	return d, err
}

func decodeObserved(message []byte) (o Observed, err error) {
	err = decodeState("orchestrator", message, &o)
	return o, err
}

// decodeState decodes the whole state of a peer. It checks the version first.
func decodeState(peer string, message []byte, state interface{ Check() error }) error {
	if err := peekVersion(peer, message); err != nil {
		return err
	}
	err := decodeStrict(message, state)
	if err == nil {
		err = state.Check()
	}
	if err != nil {
		return fmt.Errorf("read state of %s: %w", peer, err)
	}
	return nil
}
