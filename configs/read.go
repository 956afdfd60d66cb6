package configs

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/private"
)

// builtIn is the configuration without a file: three real models on ports 5001 to 5003.
//
//go:embed demo.yaml
var builtIn []byte

// BuiltIn returns a copy of the text of the built-in configuration.
func BuiltIn() []byte { return bytes.Clone(builtIn) }

// minReceiverBytes is the min size of one receiver's part of a slab.
const minReceiverBytes = 256 << 10

// Read reads the configuration in file, or the built-in one if file is empty. The error lists all
// faults, one line each: file, line, column, field, and a valid value.
func Read(file string) (Config, error) {
	if file == "" {
		return Decode("built-in configuration", builtIn)
	}
	path, err := filepath.Abs(file)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	data, err := private.ReadFile(path, document.MaxBytes)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	return ReadText(path, data)
}

// ReadText is Read of a file whose content is text: errors name file, and relative paths start
// at its folder.
func ReadText(file string, text []byte) (Config, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	c, err := Decode(path, text)
	if err != nil {
		return Config{}, err
	}
	c.File = path
	c.resolve(filepath.Dir(path))
	return c, nil
}

// resolve lets the relative paths start at a folder.
func (c *Config) resolve(folder string) {
	for i := range c.Models {
		resolve(&c.Models[i], folder)
	}
	for _, file := range []*string{&c.ModelSums, &c.Plan.Profiles, &c.Plan.Services, &c.Gateway.Keys, &c.Gateway.TLS.Certificate, &c.Gateway.TLS.Key} {
		resolve(file, folder)
	}
	for i := range c.Streams {
		if s := &c.Streams[i]; s.isFile() {
			resolve(&s.Source, folder)
		}
	}
	for i := range c.Publish {
		p := &c.Publish[i]
		resolve(&p.TokenFile, folder)
		if p.File != "-" {
			resolve(&p.File, folder)
		}
	}
	for i := range c.Functions {
		f := &c.Functions[i]
		// A model with a slash is the file of a card; without one it is a card's name.
		if strings.Contains(f.Model, "/") {
			resolve(&f.Model, folder)
		}
		resolve(&f.Key, folder)
	}
}

// resolve lets a relative path start at a folder. An empty path stays empty.
func resolve(path *string, folder string) {
	if *path != "" && !filepath.IsAbs(*path) {
		*path = filepath.Join(folder, *path)
	}
}

// Decode is Read for bytes that the caller has read from file. Relative paths stay unchanged.
func Decode(file string, data []byte) (Config, error) {
	doc, err := document.Parse(file, data)
	if err != nil {
		return Config{}, err
	}
	c := Default()
	digest := sha256.Sum256(data)
	c.Text, c.Digest = bytes.Clone(data), hex.EncodeToString(digest[:])
	c.decode(doc.Root())
	if err := doc.Err(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (c *Config) decode(root document.Value) {
	root.Decode(c)
	c.checkDevices(root)
	reject := func(err error, path ...any) {
		if err != nil {
			root.Find(path...).Reject("%v", err)
		}
	}
	c.checkTrusted(root.Find("trusted"))
	c.Source.check(root)
	c.Gateway.check(root)
	c.checkStreams(root)
	c.checkPublish(root)
	c.checkZeroMQ(root)
	c.checkWorkers(root)
	reject(anyOf(c.DeviceNames(), c.Shares.Change.On), "shares", "change")
	if root.Has("weights") && root.Peek("weights") == string(c.Weights) { // else it is wrong already
		reject(anyOf(c.DeviceNames(), c.Weights.On), "weights")
	}
	if root.Has("receivers") {
		reject(c.receive(c.Receivers), "receivers")
	}

	names, ports := map[string]bool{}, map[uint16]string{}
	for i := range c.Functions {
		f, at := &c.Functions[i], root.Find("functions", i)
		if f.Name != "" && names[f.Name] {
			at.Find("name").Reject("is %q, which another function has", f.Name)
		}
		if other, taken := ports[f.Port]; taken && f.Port != 0 {
			at.Find("port").Reject("is %d, which function %q has", f.Port, other)
		}
		names[f.Name], ports[f.Port] = true, f.Name
		for _, conflict := range f.conflicts(c) {
			at.Find(conflict.key).Reject("%v", conflict.err)
		}
		c.checkShare(at, i)
	}
}

// checkShare checks that a function's share fits together with those of the functions before it.
func (c *Config) checkShare(at document.Value, i int) {
	f := &c.Functions[i]
	err := c.FitNode(f, c.Functions[:i])
	if err == nil {
		return
	}
	need := "name"
	for _, key := range []string{"instances", "share_percent"} {
		if at.Has(key) {
			need = key
		}
	}
	at.Find(need).Reject("%v", err)
	f.SharePercent, f.Instances = 0, 0 // report one sum once
}

func (c *Config) checkTrusted(v document.Value) {
	for i, prefix := range c.Trusted {
		if prefix != prefix.Masked() {
			v.Find(i).Reject("is %q, want the network's first address: %s", prefix, prefix.Masked())
		}
	}
}

// Check returns an error for the first invalid value of a function that does not come from a file.
func (f *Function) Check() error {
	if p := document.Check(f); p != nil {
		return fmt.Errorf("%s of %s %s", p.Field, f.Name, p.Text)
	}
	if err := f.checkAnswersTo(); err != nil {
		return fmt.Errorf("answers_to of %s %w", f.Name, err)
	}
	return nil
}

// Check returns an error if keys do not suit the devices. For a file, Read reports it better, but before Resolve.
func (c *Config) Check() error {
	if err := anyOf(c.DeviceNames(), c.Shares.Change.On); err != nil {
		return fmt.Errorf("shares.change %w", err)
	}
	for i := range c.Workers {
		if err := anyOf(c.DeviceNames(), c.Workers[i].hostMemoryOn); err != nil {
			return fmt.Errorf("host_memory of worker %s %w", c.Workers[i].Name, err)
		}
	}
	for i := range c.Functions {
		if err := c.Functions[i].Under(c); err != nil {
			return err
		}
	}
	return nil
}

// Under returns an error if a key of a function conflicts with the configuration, or with each device that
// the function may use.
func (f *Function) Under(c *Config) error {
	for _, conflict := range f.conflicts(c) {
		return fmt.Errorf("%s of function %s %w", conflict.key, f.Name, conflict.err)
	}
	return nil
}

// conflict is a key of a function whose value conflicts with the rest of a configuration.
type conflict struct {
	key string
	err error
}

func (f *Function) conflicts(c *Config) []conflict {
	devices := c.DevicesOf(f)
	all := []conflict{
		{"devices", f.checkDevices(c)},
		{"change", anyOf(devices, f.Change.On)},
		{"share_percent", f.shareUnder(c)},
		{"weights", anyOf(devices, f.Weights.On)},
		{"receivers", c.receive(f.Receivers)},
		{"in_flight", anyOf(devices, func(d string) error { return inFlightOn(f.InFlight, d) })},
		{"answers_to", f.checkAnswersTo()},
		{"colours", f.checkColours()},
		{"key", f.checkKey()},
		{"allowed", f.checkAllowed()},
		{"worker", f.workerUnder(c)},
	}
	all = append(all, f.ownProcessKeys()...)
	return slices.DeleteFunc(all, func(c conflict) bool { return c.err == nil })
}

func (f *Function) shareUnder(c *Config) error {
	if f.SharePercent > 0 && c.ChangeOf(*f) == ChangeNone && !c.Guarantees() {
		return fmt.Errorf("is %v %%, and %s has no shares; delete the key", f.SharePercent, LabVariable)
	}
	return nil
}

// receive returns an error if a function with network traffic cannot have n receivers. 0 stands for
// the node's number.
func (c *Config) receive(n int) error {
	switch {
	case n == 0:
		return nil
	case c.Source.DPDK != nil:
		return fmt.Errorf("is %d, the number of kernel sockets, and source is dpdk; want source.dpdk.queues", n)
	case n > 1 && c.Slab.Size/Size(n) < minReceiverBytes:
		return fmt.Errorf("is %d, and slab.size of %d bytes is less than 256KiB for each; want a larger slab, or fewer receivers", n, c.Slab.Size)
	}
	return nil
}

// ReceiversOf is the number of receivers of a function that kernel sockets feed.
func (c *Config) ReceiversOf(f Function) int { return max(1, cmp.Or(f.Receivers, c.Receivers)) }

// ChangeOf is how a function's share changes under this configuration.
func (c *Config) ChangeOf(f Function) Change {
	if c.Guarantees() {
		return ChangeNone
	}
	return cmp.Or(c.Lab.Change, f.Change, c.Shares.Change)
}

// Guarantees reports whether functions have guarantees of the device's time instead of shares.
func (c *Config) Guarantees() bool {
	return c.Lab.Change == "" && c.Shares.Policy == PolicyGuarantee
}

// Unused returns the keys that are set but belong to another shares.policy, and says so.
func (c *Config) Unused() (keys []string, why string) {
	if c.Shares.Policy == PolicyGSLICE {
		for i := range c.Functions {
			if c.Functions[i].Priority > 0 {
				keys = append(keys, "priority of "+c.Functions[i].Name)
			}
		}
		return keys, PriorityUnused
	}
	if !c.Guarantees() {
		return nil, ""
	}
	if c.Shares.Change != ChangeAuto {
		keys = append(keys, "shares.change")
	}
	if !c.Shares.Tune {
		keys = append(keys, "shares.tune")
	}
	if c.Shares.SpreadSlack {
		keys = append(keys, "shares.spread_slack")
	}
	for i := range c.Functions {
		if c.Functions[i].Change != "" {
			keys = append(keys, "change of "+c.Functions[i].Name)
		}
	}
	return keys, "no effect without `shares: {policy: gslice}`"
}

// PriorityUnused says why the priority of a function is not used.
const PriorityUnused = "no effect with `shares: {policy: gslice}`"
