package prepared

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/private"
)

// proto makes messages for the tests.
type proto []byte

func (p proto) text(number protowire.Number, s string) proto { return appendString(p, number, s) }
func (p proto) sub(number protowire.Number, m proto) proto   { return appendBytes(p, number, m) }
func (p proto) number(number protowire.Number, v uint64) proto {
	return appendVarint(p, number, v)
}

func tensorOf(name string, dtype int, raw []byte, shape ...int64) (t proto) {
	for _, d := range shape {
		t = t.number(tensorDims, uint64(d))
	}
	return t.number(tensorType, uint64(dtype)).text(tensorName, name).sub(tensorRaw, raw)
}

func nodeOf(domain, op string, inputs []string, attributes ...string) (n proto) {
	for _, i := range inputs {
		n = n.text(nodeInput, i)
	}
	n = n.text(2, "out").text(nodeOpType, op).text(nodeDomain, domain)
	for _, a := range attributes {
		n = n.sub(nodeAttribute, proto(nil).text(attributeName, a).number(20, 2))
	}
	return n
}

func modelOf(parts ...func(proto) proto) []byte {
	var graph proto
	for _, p := range parts {
		graph = p(graph)
	}
	m := proto(nil).number(1, 8).sub(modelOpset, proto(nil).text(opsetDomain, "").number(opsetVersion, 17))
	return m.sub(modelGraph, graph.text(2, "g")).text(99, "kept")
}

func withNode(n proto) func(proto) proto { return func(g proto) proto { return g.sub(graphNode, n) } }
func withTensor(t proto) func(proto) proto {
	return func(g proto) proto { return g.sub(graphInitializer, t) }
}
func withInput(name string) func(proto) proto {
	return func(g proto) proto { return g.sub(graphInput, proto(nil).text(valueName, name)) }
}
func withValue(name string) func(proto) proto {
	return func(g proto) proto { return g.sub(graphValue, proto(nil).text(valueName, name)) }
}

// counted are bytes 0, 1, 2, ... as 16-bit words.
func counted(words int) []byte {
	b := make([]byte, 2*words)
	for i := range words {
		binary.LittleEndian.PutUint16(b[2*i:], uint16(i))
	}
	return b
}

// look reads a model back.
func look(t *testing.T, model []byte) (nodes []node, tensors []tensor, values []string, opsets int) {
	t.Helper()
	if err := fields(model, func(f field) error {
		switch f.number {
		case modelOpset:
			opsets++
		case modelGraph:
			return fields(f.data, func(f field) (err error) {
				switch f.number {
				case graphNode:
					var n node
					n, err = readNode(f.data)
					nodes = append(nodes, n)
				case graphInitializer:
					var r tensor
					r, err = readTensor(f.data)
					tensors = append(tensors, r)
				case graphValue:
					var name string
					name, err = nameOf(f.data)
					values = append(values, name)
				}
				return err
			})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return nodes, tensors, values, opsets
}

func split(t *testing.T, model []byte) (graph []byte, tensors []Tensor, weights []byte) {
	t.Helper()
	graph, tensors, err := splitModel(model, func(b []byte) error { weights = append(weights, b...); return nil })
	must.OK(t, err)
	return graph, tensors, weights
}

// Large weights are moved to the file, small ones stay in the graph.
func TestSplitWeights(t *testing.T) {
	large, bias, indices := counted(700), counted(3), make([]byte, 4096)
	graph, list, weights := split(t, modelOf(
		withNode(nodeOf("", "Gemm", []string{"x", "w", "b"}, "alpha")),
		withTensor(tensorOf("w", 10, large, 70, 10)), withTensor(tensorOf("b", 10, bias, 3)),
		withTensor(tensorOf("at", 7, indices, 512)), withTensor(tensorOf("v", 1, make([]byte, 2048), 2, 256)), withValue("w"),
	))
	want := []Tensor{{"w", 10, []int64{70, 10}, 0, 1400}, {"v", 1, []int64{2, 256}, 1536, 2048}}
	if !reflect.DeepEqual(list, want) || !bytes.Equal(weights[:1400], large) || len(weights) != 1536+2048 {
		t.Errorf("%+v and %d bytes, want %+v", list, len(weights), want)
	}
	nodes, tensors, values, opsets := look(t, graph)
	if len(nodes) != 1 || nodes[0].op != "Gemm" || opsets != 1 || !slices.Equal(values, []string{"w"}) || !bytes.Contains(graph, []byte("kept")) {
		t.Errorf("nodes %+v, %d opsets, values %v", nodes, opsets, values)
	}
	for i, external := range []bool{true, false, false, true} {
		if tensors[i].external != external || external && tensors[i].raw != nil {
			t.Errorf("%s is in the file: %v", tensors[i].Name, tensors[i].external)
		}
	}
	if !bytes.Contains(graph, []byte(weightsFile)) || !bytes.Contains(graph, []byte("1536")) {
		t.Error("the graph does not say where they are")
	}
}

// M 2, C 3, 16 by 16.
func TestConvolutionsInNHWC(t *testing.T) {
	const places = 256
	raw := counted(2 * 3 * places)
	conv := nodeOf(internalNHWC, "Conv", []string{"x", "w", "b"}, "pads", "strides", "group")
	graph, list, weights := split(t, modelOf(withNode(conv), withNode(nodeOf(internalNHWC, "MaxPool", []string{"out"})),
		withTensor(tensorOf("w", 10, raw, 2, 3, 16, 16)), withValue("w"), withValue("y")))
	if len(list) != 1 || !slices.Equal(list[0].Shape, []int64{2, 16, 16, 3}) || list[0].Bytes != int64(len(raw)) {
		t.Fatalf("%+v", list)
	}
	for m := range 2 {
		for p := range places {
			for c := range 3 {
				if got, want := binary.LittleEndian.Uint16(weights[2*((m*places+p)*3+c):]), uint16((m*3+c)*places+p); got != want {
					t.Fatalf("at %d %d %d lies %d, want %d", m, p, c, got, want)
				}
			}
		}
	}
	nodes, tensors, values, opsets := look(t, graph)
	if nodes[0].op != nhwcConv || nodes[0].domain != microsoft || !slices.Equal(nodes[0].inputs, []string{"x", "w", "b"}) || len(nodes[0].attributes) != 3 {
		t.Errorf("it became %+v", nodes[0])
	}
	if nodes[1].op != "MaxPool" || nodes[1].domain != internalNHWC || opsets != 2 || !tensors[0].external || !slices.Equal(values, []string{"y"}) {
		t.Errorf("%+v, %d opsets, values %v", nodes[1], opsets, values)
	}
}

// Weights of four bytes are transposed, too.
func TestTransposeF32(t *testing.T) {
	raw := make([]byte, 4*2*256)
	for i := range 2 * 256 {
		binary.LittleEndian.PutUint32(raw[4*i:], uint32(i))
	}
	_, list, weights := split(t, modelOf(withNode(nodeOf(internalNHWC, "Conv", []string{"x", "w"})), withTensor(tensorOf("w", 1, raw, 1, 2, 16, 16))))
	if binary.LittleEndian.Uint32(weights[4:]) != 256 || !slices.Equal(list[0].Shape, []int64{1, 16, 16, 2}) {
		t.Errorf("%+v begins % x", list, weights[:12])
	}
}

// The split leaves other convolutions unchanged: ONNX Runtime then transposes the weights.
func TestUnknownConvolutions(t *testing.T) {
	raw := counted(1024)
	for what, parts := range map[string][]func(proto) proto{
		"another attribute":     {withNode(nodeOf(internalNHWC, "Conv", []string{"x", "w"}, "activation")), withTensor(tensorOf("w", 10, raw, 4, 1, 16, 16))},
		"another user":          {withNode(nodeOf(internalNHWC, "Conv", []string{"x", "w"})), withNode(nodeOf("", "Add", []string{"w", "y"})), withTensor(tensorOf("w", 10, raw, 4, 1, 16, 16))},
		"NCHW":                  {withNode(nodeOf("", "Conv", []string{"x", "w"})), withTensor(tensorOf("w", 10, raw, 4, 1, 16, 16))},
		"a matrix":              {withNode(nodeOf(internalNHWC, "Conv", []string{"x", "w"})), withTensor(tensorOf("w", 10, raw, 64, 16))},
		"the wrong size":        {withNode(nodeOf(internalNHWC, "Conv", []string{"x", "w"})), withTensor(tensorOf("w", 10, raw, 4, 1, 16, 17)), withTensor(tensorOf("v", 10, raw, 1024))},
		"an input of the graph": {withInput("w"), withNode(nodeOf(internalNHWC, "Conv", []string{"x", "w"})), withTensor(tensorOf("w", 10, raw, 4, 1, 16, 16)), withTensor(tensorOf("v", 10, raw, 1024))},
	} {
		graph, list, _ := split(t, modelOf(parts...))
		nodes, _, _, opsets := look(t, graph)
		if nodes[0].op != "Conv" || opsets != 1 || len(list) != 1 || len(list[0].Shape) == 4 && list[0].Shape[1] != 1 {
			t.Errorf("%s: %+v, %+v", what, nodes, list)
		}
	}
}

func TestUnsharableModels(t *testing.T) {
	weights := withTensor(tensorOf("w", 10, counted(1024), 1024))
	nested := nodeOf("", "If", nil)
	nested = nested.sub(nodeAttribute, proto(nil).text(attributeName, "then_branch").sub(attributeGraph, nil))
	external := tensorOf("e", 10, nil, 1024).number(tensorLocation, locationExternal)
	for what, m := range map[string][]byte{
		"the CPU":        modelOf(weights, withNode(nodeOf("", "MemcpyToHost", []string{"x"}))),
		"graph":          modelOf(weights, withNode(nested)),
		"file":           modelOf(withTensor(external)),
		"no weights of ": modelOf(withTensor(tensorOf("b", 10, counted(2), 2))),
	} {
		if _, _, err := splitModel(m, func([]byte) error { return nil }); !errors.Is(err, ErrNotShareable) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAFullDiskIsAnError(t *testing.T) {
	full := errors.New("no space")
	if _, _, err := splitModel(modelOf(withTensor(tensorOf("w", 10, counted(1024), 1024))), func([]byte) error { return full }); !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
}

func TestSplitMalformed(t *testing.T) {
	for name, model := range map[string][]byte{
		"empty":                   {},
		"no graph":                proto(nil).number(1, 8),
		"tag cut off":             {0x80},
		"tag of 65 bits":          {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02},
		"field number 0":          {0x00, 0x00},
		"field number of 30 bits": {0x80, 0x80, 0x80, 0x80, 0x10, 0x00},
		"varint cut off":          {0x08, 0xff},
		"varint of 65 bits":       {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02},
		"length beyond the end":   {0x3a, 0x02, 0x00},
		"length of 64 bits":       {0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
		"fixed32 cut off":         {0x0d, 1, 2, 3},
		"fixed64 cut off":         {0x09, 1, 2, 3, 4, 5, 6, 7},
		"group":                   {0x0b, 0x0c},
		"unused wire type":        {0x0e, 0x00},
		"packed shape cut off":    modelOf(withTensor(proto(nil).sub(tensorDims, proto{0x80}))),
		"node cut off":            modelOf(withNode(proto{0x0a, 0x02})),
	} {
		if _, _, err := splitModel(model, func([]byte) error { return nil }); !errors.Is(err, errWire) {
			t.Errorf("%s: error %v, want %v", name, err, errWire)
		}
	}
}

func FuzzSplit(f *testing.F) {
	f.Add(modelOf(withNode(nodeOf(internalNHWC, "Conv", []string{"x", "w"}, "pads")), withTensor(tensorOf("w", 10, counted(1024), 4, 1, 16, 16))))
	f.Add([]byte{0x3a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, model []byte) {
		var weights int64
		graph, tensors, err := splitModel(model, func(b []byte) error { weights += int64(len(b)); return nil })
		if err != nil {
			return
		}
		for _, r := range tensors {
			if r.Offset < 0 || r.Bytes <= 0 || r.Offset+r.Bytes > weights {
				t.Errorf("%+v of %d bytes", r, weights)
			}
		}
		if _, _, err := splitModel(graph, func([]byte) error { return nil }); err != nil && !errors.Is(err, ErrNotShareable) && !errors.Is(err, errWire) {
			t.Errorf("what it made: %v", err)
		}
	})
}

func sharedModel() []byte {
	return modelOf(withNode(nodeOf(internalNHWC, "Conv", []string{"x", "w"})), withTensor(tensorOf("w", 10, counted(1024), 4, 1, 16, 16)))
}

func keyed(t *testing.T) (Store, Key) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "model.onnx")
	must.OK(t, os.WriteFile(file, []byte("model"), 0o600))
	k, err := KeyOf([]string{file}, "1.29.0", "GPU-1", "nhwc")
	must.OK(t, err)
	return Store{Dir: filepath.Join(dir, "cache")}, k
}

var right = Answer{Sample: "00", Outputs: [][]float32{{0.5, 1}, {}, {float32(math.Inf(-1)), math.MaxFloat32, 3}}}

func TestEntry(t *testing.T) {
	s, k := keyed(t)
	if _, err := s.Open(k); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("before it is made: %v", err)
	}
	made, err := s.Make(k, sharedModel(), right)
	must.OK(t, err)
	read, err := s.Open(k)
	if err != nil || !reflect.DeepEqual(made.Index, read.Index) || !bytes.Equal(made.Graph, read.Graph) || made.Dir != read.Dir || read.Answer.Sample != right.Sample || !reflect.DeepEqual(read.Answer.Outputs, right.Outputs) {
		t.Errorf("%+v, %v", read, err)
	}
	weights, err := os.ReadFile(read.Weights())
	if err != nil || int64(len(weights)) != read.Bytes || len(weights) != 2048 {
		t.Errorf("%d bytes of weights, %v", len(weights), err)
	}
	sum := sha256.Sum256(read.Graph)
	if hex.EncodeToString(sum[:]) != read.GraphSHA256 {
		t.Error("the graph is another")
	}
	for _, other := range []Key{{File: k.File}, func() Key { o := k; o.Runtime = "1.30.0"; return o }(), func() Key { o := k; o.Layout = "nchw"; return o }(), func() Key { o := k; o.Contents += "x"; return o }()} {
		if _, err := s.Open(other); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%+v: %v", other, err)
		}
	}
}

// Models of one architecture have equal sizes, and a tool that unpacks or copies them may set
// equal times.
func TestKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.onnx")
	when := time.Unix(1, 0)
	write := func(path, text string) Key {
		t.Helper()
		must.OK(t, errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, when, when)))
		must.OK(t, os.Rename(path, file))
		k, err := KeyOf([]string{file}, "1.29.0", "GPU-1", "nhwc")
		must.OK(t, err)
		return k
	}
	// Both files exist at the same time, so they differ even if the clock is coarse.
	first := write(file, "before")
	if second := write(file+".new", "after!"); first.name() == second.name() || first.File != second.File {
		t.Errorf("%+v and %+v", first, second)
	}
	data := file + ".data"
	var keys []Key
	for _, text := range []string{"weights", "others"} {
		must.OK(t, os.WriteFile(data+text, []byte(text), 0o600))
		must.OK(t, os.Rename(data+text, data))
		k, err := KeyOf([]string{file, data}, "1.29.0", "GPU-1", "nhwc")
		must.OK(t, err)
		keys = append(keys, k)
	}
	if keys[0] == keys[1] || keys[0] == first {
		t.Errorf("models with other data have the keys %+v", keys)
	}
	again, err := KeyOf([]string{file}, "1.29.0", "GPU-1", "nhwc")
	if second, err2 := KeyOf([]string{file}, "1.29.0", "GPU-1", "nhwc"); err != nil || err2 != nil || second != again {
		t.Errorf("one file has two keys: %+v, %v and %+v, %v", again, err, second, err2)
	}
	if _, err := KeyOf([]string{file + "x"}, "1.29.0", "GPU-1", "nhwc"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "model.onnxx") {
		t.Errorf("without a file: %v", err)
	}
}

// Reading a damaged entry removes it, so that it can be made again.
func TestDamagedEntries(t *testing.T) {
	s, k := keyed(t)
	spoil := map[string]func(dir string) error{
		"graph":      func(dir string) error { return os.WriteFile(filepath.Join(dir, graphFile), []byte("x"), 0o600) },
		"answer":     func(dir string) error { return os.Truncate(filepath.Join(dir, answerFile), 4) },
		"no answer":  func(dir string) error { return os.Remove(filepath.Join(dir, answerFile)) },
		"no graph":   func(dir string) error { return os.Remove(filepath.Join(dir, graphFile)) },
		"no index":   func(dir string) error { return os.Remove(filepath.Join(dir, indexFile)) },
		"no weights": func(dir string) error { return os.Remove(filepath.Join(dir, weightsFile)) },
		"short":      func(dir string) error { return os.Truncate(filepath.Join(dir, weightsFile), 100) },
		"index":      func(dir string) error { return os.WriteFile(filepath.Join(dir, indexFile), []byte("{"), 0o600) },
		"other's":    func(dir string) error { return os.WriteFile(filepath.Join(dir, indexFile), []byte("{}"), 0o600) },
		"answer beyond": func(dir string) error {
			path := filepath.Join(dir, indexFile)
			b, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path, bytes.Replace(b, []byte(`"values":[2,0,3]`), []byte(`"values":[2,0,4]`), 1), 0o600))
		},
		"index beyond": func(dir string) error {
			path := filepath.Join(dir, indexFile)
			b, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path, bytes.Replace(b, []byte(`"offset":0`), []byte(`"offset":512`), 1), 0o600))
		},
	}
	for what, harm := range spoil {
		e, err := s.Make(k, sharedModel(), right)
		must.OK(t, err)
		must.OK(t, harm(e.Dir))
		if _, err := s.Open(k); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := s.Open(k); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, the second time: %v", what, err)
		}
	}
}

// A model that cannot be shared is not prepared again.
func TestRefusalKept(t *testing.T) {
	s, k := keyed(t)
	model := modelOf(withNode(nodeOf("", "MemcpyToHost", []string{"x"})))
	if _, err := s.Make(k, model, Answer{}); !errors.Is(err, ErrNotShareable) {
		t.Fatal(err)
	}
	if _, err := s.Open(k); !errors.Is(err, ErrNotShareable) || !strings.Contains(err.Error(), "the CPU") {
		t.Errorf("opened: %v", err)
	}
	// The same applies to a good entry that turned out not to work.
	must.OK(t, s.Remove(k))
	if _, err := s.Make(k, sharedModel(), Answer{}); err != nil {
		t.Fatal(err)
	}
	must.OK(t, s.Refuse(k, errors.New("wrong answers")))
	if _, err := s.Open(k); !errors.Is(err, ErrNotShareable) {
		t.Errorf("opened: %v", err)
	}
}

// If two processes prepare a model that cannot be shared, the slower one also gets the reason.
func TestRefusalByOther(t *testing.T) {
	s, k := keyed(t)
	must.OK(t, s.Refuse(k, errors.New("wrong answers")))
	if _, err := s.Make(k, sharedModel(), Answer{}); !errors.Is(err, ErrNotShareable) || !strings.Contains(err.Error(), "wrong answers") {
		t.Errorf("%v", err)
	}
}

// A process that has an entry open keeps its files, whatever other processes make and
// remove. No process finds a damaged entry.
func TestOpenEntry(t *testing.T) {
	s, k := keyed(t)
	s.MostBytes = 1 // each Make removes all entries that are not in use
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 150 {
				k := k
				k.Contents = fmt.Sprint((i + n) % 2)
				if err := useEntry(s, k); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// useEntry opens or makes an entry, and returns an error if its files do not stay until Close.
func useEntry(s Store, k Key) error {
	e, err := s.Open(k)
	if errors.Is(err, fs.ErrNotExist) {
		e, err = s.Make(k, sharedModel(), right)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another process removed it before Make opened it
		}
	}
	if err != nil {
		return err
	}

	var errs []error
	for range 3 {
		_, err := os.Stat(e.Weights())
		errs = append(errs, err)
	}
	return errors.Join(append(errs, e.Close())...)
}

func TestManyMakeOneEntry(t *testing.T) {
	s, k := keyed(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if e, err := s.Make(k, sharedModel(), right); err != nil || len(e.Graph) == 0 {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	list, err := os.ReadDir(s.Dir)
	must.OK(t, err)
	if n := slices.IndexFunc(list, func(d os.DirEntry) bool { return strings.HasPrefix(d.Name(), unfinishedPrefix) }); n >= 0 || len(list) != 2 { // and the lock
		t.Errorf("left: %v", list)
	}
}

// The store stays within its bound. It removes the least recently used entries that are not in
// use, and unfinished ones.
func TestTheFolderIsBounded(t *testing.T) {
	s, k := keyed(t)
	s.MostBytes = 10000 // an entry takes some 3,000
	abandoned := filepath.Join(s.Dir, unfinishedPrefix+"x")
	must.OK(t, os.MkdirAll(abandoned, 0o700))
	long := time.Now().Add(-2 * abandonedAfter)
	must.OK(t, os.Chtimes(abandoned, long, long))
	var keys []Key
	for i := range 6 {
		k.Contents = fmt.Sprint(i)
		keys = append(keys, k)
		e, err := s.Make(k, sharedModel(), right)
		must.OK(t, err)
		if i == 0 {
			defer e.Close() // the first is in use
		} else if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(time.Duration(i-100) * time.Second)
		must.OK(t, os.Chtimes(e.Dir, when, when))
	}
	there := 0
	for _, k := range keys {
		if _, err := s.Open(k); err == nil {
			there++
		}
	}
	for _, i := range []int{0, 5} {
		if _, err := s.Open(keys[i]); err != nil || there < 2 || there > 4 {
			t.Errorf("%d of 6 are there, entry %d: %v", there, i, err)
		}
	}
	if _, err := os.Stat(abandoned); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was abandoned: %v", err)
	}
}

func TestDefaultDir(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	if dir, err := DefaultDir(); err != nil || dir != filepath.Join(cache, "penstock", "onnx") {
		t.Errorf("%s, %v", dir, err)
	}
	must.OK(t, os.Chmod(filepath.Join(cache, "penstock", "onnx"), 0o777))
	if dir, err := DefaultDir(); !errors.Is(err, private.ErrNotPrivate) {
		t.Errorf("a folder that all can write: %s, %v", dir, err)
	}
}
