package check

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/publish"
)

// publish checks what the configuration alone does not show of the gateway and its receivers. Receivers on other machines may be away
// for a while: they are not called.
func (n *node) publish() {
	if file := n.config.Gateway.Keys; file != "" {
		_, err := configs.ReadKeys(file)
		n.problems.Add(err, "gateway", "keys")
	}
	if files := n.config.Gateway.TLS; files.Certificate != "" {
		_, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
		n.problems.Add(err, "gateway", "tls", "certificate")
	}
	for i := range n.config.Publish {
		p := &n.config.Publish[i]
		for _, name := range p.Functions {
			if !hasFunction(n.config, name) {
				n.notes = append(n.notes, fmt.Sprintf("publish %s takes answers of %s, which is not among functions: there are none until `penstock if add` adds it", p.Name, name))
			}
		}
		if p.TokenFile != "" {
			if _, err := publish.ReadToken(p.TokenFile); err != nil {
				n.problems.Add(err, "publish", i, "token_file")
			}
		}
		if p.File == "" || p.File == "-" {
			continue
		}
		if info, err := os.Stat(p.File); err == nil && !info.Mode().IsRegular() {
			n.problems.Add(fmt.Errorf("%s is no regular file; want a file, or - for standard output", p.File), "publish", i, "file")
		}
		if _, err := os.Stat(filepath.Dir(p.File)); err != nil {
			n.problems.Add(fmt.Errorf("find folder of file: %w", err), "publish", i, "file")
		}
	}
}
