package configs

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestPublish(t *testing.T) {
	c, err := ReadText("/etc/penstock/node.yaml", []byte("streams: [{name: door, source: 'rtsp://door/main', to: [face]}]\n"+
		"publish:\n"+
		"  - {name: home, kind: mqtt, address: 'mqtt://me:secret@broker', topic: penstock/hall, from: [door, http]}\n"+
		"  - {name: quiet, kind: mqtt, address: 'mqtts://broker:8884', topic: penstock, discovery: off, every: 1m}\n"+
		"  - {name: hook, kind: webhook, address: 'https://example.com/hook?key=1', token_file: hook.token, functions: [face], timeout: 1s}\n"+
		"  - {name: log, kind: jsonl, file: answers.jsonl, every: 0s}\n"+
		"  - {name: out, kind: jsonl, file: '-'}\n"))
	must.OK(t, err)
	home, quiet, hook, log, out := c.Publish[0], c.Publish[1], c.Publish[2], c.Publish[3], c.Publish[4]
	if home.Discovery != "homeassistant" || home.Every != time.Second || home.Timeout != 5*time.Second || len(home.From) != 2 {
		t.Errorf("%+v", home)
	}
	if quiet.Discovery != "" || quiet.Every != time.Minute || hook.Timeout != time.Second || log.Every != 0 {
		t.Errorf("%+v\n%+v\n%+v", quiet, hook, log)
	}
	if hook.TokenFile != "/etc/penstock/hook.token" || home.TokenFile != "" {
		t.Errorf("token files %q, %q", hook.TokenFile, home.TokenFile)
	}
	if log.File != "/etc/penstock/answers.jsonl" || out.File != "-" {
		t.Errorf("%+v\n%+v", log, out)
	}
}

// Each fault is reported at its place, and no error contains an address.
func TestPublishErrors(t *testing.T) {
	const mqtt, webhook = "name: a, kind: mqtt, topic: t, address: ", "name: a, kind: webhook, address: "
	for receiver, want := range map[string]string{
		"name: a, kind: kafka": `1:27: publish[0].kind: is "kafka", want mqtt, webhook, jsonl or zeromq`,
		"name: a":              "publish[0].kind: is missing, want mqtt, webhook, jsonl or zeromq",
		"kind: jsonl, file: a": "publish[0].name: is missing",
		"name: a, kind: mqtt, address: 'mqtt://me:secret@b'":             "publish[0].topic: is missing, and kind is mqtt; want a value like penstock",
		"name: a, kind: mqtt, topic: t":                                  "publish[0].address: is missing, and kind is mqtt; want a value like mqtt://broker.local",
		"name: a, kind: webhook":                                         "publish[0].address: is missing, and kind is webhook; want a value like https://host/path",
		"name: a, kind: zeromq":                                          "publish[0].address: is missing, and kind is zeromq; want a value like tcp://127.0.0.1:5556",
		"name: a, kind: zeromq, address: 'tcp://192.0.2.7:5556'":         `publish[0].address: is "tcp://192.0.2.7:5556", want ipc:///PATH`,
		"name: a, kind: zeromq, address: 'ipc://answers'":                `publish[0].address: is "ipc://answers", want ipc:///PATH`,
		"name: a, kind: jsonl":                                           "publish[0].file: is missing, and kind is jsonl; want a value like answers.jsonl",
		"name: a, kind: jsonl, file: f, topic: t":                        "publish[0].topic: is for mqtt, and kind is jsonl; delete the key",
		"name: a, kind: jsonl, file: f, timeout: 1s":                     "publish[0].timeout: is for mqtt, webhook or zeromq, and kind is jsonl",
		webhook + "'https://me:secret@h/', discovery: off":               "publish[0].discovery: is for mqtt, and kind is webhook",
		webhook + "'https://h/secret', file: f":                          "publish[0].file: is for jsonl, and kind is webhook",
		webhook + "'https://me:secret@h/', token_file: t":                "publish[0].token_file: is set, and the address has a user",
		mqtt + "'mqtt://me:secret@h/', token_file: t":                    "publish[0].token_file: is for webhook, and kind is mqtt; delete the key",
		webhook + "'http://h/', token_file: t":                           "publish[0].address: is an http address, to which the token",
		webhook + "'http://me:secret@192.0.2.7:80/'":                     "publish[0].address: is an http address, to which the token",
		webhook + "'https://h/', tls: on":                                "publish[0].tls: ",
		"name: a, kind: jsonl, file: f, tls: off":                        "publish[0].tls: is for webhook, and kind is jsonl",
		webhook + "'ftp://me:secret@h/'":                                 "publish[0].address: does not begin with http:// or https://, want http://HOST",
		webhook + "'http:///secret'":                                     "publish[0].address: names no host",
		webhook + "'http://me:se%cret@h/'":                               "publish[0].address: is no address, want http://HOST",
		mqtt + "'https://me:secret@h'":                                   "publish[0].address: does not begin with mqtt:// or mqtts://",
		mqtt + "'me:secret@broker'":                                      "publish[0].address: does not begin with mqtt://",
		mqtt + "'mqtt://me:sec/ret@broker'":                              "publish[0].address: is no address",
		mqtt + "'mqtt://broker/secret'":                                  "publish[0].address: has a path, and MQTT has none",
		mqtt + "['mqtt://me:secret@broker']":                             "publish[0].address: is a list of 1",
		"name: a, kind: mqtt, topic: 'a/#', address: 'mqtt://b'":         `publish[0].topic: is "a/#", want a topic without wildcards`,
		"name: a, kind: jsonl, file: f, from: [door]":                    `publish[0].from[0]: is "door", which no stream has`,
		"name: a, kind: jsonl, file: f, every: 2":                        "publish[0].every: is 2, want a duration",
		"name: a, kind: jsonl, file: f}, {name: a, kind: jsonl, file: g": `publish[1].name: is "a", which another receiver has`,
	} {
		_, err := Decode("f.yaml", []byte("publish: [{"+receiver+"}]"))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "f.yaml:1:") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got\n%v, want\n%s", receiver, err, want)
		}
	}

	for text, want := range map[string]string{
		"gateway: off\nzeromq: [{address: 'tcp://127.0.0.1:1'}]":                                                            "f.yaml:2:9: zeromq: runs in the gateway, which is off",
		"zeromq: [{address: 'tcp://0.0.0.0:5555', frigate: face}]":                                                          `f.yaml:1:20: zeromq[0].address: is "tcp://0.0.0.0:5555", want ipc:///PATH of at most 107 bytes, or tcp://127.0.0.1:PORT`,
		"zeromq: [{address: 'tcp://[::1]:1', frigate: A}]":                                                                  `zeromq[0].frigate: is "A", want the name of a function`,
		"zeromq: [{frigate: face}]":                                                                                         "zeromq[0].address: is missing",
		"gateway: off\npublish: [{name: a, kind: jsonl, file: f}]":                                                          "f.yaml:2:10: publish: runs in the gateway, which is off",
		"streams: [{name: http, source: 'rtsp://x', to: [face]}]\npublish: [{name: a, kind: jsonl, file: f, from: [http]}]": `f.yaml:1:18: streams[0].name: is "http"`,
	} {
		if _, err := Decode("f.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got\n%v, want\n%s", text, err, want)
		}
	}
}

// The configurations on the page are valid.
func TestPublishPage(t *testing.T) {
	page, err := os.ReadFile("../docs/publish.md")
	must.OK(t, err)
	n := 0
	for _, block := range strings.Split(string(page), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		if !strings.Contains(text, "publish:") {
			continue
		}
		n++
		if _, err := Decode("publish.md", []byte(text)); err != nil {
			t.Error(err)
		}
	}
	if n != 3 {
		t.Errorf("the page has %d configurations, want 3", n)
	}
}
