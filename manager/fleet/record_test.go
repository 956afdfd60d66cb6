package fleet

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

// stablePorts is a network that opens ports which no other program takes while none is open, between
// two managers.
type stablePorts struct{ datapath.Network }

func (n stablePorts) Open(port uint16, receivers int, shed bool) (*datapath.Sources, error) {
	if port == 0 {
		free, err := freeport.Find()
		if err != nil {
			return nil, err
		}
		port = free.Port()
	}
	return n.Network.Open(port, receivers, shed)
}

// recordedNode is a node of a run in a runtime folder. It begins with the recorded
// functions, or with the functions named if there is no record.
func recordedNode(t *testing.T, dir, run, digest string, change func(*nodeBed), functions ...configs.Function) *nodeBed {
	t.Helper()
	b := newNode(t, configs.DeviceCPU, nil, "governor")
	b.recorder, b.network = recorder{dir: dir, run: run}, stablePorts{b.network}
	b.cfg.Digest, b.cfg.Functions, b.cfg.Shares.Tune = digest, functions, false
	if change != nil {
		change(b)
	}
	must.OK(t, b.Begin())
	b.turns()
	return b
}

func (b *nodeBed) replaced(name, model string) {
	b.t.Helper()
	end, err := b.replace(name, model)
	must.OK(b.t, err)
	b.replacementEnds(end)
}

func (b *nodeBed) replacementEnds(end <-chan error) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		b.turns()
		select {
		case err := <-end:
			must.OK(b.t, err)
			b.turns()
			return
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			b.t.Fatal("the replacement goes on for ever")
		}
	}
}

func (b *nodeBed) names() (names []string) {
	for _, f := range b.functions {
		names = append(names, f.name)
	}
	return names
}

func TestRecordNextManager(t *testing.T) {
	dir := t.TempDir()
	file := []configs.Function{named("stays", 20), named("goes", 20)}
	b := recordedNode(t, dir, "run", "text", nil, file...)
	b.on(configs.Function{Name: "comes", Model: "/cards/comes.yaml", Instances: 2, SharePercent: 5, SLO: time.Second, Environment: map[string]string{"A": "b"}})
	b.turns()
	must.OK(t, b.remove("goes"))
	b.turns()
	b.replaced("stays", "/cards/better.yaml")
	must.OK(t, b.setShare("stays", 40))
	drain := control.PeersOrder{
		Function: "comes", Peers: []control.Peer{{Address: netip.MustParseAddrPort("10.0.0.2:5001"), Weight: 10}},
		Self: netip.MustParseAddrPort("10.0.0.1:5001"), Rate: 20, Drain: true,
	}
	must.Get(b.SetPeers(drain))(t)
	for want, o := range map[string]control.PeersOrder{
		`no function "x"`:                   {Function: "x"},
		"set peers of comes: rate: -1 requ": {Function: "comes", Rate: -1},
	} {
		if _, err := b.SetPeers(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	want := map[string]configs.Function{}
	ports := map[string]uint16{}
	for _, f := range b.functions {
		want[f.name], ports[f.name] = f.config, f.port.LocalAddr().Port()
	}
	b.Close()

	next := recordedNode(t, dir, "run", "text", nil, file...)
	if got := next.names(); !slices.Equal(got, []string{"stays", "comes"}) {
		t.Fatalf("it has %v, want stays and comes", got)
	}
	for _, f := range next.functions {
		if !reflect.DeepEqual(f.config, want[f.name]) {
			t.Errorf("%s is %+v, want %+v", f.name, f.config, want[f.name])
		}
		if port := f.port.LocalAddr().Port(); port != ports[f.name] {
			t.Errorf("%s is at port %d, and was at %d", f.name, port, ports[f.name])
		}
	}
	if o := next.functions.find("comes").peers; !reflect.DeepEqual(o, drain) {
		t.Errorf("comes has peers %+v, want %+v", o, drain)
	}
	if f := next.status("stays"); f.Model != "/cards/better.yaml" || f.SharePercent != 40 {
		t.Errorf("stays runs %s with %v %%, want the better model with 40", f.Model, f.SharePercent)
	}
	end, err := next.rollback("stays")
	must.OK(t, err)
	next.replacementEnds(end)
	if f := next.functions.find("stays"); f.model.desired.Name != "stays" || f.config.Model != "stays" {
		t.Errorf("after the rollback it is %s by %q, want stays", f.model.desired.Name, f.config.Model)
	}
	next.Close()

	// An edit of one entry replaces its changes; the other entries keep theirs.
	file[0].SLO = 2 * time.Second
	edited := recordedNode(t, dir, "run", "edited text", nil, file...)
	if got := edited.names(); !slices.Equal(got, []string{"stays", "comes"}) {
		t.Errorf("after an edit of stays it has %v, want stays and comes", got)
	}
	f := edited.functions.find("stays")
	if f.config.SLO != 2*time.Second || f.model.desired.Name != "stays" || f.byHand != 0 {
		t.Errorf("stays has objective %v, runs %s, with %v %% by hand; want what the file says", f.slo, f.model.desired.Name, f.byHand)
	}
	if port := f.port.LocalAddr().Port(); port != ports["stays"] {
		t.Errorf("stays is at port %d, and was at %d", port, ports["stays"])
	}
	edited.Close()

	another := recordedNode(t, dir, "another run", "edited text", nil, named("first", 20))
	if got := another.names(); !slices.Equal(got, []string{"first"}) {
		t.Errorf("another run of the node has %v, want those of the configuration", got)
	}
}

// An addition that has not served is not recorded.
func TestRecordTrialAddition(t *testing.T) {
	dir := t.TempDir()
	b := recordedNode(t, dir, "run", "text", nil, named("a", 20))
	b.on(named("b", 20))
	b.turn()
	if err := b.setShare("a", 30); err != nil { // this is recorded
		t.Fatal(err)
	}
	b.Close()
	if got := recordedNode(t, dir, "run", "text", nil, named("a", 20)).names(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("it has %v, want a", got)
	}
}

func TestARecordThatIsDamagedIsNone(t *testing.T) {
	dir := t.TempDir()
	b := recordedNode(t, dir, "run", "text", nil, named("a", 20))
	b.on(named("b", 20))
	b.turns()
	b.Close()
	whole, err := os.ReadFile(recordPath(dir))
	must.OK(t, err)
	if r, err := decodeRecord(whole); err != nil || len(r.Functions) != 2 {
		t.Fatalf("%s: %v", whole, err)
	}
	for name, text := range map[string]string{
		"empty":           "",
		"half":            string(whole[:len(whole)/2]),
		"with more":       string(whole) + "{",
		"no JSON":         "functions: []",
		"another key":     `{"run":"run","funktions":[]}`,
		"no entry":        `{"run":"run","entries":[{}],"functions":[]}`,
		"no name":         `{"run":"run","entries":[],"functions":[{"function":{"Instances":1}}]}`,
		"two of one name": `{"run":"run","entries":[],"functions":[{"function":{"Name":"b","Instances":1}},{"function":{"Name":"b","Instances":1}}]}`,
		"no instance":     `{"run":"run","entries":[],"functions":[{"function":{"Name":"b"}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			must.OK(t, os.WriteFile(recordPath(dir), []byte(text), 0o600))
			next := recordedNode(t, dir, "run", "text", nil, named("a", 20))
			if got := next.names(); !slices.Equal(got, []string{"a"}) {
				t.Errorf("it has %v, want a", got)
			}
			next.Close()
		})
	}
}

// A function that cannot be restored is added as configured, or left out.
func TestRecordFallback(t *testing.T) {
	dir := t.TempDir()
	b := recordedNode(t, dir, "run", "text", nil, named("a", 20))
	b.on(named("b", 20))
	b.on(named("c", 20))
	b.turns()
	b.replaced("a", "better")
	at := b.functions.find("c").port.LocalAddr()
	b.Close()
	taken, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	must.OK(t, err)
	defer taken.Close()
	next := recordedNode(t, dir, "run", "text", func(b *nodeBed) {
		find := b.find
		b.find = func(name string) (*models.Card, error) {
			if name == "better" || name == "b" {
				return nil, errors.New("no such card")
			}
			return find(name)
		}
	}, named("a", 20))
	if got := slices.Sorted(slices.Values(next.names())); !slices.Equal(got, []string{"a", "c"}) || next.functions.find("a").model.desired.Name != "a" {
		t.Errorf("it has %v, a of %s; want a as configured, and c", got, next.functions.find("a").model.desired.Name)
	}
	if port := next.functions.find("c").port.LocalAddr().Port(); port == at.Port() {
		t.Errorf("c is at port %d, which is another's", port)
	}
}

// If the folder is not writable, only the record is lost.
func TestRecordWriteFailure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	b := recordedNode(t, dir, "run", "text", nil, named("a", 20))
	end := b.on(named("b", 20))
	b.turns()
	if err := b.ended(end); err != nil {
		t.Error(err)
	}
}

// A manager without a run, `penstock manager`, records nothing.
func TestRecordWithoutRun(t *testing.T) {
	dir := t.TempDir()
	recordedNode(t, dir, "", "text", nil, named("a", 20))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}

// The sum of shares set by hand may exceed what there is. Each function then gets what the
// others leave, before and after a restart.
func TestRecordSharesOverfull(t *testing.T) {
	dir := t.TempDir()
	b := recordedNode(t, dir, "run", "text", nil, named("a", 20))
	must.OK(t, b.setShare("a", 90))
	b.on(named("b", 30))
	b.turns()
	was := []float64{b.status("a").SharePercent, b.status("b").SharePercent}
	b.Close()
	for range 2 { // the next manager records it for the one after it
		next := recordedNode(t, dir, "run", "text", nil, named("a", 20))
		if is := []float64{next.status("a").SharePercent, next.status("b").SharePercent}; !slices.Equal(is, was) {
			t.Errorf("a and b have %v %%, and had %v", is, was)
		}
		next.Close()
	}
}

// A function that cannot be restored is left out: the node continues, and the next manager
// tries again.
func TestRecordMissingModel(t *testing.T) {
	dir := t.TempDir()
	file := []configs.Function{named("a", 20), named("b", 20)}
	recordedNode(t, dir, "run", "text", nil, file...).Close()
	next := recordedNode(t, dir, "run", "text", func(b *nodeBed) {
		find := b.find
		b.find = func(name string) (*models.Card, error) {
			if name == "a" {
				return nil, errors.New("no such card")
			}
			return find(name)
		}
	}, file...)
	if got := next.names(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("it has %v, want b", got)
	}
	next.Close()
	if got := recordedNode(t, dir, "run", "text", nil, file...).names(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("when a can be had again there are %v, want a and b", got)
	}
}

// edit gives function a another model in the configuration.
func (b *nodeBed) edit(digest, model string) {
	b.t.Helper()
	c := b.cfg
	c.Digest, c.Functions = digest, []configs.Function{named("a", 20)}
	c.Functions[0].Model = model
	must.OK(b.t, b.Follow(c))
}

// The file names one model, and another one before the first serves.
func TestEditDuringReplacement(t *testing.T) {
	for name, second := range map[string]string{"back": "a", "on": "third"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			b := recordedNode(t, dir, "run", "text", nil, named("a", 20))
			b.edit("second text", "other")
			b.turn()
			b.edit("third text", second)
			f := &bed{b.functions.find("a"), t}
			f.eventually("both edits are followed", func() bool {
				b.turns()
				return b.file.waiting == nil && f.model.replacing == nil
			})
			if f.model.desired.Name != second || f.config.Model != second {
				t.Errorf("it runs %s as %q, and the file says %s", f.model.desired.Name, f.config.Model, second)
			}
			was, err := readRecord(dir, "run")
			if err != nil || was.Entries[0].Model != second || was.Functions[0].Function.Model != second {
				t.Errorf("recorded is %+v, %v", was, err)
			}
		})
	}
}

// An earlier edit does not restore a function that was removed by hand.
func TestRemovalDuringEdit(t *testing.T) {
	b := recordedNode(t, t.TempDir(), "run", "text", nil, named("a", 20))
	b.edit("second text", "other")
	b.turn()
	b.edit("third text", "a")
	must.OK(t, b.remove("a"))
	f := &bed{b.functions.find("a"), t}
	f.eventually("a is gone", func() bool {
		b.turns()
		return b.functions.find("a") == nil
	})
	b.turns()
	if got := b.names(); len(got) > 0 {
		t.Errorf("it has %v, want none", got)
	}
}

// TestAdditionIsRecordedFirst checks that a function exists after every crash of the
// manager, once a client has learned that it serves.
func TestAdditionIsRecordedFirst(t *testing.T) {
	dir := t.TempDir()
	b := recordedNode(t, dir, "run", "text", nil)
	end := b.on(named("b", 20))

	// A failed record is logged at the moment of the attempt.
	b.recorder.dir = filepath.Join(dir, "missing")
	attempts := 0
	b.log = zerolog.New(writerFunc(func(line []byte) (int, error) {
		if bytes.Contains(line, []byte("cannot record")) {
			attempts++
			select {
			case err := <-end:
				t.Errorf("the addition ended with %v before it was recorded", err)
			default:
			}
		}
		return len(line), nil
	}))
	b.turns()
	if attempts == 0 {
		t.Error("the addition was not recorded")
	}
	if err := b.ended(end); err != nil {
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
