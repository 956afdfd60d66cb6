package guest

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// onGPU returns a GPU with MPS.
func onGPU(name, uuid string, free int64) Device {
	visible := map[string]string{"CUDA_VISIBLE_DEVICES": uuid}
	return Device{
		Name: name, UUID: uuid, Kind: InMPS, Client: visible, Own: visible, FreeBytes: free,
		Memory: func() (Usage, bool) { return Usage{FreeBytes: free}, true },
	}
}

func TestDevices(t *testing.T) {
	const gib = 1 << 30
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	small, large, other := onGPU("cuda", "GPU-1", 10*gib), onGPU("cuda:1", "GPU-2", 20*gib), Device{Name: "cpu", Kind: OnCPU}
	down, lost := large, Device{Name: "cuda:1", Wait: "the device is lost"}
	down.Wait = "waiting for MPS"
	named := func(name string) func(*Command) { return func(c *Command) { c.Device = name } }
	own := func(c *Command) { c.Own = true }
	for name, c := range map[string]struct {
		devices []Device
		change  func(*Command)
		want    string // the visible device, or a part of the error
	}{
		"most left":              {[]Device{other, small, large}, named(""), "on GPU-2."},
		"named":                  {[]Device{small, large}, named("cuda"), "on GPU-1."},
		"UUID":                   {[]Device{small, large}, named("GPU-1"), "on GPU-1."},
		"CPU":                    {[]Device{small, other}, named("cpu"), "on ."},
		"no GPU":                 {[]Device{other}, named(""), "on ."},
		"unknown":                {[]Device{small, other}, named("cuda:7"), `--device is "cuda:7", and the node has cuda, cpu`},
		"another is down":        {[]Device{small, down}, named(""), "on GPU-1."},
		"named is down":          {[]Device{small, down}, named("cuda:1"), "waiting for MPS"},
		"own does not wait":      {[]Device{small, down}, own, "on GPU-2."},
		"own needs a device":     {[]Device{small, lost}, own, "on GPU-1."},
		"named is lost":          {[]Device{small, lost}, named("cuda:1"), "the device is lost"},
		"all are down":           {[]Device{down}, named(""), "waiting for MPS"},
		"the node is starting":   {nil, named(""), "the node is starting"},
		"restarts leave nothing": {[]Device{small, func() Device { d := large; d.RestartBytes = 15 * gib; return d }()}, named(""), "on GPU-1."},
	} {
		t.Run(name, func(t *testing.T) {
			s := listen(t, Options{}, c.devices...)
			r := runScript(t, s, `echo "on $CUDA_VISIBLE_DEVICES."`, c.change)
			r.end(t)
			if got := r.output; r.err == nil && !strings.Contains(got, c.want) || r.err != nil && !strings.Contains(r.err.Error(), c.want) {
				t.Errorf("got %q, %v, want %q", got, r.err, c.want)
			}
		})
	}
}

// A fault ends the guests inside MPS of one device, and a loss all of its guests. If the driver of one device hangs, guests of
// other devices do not wait.
func TestDevicesApart(t *testing.T) {
	answer := make(chan struct{})
	defer close(answer)
	hangs := onGPU("cuda:2", "GPU-3", 1<<30)
	s := listen(t, Options{}, onGPU("cuda", "GPU-1", 1<<30), onGPU("cuda:1", "GPU-2", 1<<30), hangs)
	start := func(device string, own bool) *running {
		r := runScript(t, s, "echo there; read line", func(c *Command) { c.Device, c.Own, c.Stdin = device, own, pipe(t) })
		r.line(t, "there")
		return r
	}
	last := start("cuda:2", false)
	hangs.Memory = func() (Usage, bool) {
		<-answer
		return Usage{}, false
	}
	s.SetDevices([]Device{onGPU("cuda", "GPU-1", 1<<30), onGPU("cuda:1", "GPU-2", 1<<30), hangs})
	s.measureAll()

	first, second, beside := start("cuda", false), start("cuda:1", false), start("cuda:1", true)
	if list := s.list(); len(list) != 4 || list[0].On != "cuda:2" || list[1].On != "cuda" {
		t.Errorf("guests %+v", list)
	}
	s.Fault("cuda", "the GPU failed", false)
	if first.end(t); first.result.Signal != unix.SIGKILL {
		t.Errorf("after the fault: %+v", first.result)
	}
	s.Lose("cuda:1", "the device is lost")
	for _, r := range []*running{second, beside} {
		if r.end(t); r.result.Signal != unix.SIGKILL || !strings.Contains(r.output, "the device is lost") {
			t.Errorf("after the loss: %+v, %q", r.result, r.output)
		}
	}
	select {
	case <-last.done:
		t.Errorf("the other's guest has ended: %+v", last.result)
	default:
	}

	clean := runScript(t, s, "exit 0", func(c *Command) { c.Device = "cuda" })
	clean.end(t)
	select {
	case device := <-s.Ended():
		if device != "cuda" {
			t.Errorf("ended on %s", device)
		}
	case <-time.After(patience):
		t.Error("its end was not reported")
	}
}
