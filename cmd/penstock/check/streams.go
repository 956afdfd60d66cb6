package check

import (
	"fmt"
	"os/exec"
	"slices"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/stream"
)

// streams checks the sources. The gateway waits for a file that is missing and for a function that
// is added later; both are more often a mistake.
func (n *node) streams() {
	if _, err := exec.LookPath("ffmpeg"); err != nil && len(n.config.Streams) > 0 {
		n.notes = append(n.notes, fmt.Sprintf("streams: %v", stream.ErrNoFFmpeg))
	}
	for i, s := range n.config.Streams {
		_, err := stream.ParseAddress(s.Source)
		n.problems.Add(err, "streams", i, "source")
		for _, to := range s.To {
			if !hasFunction(n.config, to) {
				n.notes = append(n.notes, fmt.Sprintf("stream %s sends to %s, which is not among functions: its frames wait until `penstock if add` adds it", s.Name, to))
			}
		}
	}
}

func hasFunction(c configs.Config, name string) bool {
	return slices.ContainsFunc(c.Functions, func(f configs.Function) bool { return f.Name == name })
}
