package configs

import (
	"strings"

	"github.com/penstock/penstock/models/document"
)

// Problems collects faults that the text of a configuration alone does not show: a model that
// cannot be loaded, a port that is in use. Only one goroutine may use it.
type Problems struct{ doc *document.Document }

// Problems returns an empty list of problems.
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

// Add adds a problem at a path of keys and list indexes, like "functions", 1, "model". Each line of
// err becomes a separate problem. Add ignores a nil err.
func (p *Problems) Add(err error, path ...any) {
	if err == nil {
		return
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		p.doc.Root().Find(path...).Reject("%s", line)
	}
}

// Err joins all problems in the order of the file, one line each: file, line, column, key and a
// valid value. It is nil if there are none.
func (p *Problems) Err() error { return p.doc.Err() }
