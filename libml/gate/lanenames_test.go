package gate

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/models/document"
)

// The configuration knows the policies of lanes, and has the same default.
func TestLanePolicyNames(t *testing.T) {
	tag := document.KeyOf[configs.Worker]("policy").Tag
	names := strings.Split(tag.Get("oneof"), "|")
	want := slices.Sorted(slices.Values(lane.Names()))
	if got := slices.Sorted(slices.Values(names)); !slices.Equal(got, want) {
		t.Errorf("the key takes %v, and the policies are %v", got, want)
	}
	if got := tag.Get("default"); got != lane.EDF {
		t.Errorf("the default is %s, want %s", got, lane.EDF)
	}
}
