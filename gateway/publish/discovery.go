package publish

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/wire"
)

// entity is a sensor of Home Assistant that an answer updates.
type entity struct {
	lane
	what entityKind
}

// entityKind is what an entity shows of an answer.
type entityKind string

const (
	entityFound entityKind = "found" // whether there is a box
	entityCount entityKind = "count" // how many boxes there are
	entityClass entityKind = "class" // the most probable class
	entityValue entityKind = "value" // the first output of a raw model
)

// entityForms are the forms of entities in Home Assistant (its page "MQTT", section discovery).
var entityForms = map[entityKind]struct {
	component, suffix, template string
	measured                    bool
}{
	entityFound: {"binary_sensor", "", "{{ 'ON' if value_json.found | default([]) | length > 0 else 'OFF' }}", false},
	entityCount: {"sensor", " count", "{{ value_json.found | default([]) | length }}", true},
	entityClass: {"sensor", "", "{% set top = value_json.found | default([{}]) | first %}{{ top.label | default(top.class | default('unknown')) }}", false},
	entityValue: {"sensor", "", "{{ value_json.get('values', value_json.get('tensors', [{'data': ['unknown']}])[0].data) | first }}", false},
}

// entities are those that an answer updates.
func entities(m message) []entity {
	switch m.kind {
	case wire.KindBoxes:
		return []entity{{m.lane, entityFound}, {m.lane, entityCount}}
	case wire.KindTopK:
		return []entity{{m.lane, entityClass}}
	case wire.KindRaw, wire.KindTensors:
		return []entity{{m.lane, entityValue}}
	}
	return nil
}

// discovery is a message of Home Assistant's MQTT discovery.
type discovery struct {
	Name         string `json:"name"`
	UniqueID     string `json:"unique_id"`
	StateTopic   string `json:"state_topic"`
	Template     string `json:"value_template"`
	Attributes   string `json:"json_attributes_topic,omitempty"`
	Availability string `json:"availability_topic"`
	// ExpireAfter is the time in seconds after which Home Assistant does not believe the state any
	// more.
	ExpireAfter int    `json:"expire_after,omitempty"`
	StateClass  string `json:"state_class,omitempty"`
	Device      struct {
		Identifiers  []string `json:"identifiers"`
		Name         string   `json:"name"`
		Manufacturer string   `json:"manufacturer"`
		Version      string   `json:"sw_version"`
	} `json:"device"`
	Origin struct {
		Name    string `json:"name"`
		Version string `json:"sw_version"`
	} `json:"origin"`
}

// expireMargin is the age at which an answer of a stream is too old to be believed, in addition to
// the interval of the answers.
const expireMargin = 30 * time.Second

// discover returns the message that makes Home Assistant show an entity. A stream is a device.
func (m *mqtt) discover(e entity) (topic string, payload []byte) {
	form := entityForms[e.what]
	id := m.spec.Topic + "/" + e.stream
	d := discovery{
		Name: e.function + form.suffix, UniqueID: "penstock/" + id + "/" + e.function + "/" + string(e.what),
		StateTopic: m.state(e.lane), Template: form.template, Availability: m.availability(),
	}
	if e.what == entityFound {
		d.Attributes = d.StateTopic
	}
	if form.measured {
		d.StateClass = "measurement"
	}
	if e.stream != configs.FromHTTP {
		d.ExpireAfter = int((expireMargin + 3*m.spec.Every) / time.Second)
	}
	d.Device.Identifiers, d.Device.Name = []string{"penstock/" + id}, e.stream
	d.Device.Manufacturer, d.Device.Version = "Penstock", m.version
	d.Origin.Name, d.Origin.Version = "Penstock", m.version

	payload, err := json.Marshal(d)
	if err != nil {
		panic(err) // it has only texts and numbers
	}
	node := strings.NewReplacer("/", "-", ".", "-").Replace(id)
	return strings.Join([]string{m.spec.Discovery, form.component, node, e.function + "-" + string(e.what), "config"}, "/"), payload
}
