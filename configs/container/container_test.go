package container

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/penstock/penstock/internal/testing/must"
)

const root = "../../"

// instruction is a line of the Containerfile, with its continuations.
type instruction struct {
	line      int
	name      string
	arguments string
}

func instructions(t *testing.T) (list []instruction) {
	t.Helper()
	text, err := os.ReadFile(root + "Containerfile")
	must.OK(t, err)
	continued := false
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		text, more := strings.CutSuffix(line, `\`)
		if continued {
			list[len(list)-1].arguments += " " + strings.TrimSpace(text)
		} else {
			name, arguments, _ := strings.Cut(text, " ")
			list = append(list, instruction{i + 1, name, strings.TrimSpace(arguments)})
		}
		continued = more
	}
	if len(list) == 0 || continued {
		t.Fatalf("%d instructions; the last one is continued: %v", len(list), continued)
	}
	return list
}

// TestContainerfile checks what can be wrong with the file without a program that builds it.
func TestContainerfile(t *testing.T) {
	known := []string{"ARG", "FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
	var stages, arguments []string
	variable := regexp.MustCompile(`\$\{(\w+)\}`)
	for _, in := range instructions(t) {
		if !slices.Contains(known, in.name) {
			t.Errorf("Containerfile:%d: instruction %s", in.line, in.name)
		}
		for _, use := range variable.FindAllStringSubmatch(in.arguments, -1) {
			if !slices.Contains(arguments, use[1]) {
				t.Errorf("Containerfile:%d: no ARG defines %s", in.line, use[1])
			}
		}
		words := strings.Fields(in.arguments)
		switch in.name {
		case "ARG":
			name, _, _ := strings.Cut(in.arguments, "=")
			arguments = append(arguments, name)
		case "FROM":
			if len(words) == 3 && words[1] == "AS" {
				stages = append(stages, words[2])
			}
			if image := words[0]; strings.Contains(image, "/") {
				t.Errorf("Containerfile:%d: %s names a registry", in.line, image)
			}
		case "COPY":
			if stage, from := strings.CutPrefix(words[0], "--from="); from {
				if !slices.Contains(stages, stage) {
					t.Errorf("Containerfile:%d: no stage %s", in.line, stage)
				}
				continue
			}
			if len(words) < 2 {
				t.Errorf("Containerfile:%d: COPY without a target", in.line)
				continue
			}
			for _, source := range words[:len(words)-1] {
				if _, err := os.Stat(root + source); err != nil {
					t.Errorf("Containerfile:%d: %v", in.line, err)
				}
				if ignored(t, source) {
					t.Errorf("Containerfile:%d: .containerignore leaves out %s", in.line, source)
				}
			}
		}
	}
	if !slices.Equal(stages, []string{"build"}) {
		t.Errorf("stages %v", stages)
	}
}

// ignored reports whether .containerignore names a path.
func ignored(t *testing.T, path string) bool {
	t.Helper()
	text, err := os.ReadFile(root + ".containerignore")
	must.OK(t, err)
	return slices.ContainsFunc(strings.Fields(string(text)), func(pattern string) bool {
		match, err := filepath.Match(pattern, path)
		must.OK(t, err)
		return match
	})
}

// TestConfiguration checks that the container shows the ports of its configuration, and that they
// listen outside of its loopback.
func TestConfiguration(t *testing.T) {
	text, err := os.ReadFile("penstock.yaml") // TestShippedConfigurations checks the rest of it
	must.OK(t, err)
	var c struct {
		Listen    netip.Addr
		HTTP      netip.AddrPort
		Gateway   struct{ Address netip.AddrPort }
		Functions []struct{ Port int }
	}
	must.OK(t, yaml.Unmarshal(text, &c))
	if !c.Listen.IsUnspecified() || !c.HTTP.Addr().IsUnspecified() || !c.Gateway.Address.Addr().IsUnspecified() {
		t.Errorf("listens on %v, %v and %v; want all addresses", c.Listen, c.HTTP, c.Gateway.Address)
	}
	var want []string
	for _, f := range c.Functions {
		want = append(want, fmt.Sprintf("%d/udp", f.Port))
	}
	want = append(want, fmt.Sprint(c.HTTP.Port()), fmt.Sprint(c.Gateway.Address.Port()))
	found := false
	for _, in := range instructions(t) {
		switch in.name {
		case "EXPOSE":
			found = true
			if got := strings.Fields(in.arguments); !slices.Equal(got, want) {
				t.Errorf("EXPOSE %v, want %v", got, want)
			}
		case "CMD":
			if !strings.Contains(in.arguments, `"/etc/penstock/penstock.yaml"`) {
				t.Errorf("CMD %s does not name the configuration", in.arguments)
			}
		}
	}
	if !found {
		t.Error("no EXPOSE")
	}
}
