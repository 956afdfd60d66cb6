package profile

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models/document"
)

const heading = "Mig instance,Batch size,Workload Number,Throughput,Latency\n"

func TestReadErrors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "p.csv: is empty, want a header with Mig instance,Batch size,Workload Number,Throughput,Latency"},
		{"only a header", "# {\"version\": 1, \"model\": \"m\", \"gpu\": \"g\", \"share\": \"gpcs\", \"complete\": true}\n", "p.csv: is empty, want"},
		{"another column", "Mig instance,Batch,Workload Number,Throughput,Latency\n", `p.csv:1:14: unknown column "Batch": want one of Mig instance,Batch size`},
		{"a column too many", heading[:len(heading)-1] + ",Memory,Power\n", `p.csv:1:67: unknown column "Power"`},
		{"a column missing", "Mig instance,Batch size\n", "p.csv:1:14: no column \"Workload Number\" behind this one"},
		{"a field missing", heading + "1,1,1,100\n", "p.csv:2:7: 4 fields: want 5, as the header has"},
		{"a word", heading + "1,two,1,100,0.01\n", `p.csv:2:3: "two" is no number of images, want an integer from 1 to 65536`},
		{"no share", heading + "0,1,1,100,0.01\n", `p.csv:2:1: "0" is no share in gpcs`},
		{"half a process", heading + "1,1,1.5,100,0.01\n", `p.csv:2:5: "1.5" is no number of processes, want an integer from 1 to 1024`},
		{"a negative rate", heading + "1,1,1,-100,0.01\n", `p.csv:2:7: "-100" is no throughput, want a number from 0`},
		{"not a number", heading + "1,1,1,NaN,0.01\n", `p.csv:2:7: "NaN" is no throughput`},
		{"an endless batch", heading + "1,1,1,100,1e9\n", `p.csv:2:11: "1e9" is no latency in seconds, want a number from 0 to 3600`},
		{"throughput in no time", heading + "1,1,1,100,0\n", "p.csv:2:7: throughput 100 with latency 0; want both above 0, or both 0 for out of memory"},
		{"a point twice", heading + "1,1,1,100,0.01\n2,1,1,100,0.01\n1,1,1,90,0.01\n", "p.csv:4:1: share 1, batch 1, 1 processes is already in line 2"},
		{"a quote", heading + "1,1,\"1,100,0.01\n", "p.csv:2:"},
		{"broken JSON", "# {\"version\": 1,\n#  \"model\": }\n" + heading, "p.csv:2:"},
		{"JSON without an end", "# {\"version\": 1,\n" + heading, "p.csv:2:1: ends in the middle of the header"},
		{"an unknown key", "# {\"version\": 1, \"modle\": \"m\"}\n" + heading, `p.csv:1:30: unknown field "modle"`},
		{"a number for a name", "# {\"version\": 1,\n# \"model\": 3}\n" + heading, "p.csv:2:"},
		{"another version", "# {\"version\": 2, \"share\": \"gpcs\"}\n" + heading, "header: version is 2, want 1"},
		{"another unit", "# {\"version\": 1, \"share\": \"slices\"}\n" + heading, `header: share is "slices", want "gpcs" or "percent"`},
		{"text after the JSON", "# {\"version\": 1, \"share\": \"gpcs\"} and more\n" + heading, `p.csv:1:33: more after the header`},
		{"a zero byte", "Mig\x00", "p.csv: has a zero byte"},
	} {
		_, err := Read(strings.NewReader(c.text), "p.csv")
		var syntax *document.Problem
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}

func TestCommentsWithoutHeader(t *testing.T) {
	p, err := Read(strings.NewReader("\ufeff# measured by hand\r\n"+strings.ReplaceAll(heading, "\n", "\r\n")+"1, 1, 1, 100, 0.01\r\n"), "p.csv")
	if err != nil || len(p.Points) != 1 || p.Header.Unit != GPCs {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestReadFolder(t *testing.T) {
	point := &fstest.MapFile{Data: []byte(heading + "1,1,1,100,0.01\n")}
	profiles, err := ReadFolder(fstest.MapFS{
		"a.csv": point, "b/b.csv": point, "b/card.yaml": point, "b/other.csv": point, "c/card.yaml": point, "README.md": point, "d.csv.partial": point,
	}, ".")
	if err != nil || len(profiles) != 2 || len(profiles["a"].Points) != 1 || len(profiles["b"].Points) != 1 {
		t.Errorf("%v, %v; want a and b", profiles, err)
	}
	if _, err := ReadFolder(fstest.MapFS{"a.csv": point, "a/a.csv": point}, "."); err == nil || !strings.Contains(err.Error(), "a is listed twice: a.csv and a/a.csv") &&
		!strings.Contains(err.Error(), "a is listed twice: a/a.csv and a.csv") {
		t.Errorf("two profiles of a model: %v", err)
	}
	if _, err := ReadFolder(fstest.MapFS{"a.csv": {Data: []byte("x")}}, "."); err == nil || !strings.Contains(err.Error(), "a.csv:1:1: ") {
		t.Errorf("a broken one: %v", err)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Profile{Header: Header{
			Version: Version, Model: rapid.StringMatching(`[a-z0-9_-]{1,12}`).Draw(t, "model"), GPU: rapid.String().Draw(t, "gpu"),
			Unit: rapid.SampledFrom([]Unit{GPCs, Percent}).Draw(t, "unit"), Complete: rapid.Bool().Draw(t, "complete"),
		}}
		seen := map[Point]bool{}
		for range rapid.IntRange(0, 20).Draw(t, "points") {
			q := Point{Share: rapid.IntRange(1, maxShare).Draw(t, "share"), Batch: rapid.IntRange(1, 256).Draw(t, "batch"), Processes: rapid.IntRange(1, 5).Draw(t, "processes")}
			if seen[q] {
				continue
			}
			seen[q] = true
			if q.OOM = rapid.Bool().Draw(t, "oom"); !q.OOM {
				q.Throughput = rapid.Float64Range(1e-3, 1e9).Draw(t, "throughput")
				q.Latency = time.Duration(rapid.Int64Range(1, int64(time.Minute)).Draw(t, "latency"))
				q.MemoryMiB = rapid.Float64Range(0, 1e5).Draw(t, "memory")
			}
			p.Points = append(p.Points, q)
		}
		var first, second bytes.Buffer
		must.OK(t, Write(&first, p))
		back, err := Read(bytes.NewReader(first.Bytes()), "p.csv")
		must.OK(t, err)
		must.OK(t, Write(&second, back))
		if first.String() != second.String() || !reflect.DeepEqual(back.Header, p.Header) || len(back.Points) != len(p.Points) {
			t.Fatalf("wrote\n%s\nread and wrote\n%s", &first, &second)
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(heading + "1,1,1,100,0.01\n"))
	f.Add([]byte("# {\"version\": 1, \"share\": \"percent\"}\n" + heading))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Read(bytes.NewReader(data), "p.csv")
		if err != nil {
			return
		}
		for i, q := range p.Points {
			if i > 0 && p.Points[i-1].Compare(q) >= 0 || q.Share < 1 || q.Batch < 1 || q.Processes < 1 || !q.OOM && !(q.Throughput > 0 && q.Latency > 0) {
				t.Fatalf("point %+v", q)
			}
		}
		Knees(p.Points)
	})
}
