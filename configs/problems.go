package configs

import (
	"strings"

	"github.com/penstock/penstock/models/document"
)

// Problems collects what is wrong with a configuration that its text alone does not show: a model
// that cannot be loaded, a port that is taken. It is used by one goroutine.
type Problems struct{ doc *document.Document }

// Problems is empty at first.
func (c *Config) Problems() (*Problems, error) {
	name := c.File
	if name == "" {
		name = "built-in configuration"
	}
	doc, err := document.Parse(name, c.Text)
	if err != nil {
		return nil, err
	}
	return &Problems{doc: doc}, nil
}

// Add notes a problem at a path of keys and list indexes, like "functions", 1, "model". Each line
// of err is one of them; nil is none.
func (p *Problems) Add(err error, path ...any) {
	if err == nil {
		return
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		p.doc.Root().Find(path...).Reject("%s", line)
	}
}

// Err is all problems in the order of the file, a line each: file, line, column, key and what would
// be right. It is nil if there are none.
func (p *Problems) Err() error { return p.doc.Err() }
