package orchestrator

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/control"
)

func TestProgram(t *testing.T) {
	program := func(framework string) ([]string, error) {
		if framework != "pytorch" {
			return nil, errors.New("there is no " + framework)
		}
		return []string{"python3", "-m", "it"}, nil
	}
	for name, c := range map[string]struct {
		wanted  control.DesiredProcess
		program func(string) ([]string, error)
		want    []string
		fails   string
	}{
		"built in":         {want: []string{"/bin/penstock", "if"}},
		"its own":          {wanted: control.DesiredProcess{Command: []string{"a", "b"}, Framework: "pytorch"}, program: program, want: []string{"a", "b"}},
		"apart":            {wanted: control.DesiredProcess{Framework: "pytorch"}, program: program, want: []string{"python3", "-m", "it"}},
		"what is missing":  {wanted: control.DesiredProcess{Framework: "other"}, program: program, fails: "there is no other"},
		"nobody to ask":    {wanted: control.DesiredProcess{Framework: "pytorch"}, fails: "framework pytorch"},
		"no name, one ask": {program: program, want: []string{"/bin/penstock", "if"}},
	} {
		s := &supervisor{o: Options{Self: "/bin/penstock", Program: c.program}}
		got, err := s.command(c.wanted)
		if !slices.Equal(got, c.want) || (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v, %v; want %v, %q", name, got, err, c.want, c.fails)
		}
	}
}
