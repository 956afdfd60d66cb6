package fleet

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
)

// refused checks that an error contains all words.
func refused(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("it was accepted, want an error that names %q", words)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not name %q", err, word)
		}
	}
}

func (b *nodeBed) rolledBack(name string) {
	b.t.Helper()
	end, err := b.rollback(name)
	must.OK(b.t, err)
	b.replacementEnds(end)
}

func TestReplace(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor")
	for _, name := range []string{"older", "a", "newer"} { // in the order of their versions
		b.find(name)
	}
	must.OK(t, b.add(named("a", 20)))
	b.turns()

	for _, model := range []string{"older", "a"} {
		_, err := b.replace("a", model)
		refused(t, err, model+" has version", "runs version 2", "higher", "penstock if rollback a")
	}
	b.replaced("a", "newer")
	if f := b.status("a"); f.Model != "newer" || f.Version != 3 {
		t.Errorf("a runs %s v%d, want newer v3", f.Model, f.Version)
	}
}

func TestLoad(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor")
	for _, name := range []string{"older", "a", "newer"} { // in the order of their versions
		b.find(name)
	}
	load := func(model string) <-chan error {
		t.Helper()
		end, err := endOf(b.Load(control.LoadOrder{Name: "a", Model: model}))
		must.OK(t, err)
		return end
	}
	added := load("")
	b.turns()
	must.OK(t, <-added)

	for _, model := range []string{"", "a"} {
		if load(model) != nil {
			t.Error("a model that serves is loaded again")
		}
	}
	for _, model := range []string{"older", "newer"} { // a folder's newest version may be removed
		b.replacementEnds(load(model))
		if f := b.status("a"); f.Model != model {
			t.Errorf("a runs %s, want %s", f.Model, model)
		}
	}
}

func TestReplaceBeforeAnyServed(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor")
	b.find("older")
	must.OK(t, b.add(named("a", 20)))
	b.replaced("a", "older") // clients have not seen a version of it
	_, err := b.rollback("a")
	refused(t, err, "no model before older v1", "penstock if replace a CARD")
}

func TestRollback(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor", named("a", 20))
	b.turns()
	_, err := b.rollback("a")
	refused(t, err, "no model before a v1")

	b.replaced("a", "second")
	b.replaced("a", "third")
	for _, want := range []string{"second", "a"} {
		b.rolledBack("a")
		if f := b.status("a"); f.Model != want {
			t.Errorf("it runs %s, want %s", f.Model, want)
		}
	}
	_, err = b.rollback("a") // it does not go forward again
	refused(t, err, "no model before a v1", "penstock if replace a CARD")
}

func TestShareSumAtRunTime(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor", named("a", 60))
	b.turns()
	refused(t, b.add(named("b", 50)), "add function b: share is 50 %", "60 %", "110 % together", "at most 100 %")
	many := named("many", 0)
	many.Instances = 40
	refused(t, b.add(many), "minimum_percent", "40 instances", "fewer instances")
	refused(t, b.setShare("a", 101), "at most 100")
	must.OK(t, b.add(named("b", 40)))
	refused(t, b.setShare("b", 50), "share of b is 50 %", "110 % together, want at most 100 %")
	// The functions that were being removed are gone.
	must.OK(t, b.remove("a"))
	if err := b.add(named("c", 60)); err != nil {
		t.Error(err)
	}
}
