package document

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

type bytesKey int64

func (bytesKey) Want() string { return "a size" }

func (b *bytesKey) UnmarshalText(text []byte) error {
	n := len(strings.TrimSuffix(string(text), "k")) // "111k" is 3: enough for a test
	*b = bytesKey(n)
	return nil
}

type inner struct {
	N     int           `yaml:"n" default:"3" min:"1" max:"9"`
	Pause time.Duration `yaml:"pause" default:"5ms" min:"1ms" max:"1h"`
}

type worded struct {
	Off  bool
	User string `yaml:"user"`
}

func (*worded) Words() []string  { return []string{"off"} }
func (w *worded) SetWord(string) { w.Off = true }

type keys struct {
	Name    string            `yaml:"name" required:"true" pattern:"^[a-z]+$" want:"lower case letters"`
	Port    uint16            `yaml:"port" max:"65535" min:"0"`
	Share   float64           `yaml:"share" default:"2.5" min:"0" max:"100"`
	On      bool              `yaml:"on" default:"true"`
	Level   string            `yaml:"level" default:"low" oneof:"low|high"`
	Bytes   bytesKey          `yaml:"bytes" default:"11k" min:"1" max:"333"`
	Addr    netip.Addr        `yaml:"addr" want:"an IP address"`
	Inner   inner             `yaml:"inner"`
	Later   inner             `yaml:"later,omitempty"`
	Pointer *inner            `yaml:"pointer"`
	Worded  worded            `yaml:"worded" want:"off, or {user: NAME}"`
	CPUs    []int             `yaml:"cpus" minItems:"1" maxItems:"3" unique:"true" min:"0" max:"7"`
	List    []inner           `yaml:"list" want:"{n: 1}"`
	Env     map[string]string `yaml:"env"`
	Auto    int               `yaml:"auto,omitempty" zero:"auto" min:"1" max:"2"`
	Steps   int               `yaml:"steps" default:"auto" zero:"auto" oneof:"64|128" want:"a power of two"`
	Ignored int
}

func TestDecode(t *testing.T) {
	standard := keys{Share: 2.5, On: true, Level: "low", Bytes: 2, Inner: inner{3, 5 * time.Millisecond}}
	for text, edit := range map[string]func(k *keys){
		"name: a":                       func(k *keys) {},
		"{name: a, on: false, port: 9}": func(k *keys) { k.On, k.Port = false, 9 },
		"{name: a, auto: auto}":         func(k *keys) {},
		"{name: a, auto: 2}":            func(k *keys) { k.Auto = 2 },
		"{name: a, steps: auto}":        func(k *keys) {},
		"{name: a, steps: 128}":         func(k *keys) { k.Steps = 128 },
		"{name: a, share: 7}":           func(k *keys) { k.Share = 7 },
		"{name: a, level: high}":        func(k *keys) { k.Level = "high" },
		"{name: a, bytes: 111}":         func(k *keys) { k.Bytes = 3 },
		"{name: a, inner: {n: 4}}":      func(k *keys) { k.Inner.N = 4 },
		"{name: a, inner: }":            func(k *keys) {},
		"{name: a, later: {n: 4}}":      func(k *keys) { k.Later = inner{4, 5 * time.Millisecond} },
		"{name: a, pointer: {n: 4}}":    func(k *keys) { k.Pointer = &inner{4, 5 * time.Millisecond} },
		"{name: a, worded: 'off'}":      func(k *keys) { k.Worded.Off = true },
		"{name: a, worded: {user: u}}":  func(k *keys) { k.Worded.User = "u" },
		"{name: a, cpus: [1, 2]}":       func(k *keys) { k.CPUs = []int{1, 2} },
		"{name: a, list: [{n: 4}]}":     func(k *keys) { k.List = []inner{{4, 5 * time.Millisecond}} },
		"{name: a, env: {A: b}}":        func(k *keys) { k.Env = map[string]string{"A": "b"} },
		"{name: a, addr: '::1'}":        func(k *keys) { k.Addr = netip.IPv6Loopback() },
	} {
		var got keys
		SetDefaults(&got)
		d := parsed(t, text)
		d.Root().Decode(&got)
		if err := d.Err(); err != nil {
			t.Error(err)
		}
		want := standard
		want.Name = "a"
		edit(&want)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got\n%+v, want\n%+v", text, got, want)
		}
	}
}

func TestDecodeErrors(t *testing.T) {
	for text, want := range map[string]string{
		"{}":                      `1:1: name: is missing, want lower case letters`,
		"name: 5":                 `1:7: name: is 5, want lower case letters`,
		"name: Up":                `1:7: name: is "Up", want lower case letters`,
		"nmae: a":                 `1:1: unknown key "nmae", did you mean "name"?`,
		"port: 65536":             `1:7: port: is 65536, want an integer from 0 to 65535`,
		"port: -1":                `1:7: port: is -1, want an integer from 0 to 65535`,
		"port: 1.5":               `1:7: port: is 1.5, want an integer from 0 to 65535`,
		"port: [1]":               `1:7: port: is a list of 1, want an integer from 0 to 65535`,
		"share: .nan":             `1:8: share: is .nan, want a number from 0 to 100`,
		"share: 101":              `1:8: share: is 101, want a number from 0 to 100`,
		"on: 1":                   `1:5: on: is 1, want true or false`,
		"level: hihg":             `1:8: level: is "hihg", want low or high, did you mean "high"?`,
		"bytes: 1.5":              `1:8: bytes: is 1.5, want a size from 1 to 333`,
		"addr: 5":                 `1:7: addr: is 5, want an IP address`,
		"addr: ''":                `1:7: addr: is "", want an IP address`,
		"inner: 5":                `1:8: inner: is 5, want a map of n, pause`,
		"inner: {pause: 5}":       `1:16: inner.pause: is 5, want a duration with its unit from 1ms to 1h, like 25ms`,
		"worded: none":            `1:9: worded: is "none", want off, or {user: NAME}`,
		"worded: {user: 1}":       `1:16: worded.user: is 1, want a text; put it in quotes`,
		"cpus: []":                `1:7: cpus: has 0 elements, want 1 to 3`,
		"cpus: [1, 2, 3, 4]":      `1:7: cpus: has 4 elements, want 1 to 3`,
		"cpus: 1":                 `1:7: cpus: is 1, want a list, each element an integer from 0 to 7`,
		"cpus: [1, ~]":            `1:11: cpus[1]: is missing, want an integer from 0 to 7`,
		"cpus: [1, 8]":            `1:11: cpus[1]: is 8, want an integer from 0 to 7`,
		"cpus: [1, 1]":            `1:11: cpus[1]: is 1, which the list already has`,
		"list: [{n: 0}]":          `1:12: list[0].n: is 0, want an integer from 1 to 9`,
		"auto: 0":                 `1:7: auto: is 0, want auto, or an integer from 1 to 2`,
		"env: [a]":                `1:6: env: is a list of 1, want a map of names to values, each a text; put it in quotes`,
		"env: {A: 1}":             `1:10: env.A: is 1, want a text; put it in quotes`,
		"env: {1: a}":             `1:7: env: key 1 is not a plain word`,
		"port: 99999999999999999": `1:7: port: is 99999999999999999, want an integer from 0 to 65535`,
	} {
		if text != "{}" && !strings.HasPrefix(text, "n") {
			text += "\nname: a"
		}
		d := parsed(t, text)
		var got, before keys
		SetDefaults(&got)
		SetDefaults(&before)
		d.Root().Decode(&got)
		if err := d.Err(); err == nil || err.Error() != "f.yaml:"+want {
			t.Errorf("%s: got\n%v, want\n%s", text, err, want)
		}
		if got.Port != before.Port || got.Share != before.Share || got.Level != before.Level {
			t.Errorf("%s: a wrong value was taken: %+v", text, got)
		}
	}
}
