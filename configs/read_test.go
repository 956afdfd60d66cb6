package configs

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/private"
)

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile("penstock.schema.json")
	must.OK(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	must.OK(t, err)
	c := jsonschema.NewCompiler()
	must.OK(t, c.AddResource("penstock.schema.json", doc))
	s, err := c.Compile("penstock.schema.json")
	must.OK(t, err)
	return s
}

// valid returns the schema's error for a YAML text.
func valid(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return err
	}
	var v any
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		return err
	}
	return s.Validate(v)
}

func TestReferenceDefaults(t *testing.T) {
	c, err := Read("reference.yaml")
	must.OK(t, err)
	want := Default()
	want.File, want.Text, want.Digest, want.Functions = c.File, c.Text, c.Digest, c.Functions
	if !reflect.DeepEqual(c, want) {
		t.Errorf("reference.yaml says\n%+v, the defaults are\n%+v", c, want)
	}
}

func TestShippedConfigurations(t *testing.T) {
	s := schema(t)
	for _, file := range []string{"demo.yaml", "gpu.yaml", "lanes.yaml", "reference.yaml", "systemd/penstock.yaml", "container/penstock.yaml"} {
		c, err := Read(file)
		if err != nil {
			t.Error(err)
		}
		if file == "systemd/penstock.yaml" && (!c.Listen.IsLoopback() || len(c.Functions) == 0) {
			t.Errorf("%s listens on %v and has %d functions; want this machine only, and some", file, c.Listen, len(c.Functions))
		}
		text, err := os.ReadFile(file)
		must.OK(t, err)
		if err := valid(t, s, string(text)); err != nil {
			t.Errorf("%s: schema: %v", file, err)
		}
	}
	if _, err := Read(""); err != nil {
		t.Errorf("built-in configuration: %v", err)
	}
}

// wrong are invalid texts with the words that the one-line error must contain.
var wrong = map[string][]string{
	"functions: [{name: a, prot: 1}]":                      {"f.yaml:1:", `"prot"`, `"port"`},
	"functions: [{name: a}]":                               {"f.yaml:1:", "port"},
	"functions: [{port: 1}]":                               {"f.yaml:1:", "name"},
	"functions: [{name: Upper, port: 1}]":                  {"Upper", "lower case"},
	"functions: [{name: a, port: 70000}]":                  {"70000", "65535"},
	"functions: [{name: a, port: 1, slo: 10}]":             {"slo", "10"},
	"functions: [{name: a, port: 1, instances: 0}]":        {"instances", "0"},
	"functions: [{name: a, port: 1, change: swap}]":        {"swap", "shadow", "in-place"},
	"functions: [{name: a, port: 1, environment: {A: 1}}]": {"environment", "A"},
	"device: gpu":                {"f.yaml:1:", "device", `"gpu"`, "cuda"},
	"device: cuda:one":           {"device", "cuda:N"},
	"devcie: cuda":               {`"devcie"`, `"device"`},
	"shares: {change: partiton}": {"partiton", `"partition"`},
	"functions: [{name: a, port: 1, in_flight: 3}]":    {"in_flight", "3", "auto"},
	"functions: [{name: a, port: 1, in_flight: many}]": {"in_flight", "many", "auto"},
	"functions: {name: a}":                             {"functions"},
	"shares: {minimum_percent: 101}":                   {"minimum_percent", "101"},
	"shares: {tune: maybe}":                            {"tune", "maybe"},
	"shares: {hold_down: -1s}":                         {"hold_down"},
	"aggregate: {slots: 65}":                           {"slots", "65", "auto, or a power of two from 64 to 16384"},
	"aggregate: {slots: 32}":                           {"slots", "32"},
	"aggregate: {slots: many}":                         {"slots", "many", "auto"},
	"aggregate: {deadline: soon}":                      {"deadline", "soon"},
	"slab: {size: lots}":                               {"size", "lots"},
	"fault_hold: long":                                 {"fault_hold", "long"},
	"log: {level: loud}":                               {"loud", "debug"},
	"source: kernel":                                   {"f.yaml:1:", "source", `"kernel"`, "udp", "dpdk"},
	"source: dpdk":                                     {"source", "port", "addresses"},
	"source: [udp]":                                    {"source", "udp"},
	"source: {}":                                       {"source.dpdk", "missing", "port"},
	"source: {dkdp: {port: net_ring0, addresses: [10.0.0.2]}}":                     {`"dkdp"`, `"dpdk"`},
	"source: {dpdk: {port: net_ring0}}":                                            {"source.dpdk.addresses", "missing", "10.0.0.2"},
	"source: {dpdk: {addresses: [10.0.0.2]}}":                                      {"source.dpdk.port", "missing", "0000:3b:00.0"},
	"source: {dpdk: {port: net_ring0, addresses: []}}":                             {"addresses", "1 to 16"},
	"source: {dpdk: {port: net_ring0, addresses: 10.0.0.2}}":                       {"addresses", "list"},
	"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2, 10.0.0.2]}}":           {"addresses[1]", "already"},
	"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], queues: 0}}":          {"queues", "0", "64"},
	"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], queues: many}}":       {"queues", "many"},
	"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], lcores: [1, 1]}}":     {"lcores[1]", "1", "already"},
	"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], lcores: [-1]}}":       {"lcores[0]", "-1"},
	"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], mtu: 100}}":           {"mtu", "100", "1280"},
	"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], memory: lots}}":       {"memory", "lots"},
	"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], mbufs: 1}}":           {"mbufs", "4096"},
	"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], huge_pages: some}}":   {"huge_pages", "some"},
	"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], eal: --log-level=8}}": {"eal", "list"},
	"trusted: [here]": {"trusted[0]", "192.0.2.7/32"},
	"receivers: 0":    {"receivers", "0", "16"},
	"receivers: 17":   {"receivers", "17", "16"},
	"receivers: many": {"receivers", "many"},
	"functions: [{name: a, port: 1, receivers: 17}]":                      {"functions[0].receivers", "17", "16"},
	"functions: [{name: a, port: 1, format: rfc4157}]":                    {"format", "rfc4157", `"rfc4175"`, "gvsp"},
	"functions: [{name: a, port: 1, format: gvsp, answers_to: here}]":     {"answers_to", "here", "192.0.2.7:9000"},
	"functions: [{name: a, port: 1, format: gvsp, answers_to: 10.0.0.1}]": {"answers_to", "10.0.0.1", "ADDRESS:PORT"},
	"lsiten: 127.0.0.1": {`"lsiten"`, `"listen"`},
}

func TestSchemaErrors(t *testing.T) {
	s := schema(t)
	for text, words := range wrong {
		_, err := Decode("f.yaml", []byte(text))
		if err == nil {
			t.Errorf("accepted %q", text)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q: error %q does not name %q", text, err, word)
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: error has several lines: %q", text, err)
		}
		if valid(t, s, text) == nil {
			t.Errorf("schema accepts %q", text)
		}
	}
}

func TestValueErrors(t *testing.T) {
	for text, want := range map[string]string{
		"listen: 5":               "is 5, want an IP address, like 127.0.0.1",
		"listen: 300.1.1.1":       `is "300.1.1.1", want an IP address, like 127.0.0.1`,
		"http: 9650":              "is 9650, want ADDRESS:PORT, like 127.0.0.1:9650",
		`http: ""`:                `is "", want ADDRESS:PORT, like 127.0.0.1:9650`,
		"http: '127.0.0.1:99999'": `is "127.0.0.1:99999", want ADDRESS:PORT, like 127.0.0.1:9650`,
		`device: ""`:              `is "", want cpu, auto, cuda`,
		"device: gpu":             `is "gpu", want cpu, auto, cuda`,
		"weights: soon":           `is "soon", want shared or private`,
	} {
		_, err := Decode("f.yaml", []byte(text))
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v; want one line with %q", text, err, want)
		}
	}
}

// TestReadErrors checks faults that a schema cannot express.
func TestReadErrors(t *testing.T) {
	for text, words := range map[string][]string{
		"{listen: 10.0.0.2, source: {dpdk: {port: net_ring0, addresses: [10.0.0.2]}}}":          {"listen", "source.dpdk.addresses"},
		"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], eal: ['-l1,2']}}":              {"eal[0]", "-l1,2", "lcores"},
		"functions: [{name: a, port: 1, in_flight: 2}]":                                         {"functions[0].in_flight", "is 2", "cpu", "auto"},
		"{gateway: off, streams: [{name: a, source: 'rtsp://x', to: [face]}]}":                  {"streams", "gateway", "off"},
		"streams: [{name: a, source: '-', to: [face]}]":                                         {"streams[0].source", "standard input"},
		"streams: [{name: a, source: a.mp4, to: [face]}, {name: a, source: b.mp4, to: [face]}]": {"streams[1].name", "another stream"},
		"shares: {change: partition}":                                                           {"change", "cpu", "shadow", "device: cuda"},
		"source: {dpdk: {port: '3b:00.0', addresses: [10.0.0.2]}}":                              {"port", "0000:3b:00.0"},
		"source: {dpdk: {port: eth0, addresses: [10.0.0.2]}}":                                   {`"eth0"`, "0000:3b:00.0", "iface=veth1"},
		"source: {dpdk: {port: 'net_af_xdp0,iface=', addresses: [10.0.0.2]}}":                   {"interface", "net_af_xdp0,iface="},
		"source: {dpdk: {port: 'net_tap,iface=d0', addresses: [10.0.0.2]}}":                     {"number", "net_tap0,iface=d0"},
		"busy_poll: 2s": {"busy_poll", "1s"},
		"source: {dpdk: {port: 'net_ring0 ', addresses: [10.0.0.2]}}":                                               {"net_ring0 ", "PCI"},
		"{slab: {size: 64MiB}, source: {dpdk: {port: net_ring0, addresses: [10.0.0.2]}}}":                           {"slab", "source.dpdk.memory"},
		"source: {dpdk: {port: net_af_packet0, addresses: [10.0.0.2]}}":                                             {"interface", "net_af_packet0,iface="},
		"source: {dpdk: {port: net_afpacket0, addresses: [10.0.0.2]}}":                                              {"net_afpacket", "net_af_packet"},
		"{functions: [{name: a, port: 1, receivers: 2}], source: {dpdk: {port: net_ring0, addresses: [10.0.0.2]}}}": {"functions[0].receivers", "is 2", "source.dpdk.queues"},
		"{device: GPU-1a2b, functions: [{name: a, port: 1, change: in-place}]}":                                     {"change", "GPU-1a2b", "partition"},
		"{device: cuda, shares: {change: in-place}}":                                                                {"change", "cuda", "partition"},
		"source: {dpdk: {port: net_ring0, addresses: [here]}}":                                                      {"addresses[0]", "here"},
		"functions: [{name: a, port: 1, change: partition}]":                                                        {"change", "cpu", "shadow"},
		"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2/24]}}":                                               {"addresses[0]", "10.0.0.2/24", "alone"},
		"source: {dpdk: {port: net_ring0, addresses: ['fe80::1%eth0']}}":                                            {"addresses[0]", "zone"},
		"weights: shared": {"f.yaml:1:", "weights", "shared", "cpu", "device: cuda"},
		"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], eal: ['--vdev=net_null0']}}": {"eal[0]", "--vdev", "source.dpdk.port"},
		"{receivers: 2, source: {dpdk: {port: net_ring0, addresses: [10.0.0.2]}}}":            {"receivers", "is 2", "source.dpdk.queues"},
		"functions: [{name: a, port: 1, weights: shared}]":                                    {"functions[0].weights", "cpu", "device: cuda"},
		"functions: [{name: a, port: 1, slo: 0s}]":                                            {"functions[0].slo", "0s"},
		"listen: nowhere":       {"listen", "127.0.0.1"},
		"trusted: [10.1.2.3/8]": {"trusted[0]", "10.0.0.0/8"},
		"http: nowhere:1":       {"http", "127.0.0.1:9650"},
		"source: {dpdk: {port: net_ring0, addresses: [127.0.0.1]}}":                           {"127.0.0.1", "another machine"},
		"source: {dpdk: {port: net_ring0, addresses: ['::ffff:10.0.0.2']}}":                   {"10.0.0.2"},
		"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], memory: 1MiB}}":              {"memory", "1MiB", "64MiB"},
		"source: {dpdk: {port: net_ring0, addresses: [10.0.0.2], queues: 3, lcores: [1, 2]}}": {"lcores", "2 CPUs for 3 queues"},
		"slab: {size: 1KiB}":                 {"size", "1KiB", "MiB"},
		"{slab: {size: 1MiB}, receivers: 5}": {"receivers", "is 5", "slab.size", "256KiB"},
		"{slab: {size: 1MiB}, functions: [{name: a, port: 1, receivers: 8}]}": {"functions[0].receivers", "is 8", "slab.size"},
		"functions: [{name: a, port: 1}, {name: a, port: 2}]":                 {`"a"`, "another function"},
		"functions: [{name: a, port: 1}, {name: b, port: 1}]":                 {"port", `"a"`},
	} {
		_, err := Decode("f.yaml", []byte(text))
		if err == nil {
			t.Errorf("accepted %q", text)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q: error %q does not name %q", text, err, word)
			}
		}
	}
}

func TestDPDKPorts(t *testing.T) {
	s := schema(t)
	for _, port := range []string{
		`"0000:3b:00.0"`, "0000:3b:00.0", "0000:03:00.1", `"0000:3b:00.0,representor=0"`,
		"'net_af_packet0,iface=veth1'", "'net_af_packet0,qpairs=2,iface=veth1,framecnt=8192'", "net_tap0", "'net_tap1,iface=dtap0'",
		"'net_af_xdp0,iface=veth1,force_copy=1'", "'net_pcap0,rx_pcap=a.pcap'", "'net_pcap0,iface=veth1'",
		"'net_memif0,role=server,socket=/run/x.sock'", "net_ring0", "'net_null0,size=1088'",
	} {
		text := "source: {dpdk: {port: " + port + ", addresses: [10.0.0.2, 'fd00::2']}}"
		c, err := Decode("f.yaml", []byte(text))
		if err != nil {
			t.Error(err)
			continue
		}
		if want := strings.Trim(port, `"'`); c.Source.DPDK.Port != want {
			t.Errorf("%s: port is %q, want %q", text, c.Source.DPDK.Port, want)
		}
		if err := valid(t, s, text); err != nil {
			t.Errorf("%q: schema: %v", text, err)
		}
	}
}

func TestReadDPDKPort(t *testing.T) {
	c, err := Decode("f.yaml", []byte(`
source:
  dpdk:
    port: "0000:3b:00.0"
    addresses: [10.0.0.2, fd00::2]
    lcores: [2, 3]
    mtu: 9000
    memory: 2GiB
    huge_pages: false
    mbufs: 65536
    eal: ["--log-level=8"]
`))
	must.OK(t, err)
	want := DPDK{
		Port: "0000:3b:00.0", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")},
		Queues: 2, LCores: []int{2, 3}, MTU: 9000, Memory: 2 << 30, Mbufs: 65536,
		EAL: []string{"--log-level=8"},
	}
	if !reflect.DeepEqual(*c.Source.DPDK, want) {
		t.Errorf("it reads\n%+v, want\n%+v", *c.Source.DPDK, want)
	}
	c, err = Decode("f.yaml", []byte("source: {dpdk: {port: net_ring0, addresses: [10.0.0.2]}}"))
	must.OK(t, err)
	least := DefaultDPDK()
	least.Port, least.Addresses = "net_ring0", want.Addresses[:1]
	if !reflect.DeepEqual(*c.Source.DPDK, least) {
		t.Errorf("it reads\n%+v, want the defaults\n%+v", *c.Source.DPDK, least)
	}
}

// The reference shows source.dpdk in a comment, because it is off by default. The comment must
// name the defaults.
func TestReferenceDPDKDefaults(t *testing.T) {
	text, err := os.ReadFile("reference.yaml")
	must.OK(t, err)
	_, rest, _ := strings.Cut(string(text), "\n# source:\n")
	block, _, _ := strings.Cut(rest, "\nhttp:")
	block = "source:\n" + strings.ReplaceAll("\n"+block, "\n# ", "\n")
	c, err := Decode("f.yaml", []byte(block))
	if err != nil {
		t.Fatalf("%v in\n%s", err, block)
	}
	if err := valid(t, schema(t), block); err != nil {
		t.Errorf("schema: %v", err)
	}
	want := DefaultDPDK()
	want.Port, want.Addresses = c.Source.DPDK.Port, c.Source.DPDK.Addresses
	if !reflect.DeepEqual(*c.Source.DPDK, want) {
		t.Errorf("reference.yaml says\n%+v, the defaults are\n%+v", *c.Source.DPDK, want)
	}
}

func TestDevice(t *testing.T) {
	s := schema(t)
	for text, want := range map[string]string{
		"log: {}":          "cpu",
		"device: cpu":      "cpu",
		"device: auto":     "auto",
		"device: cuda":     "cuda",
		"device: cuda:1":   "cuda:1",
		"device: GPU-1a2b": "GPU-1a2b",
		"device: GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0": "GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0",
	} {
		c, err := Decode("f.yaml", []byte(text))
		if err != nil {
			t.Error(err)
		}
		if c.Device != want {
			t.Errorf("%q: device is %q, want %q", text, c.Device, want)
		}
		if err := valid(t, s, text); err != nil {
			t.Errorf("%q: schema: %v", text, err)
		}
	}
}

func TestShareChange(t *testing.T) {
	for _, c := range []struct {
		change Change
		device string
		says   string // in the error; empty for no error
	}{
		{ChangeAuto, "cpu", ""},
		{ChangeShadow, "cpu", ""},
		{ChangeInPlace, "cpu", ""},
		{ChangeRestart, "cpu", ""},
		{ChangePartition, "cpu", "device: cuda"},
		{ChangeAuto, "cuda", ""},
		{ChangeShadow, "cuda", ""},
		{ChangePartition, "GPU-1a2b", ""},
		{ChangeRestart, "cuda:1", ""},
		{ChangeInPlace, "cuda:1", "want shadow"},
		{"", "cuda", ""},
		// The device that auto stands for is not known yet.
		{ChangePartition, "auto", ""},
		{ChangeInPlace, "auto", ""},
	} {
		cfg := Default()
		cfg.Functions = []Function{{Name: "a", Instances: 1}, {Name: "b", Instances: 1, Change: c.change}}
		cfg.Device = c.device
		err := cfg.Check()
		if c.says == "" {
			if err != nil {
				t.Errorf("%s on %s: %v", c.change, c.device, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "function b") {
			t.Errorf("%s on %s: error %v, want one about function b that says %q", c.change, c.device, err, c.says)
		}
		cfg.Shares.Change = c.change
		if err := cfg.Check(); err == nil || !strings.Contains(err.Error(), "shares.change") {
			t.Errorf("shares.change %s on %s: error %v, want one that names the key", c.change, c.device, err)
		}
	}
}

func TestInFlight(t *testing.T) {
	s := schema(t)
	for text, want := range map[string]int{"": 0, ", in_flight: auto": 0, ", in_flight: 1": 1, ", in_flight: 2": 2} {
		text = "{device: cuda, functions: [{name: a, port: 1" + text + "}]}"
		c, err := Decode("f.yaml", []byte(text))
		must.OK(t, err)
		if got := c.Functions[0].InFlight; got != want {
			t.Errorf("%q: %d in flight, want %d", text, got, want)
		}
		if err := valid(t, s, text); err != nil {
			t.Errorf("%q: schema: %v", text, err)
		}
	}
}

// A function has its own number of receivers, else the node's.
func TestReceivers(t *testing.T) {
	s := schema(t)
	for text, want := range map[string]int{
		"functions: [{name: a, port: 1}]":                                     1,
		"{receivers: 4, functions: [{name: a, port: 1}]}":                     4,
		"{receivers: 4, functions: [{name: a, port: 1, receivers: 16}]}":      16,
		"{receivers: 4, functions: [{name: a, port: 1, receivers: 1}]}":       1,
		"{slab: {size: 1MiB}, functions: [{name: a, port: 1, receivers: 4}]}": 4,
	} {
		c, err := Decode("f.yaml", []byte(text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := c.ReceiversOf(c.Functions[0]); got != want {
			t.Errorf("%q: %d receivers, want %d", text, got, want)
		}
		if err := valid(t, s, text); err != nil {
			t.Errorf("%q: schema: %v", text, err)
		}
	}
}

// Keys that penstock-lab sets with LabVariable are no part of the file.
func TestLabKeys(t *testing.T) {
	s := schema(t)
	for text, words := range map[string][]string{
		"batching: {fixed: 8, delay: 5ms}":                 {`unknown key "batching"`},
		"shares: {change: none}":                           {"shares.change", `is "none", want auto, shadow, partition or in-place`},
		"shares: {change: restart, tune: false}":           {"shares.change", `is "restart"`},
		"functions: [{name: a, port: 1, change: restart}]": {"functions[0].change", `is "restart"`},
		"functions: [{name: a, port: 1, gather: copy}]":    {`unknown key "gather"`},
	} {
		_, err := Decode("f.yaml", []byte(text))
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one line", text, err)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: error %q does not name %q", text, err, word)
			}
		}
		if valid(t, s, text) == nil {
			t.Errorf("schema accepts %q", text)
		}
	}
}

func TestWeights(t *testing.T) {
	s := schema(t)
	for text, want := range map[string]Weights{
		"{device: cuda, weights: private}":                                               WeightsPrivate,
		"{device: auto, weights: shared, functions: [{name: a, port: 1, in_flight: 2}]}": WeightsShared,
		"weights: private": WeightsPrivate,
		"{}":               WeightsShared,
	} {
		c, err := Decode("f.yaml", []byte(text))
		if err != nil {
			t.Error(err)
			continue
		}
		if c.Weights != want {
			t.Errorf("%q: weights are %s, want %s", text, c.Weights, want)
		}
		if err := valid(t, s, text); err != nil {
			t.Errorf("%q: schema: %v", text, err)
		}
	}
}

// A function that is added at run time does not come from a file.
func TestFunctionCheck(t *testing.T) {
	whole := Default()
	whole.Lab.Change = ChangeNone
	for _, c := range []struct {
		node   Config
		device string
		f      Function
		says   []string
	}{
		{whole, "cpu", Function{Name: "a", SharePercent: 30}, []string{"share_percent of function a", "30 %", LabVariable}},
		{whole, "cpu", Function{Name: "a", InFlight: 1, Weights: WeightsPrivate}, nil},
		{whole, "cuda", Function{Name: "a", InFlight: 2, Weights: WeightsShared}, nil},
		{whole, "cpu", Function{Name: "a", InFlight: 2}, []string{"in_flight of function a", "cpu"}},
		{whole, "cpu", Function{Name: "a", Weights: WeightsShared}, []string{"weights of function a", "cpu"}},
	} {
		c.node.Device = c.device
		err := c.f.Under(&c.node)
		if c.says == nil {
			if err != nil {
				t.Errorf("%+v: %v", c.f, err)
			}
			continue
		}
		for _, word := range c.says {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%+v: error %v does not name %q", c.f, err, word)
			}
		}
	}
	for word, f := range map[string]Function{"shared or private": {Weights: "mine"}, "partition or in-place": {Change: ChangeRestart}} {
		f.Name, f.Instances = "a", 1
		if err := f.Check(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("error %v, want one that says %q", err, word)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("functions: [{name: a, port: 1}]"))
	f.Add(builtIn)
	for text := range wrong {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Decode("f.yaml", data)
		if err != nil {
			return
		}
		for _, fn := range c.Functions {
			if fn.Name == "" || fn.Instances < 1 {
				t.Fatalf("accepted function %+v", fn)
			}
		}
	})
}

// A stream's file is relative to the configuration. An address stays unchanged and appears in no
// error.
func TestStreams(t *testing.T) {
	c, err := ReadText("/etc/penstock/node.yaml", []byte("streams:\n  - {name: clip, source: clip.mp4, to: [face]}\n"+
		"  - {name: door, source: 'rtsp://me:secret@door/main', to: [face, detect], hwaccel: vaapi}\n"))
	if err != nil || c.Streams[0].Source != "/etc/penstock/clip.mp4" || c.Streams[1].Source != "rtsp://me:secret@door/main" || len(c.Streams[1].To) != 2 {
		t.Errorf("%+v, %v", c.Streams, err)
	}
	for _, text := range []string{
		"streams: [{name: door, source: 'rtsp://me:secret@door/main'}]",
		"streams: [{name: door, source: 'rtsp://me:secret@door/main', to: []}]",
		"streams: [{name: door, source: ['rtsp://me:secret@door/main'], to: [face]}]",
		"streams: [{name: door, source: {url: 'rtsp://me:secret@door/main'}, to: [face]}]",
		"streams: [{name: Door!, source: 'rtsp://me:secret@door/main', to: [face]}]",
		"gateway: off\nstreams: [{name: door, source: 'rtsp://me:secret@door/main', to: [face]}]",
	} {
		if _, err := Decode("f.yaml", []byte(text)); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A configuration that every user may write is refused, by all commands: it may name programs.
func TestReadWritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.yaml")
	must.OK(t, errors.Join(os.WriteFile(file, []byte("functions: []\n"), 0o600), os.Chmod(file, 0o666)))
	if _, err := Read(file); !errors.Is(err, private.ErrNotPrivate) {
		t.Error(err)
	}
}
