package configs

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/models/document"
)

// Publish is a receiver of answers to which the gateway sends them.
type Publish struct {
	// Name in the log and in the gateway's answers.
	Name string `yaml:"name" required:"true" pattern:"^[a-z0-9][a-z0-9_-]{0,63}$" want:"lower case letters, digits, '-' and '_', at most 64" example:"home"`
	// mqtt: an MQTT 5 broker; webhook: HTTP requests with JSON; jsonl: a file with one JSON object per line; zeromq: a PUB
	// socket of ZeroMQ.
	Kind PublishKind `yaml:"kind" required:"true" oneof:"mqtt|webhook|jsonl|zeromq" example:"mqtt"`
	// For mqtt the broker, mqtt://USER:PASSWORD@HOST or mqtts://..., for webhook the http or https address. For zeromq
	// where subscribers connect: ipc:///PATH, or tcp://127.0.0.1:PORT.
	Address string `yaml:"address,omitempty" want:"an address like mqtt://broker.local or https://host/path" example:"mqtt://broker.local"`
	// For webhook: a file with a token, relative to the configuration. Requests have it as "Authorization: Bearer TOKEN".
	TokenFile string `yaml:"token_file,omitempty" want:"a file" example:"/etc/penstock/alarm.token"`
	// For webhook: off sends the token, or the user of the address, in clear text to an http address of another machine.
	TLS string `yaml:"tls,omitempty" oneof:"off" example:"off"`
	// For mqtt: answers go to TOPIC/STREAM/FUNCTION. Each node needs its own topic.
	Topic string `yaml:"topic,omitempty" pattern:"^[A-Za-z0-9_.-]{1,64}(/[A-Za-z0-9_.-]{1,64}){0,7}$" want:"a topic without wildcards, like penstock" example:"penstock"`
	// For mqtt: the prefix of Home Assistant's discovery topics; off: none.
	Discovery string `yaml:"discovery,omitempty" default:"homeassistant" zero:"off" pattern:"^[A-Za-z0-9_-]{1,64}$" want:"a prefix of topics, like homeassistant"`
	// For jsonl: the file, relative to the configuration; - is the standard output of the node.
	File string `yaml:"file,omitempty" want:"a file, or -" example:"answers.jsonl"`
	// Streams whose answers are published; http stands for HTTP inference. All if left out.
	From []string `yaml:"from,omitempty" maxItems:"65" unique:"true" pattern:"^[a-z0-9][a-z0-9_-]{0,63}$" want:"the name of a stream, or http" example:"[door]"`
	// Functions whose answers are published. All if left out.
	Functions []string `yaml:"functions,omitempty" maxItems:"256" unique:"true" pattern:"^[a-z0-9][a-z0-9_-]{0,63}$" want:"the name of a function" example:"[face]"`
	// Per stream and function at most one answer in this time, and in addition each answer that finds
	// something else than the one before. 0s: all answers. HTTP inference is always published.
	Every time.Duration `yaml:"every" default:"1s" min:"0s" max:"24h"`
	// For mqtt, webhook and zeromq: how long the receiver may take for one answer.
	Timeout time.Duration `yaml:"timeout" default:"5s" min:"100ms" max:"1m"`
}

// PublishKind is how a receiver gets answers.
type PublishKind string

// The values of Publish.Kind.
const (
	PublishMQTT    PublishKind = "mqtt"
	PublishWebhook PublishKind = "webhook"
	PublishJSONL   PublishKind = "jsonl"
	PublishZeroMQ  PublishKind = "zeromq"
)

// FromHTTP names HTTP inference among the streams of Publish.From.
const FromHTTP = "http"

// publishKeys are the keys that belong to some kinds only, and whether these kinds need them.
var publishKeys = []struct {
	key      string
	kinds    []PublishKind
	required bool
	example  map[PublishKind]string
}{
	{"address", []PublishKind{PublishMQTT, PublishWebhook, PublishZeroMQ}, true, map[PublishKind]string{
		PublishMQTT: "mqtt://broker.local", PublishWebhook: "https://host/path", PublishZeroMQ: "tcp://127.0.0.1:5556",
	}},
	{"token_file", []PublishKind{PublishWebhook}, false, nil},
	{"tls", []PublishKind{PublishWebhook}, false, nil},
	{"topic", []PublishKind{PublishMQTT}, true, map[PublishKind]string{PublishMQTT: "penstock"}},
	{"file", []PublishKind{PublishJSONL}, true, map[PublishKind]string{PublishJSONL: "answers.jsonl"}},
	{"discovery", []PublishKind{PublishMQTT}, false, nil},
	{"timeout", []PublishKind{PublishMQTT, PublishWebhook, PublishZeroMQ}, false, nil},
}

// publishSchemes are the schemes of a kind's address.
var publishSchemes = map[PublishKind][]string{
	PublishMQTT:    {"mqtt", "mqtts"},
	PublishWebhook: {"http", "https"},
}

// checkPublish finds faults of receivers that the rules of the single keys do not cover. Errors never
// contain an address, because it may contain a password.
func (c *Config) checkPublish(root document.Value) {
	if c.Gateway.Off && len(c.Publish) > 0 {
		root.Find("publish").Reject("runs in the gateway, which is off; want `gateway: off` or publish left out")
	}

	streams := map[string]bool{FromHTTP: true}
	for i, s := range c.Streams {
		streams[s.Name] = true
		if s.Name == FromHTTP && len(c.Publish) > 0 {
			root.Find("streams", i, "name").Reject("is %q, which stands for HTTP inference under publish; want another name", s.Name)
		}
	}

	names := map[string]bool{}
	for i := range c.Publish {
		p, at := &c.Publish[i], root.Find("publish", i)
		if p.Name != "" && names[p.Name] {
			at.Find("name").Reject("is %q, which another receiver has", p.Name)
		}
		names[p.Name] = true
		for j, from := range p.From {
			if from != "" && !streams[from] {
				at.Find("from", j).Reject("is %q, which no stream has; want the name of a stream, or http", from)
			}
		}
		p.checkKind(at)
	}
}

// checkKind checks that a receiver has the keys of its kind.
func (p *Publish) checkKind(at document.Value) {
	if p.Kind == "" {
		return // already reported
	}
	for _, k := range publishKeys {
		switch own := slices.Contains(k.kinds, p.Kind); {
		case own && k.required && !at.Has(k.key):
			at.Find(k.key).Reject("is missing, and kind is %s; want a value like %s", p.Kind, k.example[p.Kind])
		case !own && at.Has(k.key):
			at.Find(k.key).Reject("is for %s, and kind is %s; delete the key", document.OrList(k.kinds), p.Kind)
		}
	}
	if p.Kind == PublishZeroMQ {
		checkZeroMQ(p.Address, at)
	}
	if schemes := publishSchemes[p.Kind]; p.Address != "" && schemes != nil {
		if err := checkReceiver(p.Address, schemes); err != nil {
			at.Find("address").Reject("%v", err)
		} else if u, _ := url.Parse(p.Address); p.Kind == PublishWebhook {
			p.checkWebhook(at, u)
		}
	}
}

// checkWebhook checks how requests to a webhook are authorized.
func (p *Publish) checkWebhook(at document.Value, u *url.URL) {
	switch {
	case u.User != nil && at.Has("token_file"):
		at.Find("token_file").Reject("is set, and the address has a user; a request has one authorization: delete one of them")
	case (u.User != nil || at.Has("token_file")) && u.Scheme == "http" && !isLoopback(u.Hostname()) && p.TLS == "":
		at.Find("address").Reject("is an http address, to which the token or the user's password would cross the network in clear text; " +
			"want https, or `tls: off` on a network that you trust")
	}
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// checkReceiver checks an address. The error does not contain it.
func checkReceiver(address string, schemes []string) error {
	want := fmt.Sprintf("%s://HOST, perhaps with a port", schemes[0])
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return fmt.Errorf("is no address, want %s; in user and password write %%, @, : and / as %%25, %%40, %%3A and %%2F", want)
	case !slices.Contains(schemes, u.Scheme):
		return fmt.Errorf("does not begin with %s, want %s", strings.Join(schemes, ":// or ")+"://", want)
	case u.Hostname() == "":
		return fmt.Errorf("names no host, want %s", want)
	case schemes[0] == "mqtt" && (strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != ""):
		return errors.New("has a path, and MQTT has none; want only host and port, and the key topic")
	}
	return nil
}
