package profile

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

// parvagpu has the profiles that were published with ParvaGPU.
const parvagpu = "../../plan/testdata/parvagpu/prof_data"

func TestReadParvaGPU(t *testing.T) {
	profiles, err := ReadFolder(os.DirFS(parvagpu), ".")
	must.OK(t, err)
	p, ok := profiles["resnet50"]
	if !ok || len(p.Points) != 225 || p.Header.Unit != GPCs {
		t.Fatalf("resnet50 is there: %t, with %d points, shares in %q; want 225 in gpcs", ok, len(p.Points), p.Header.Unit)
	}
	first := Point{Share: 1, Batch: 1, Processes: 1, Throughput: 196.762, Latency: 5 * time.Millisecond}
	if p.Points[0] != first {
		t.Errorf("first point is %+v, want %+v", p.Points[0], first)
	}
	vgg := profiles["vgg19"]
	if q, ok := vgg.Find(1, 8, 5); !ok || !q.OOM {
		t.Errorf("vgg19 of 5 processes at batch 8 on a GPC is %+v, want out of memory", q)
	}
}

func TestWriteRead(t *testing.T) {
	p := Profile{
		File: "face.csv",
		Header: Header{Version: Version, Model: "face", GPU: "a100-80", Unit: GPCs, Total: 7,
			Versions: map[string]string{"penstock": "1"}, Date: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC), Complete: true},
		Points: []Point{
			{Share: 1, Batch: 1, Processes: 1, Throughput: 100.5, Latency: 9_950_249, MemoryMiB: 12.5},
			{Share: 1, Batch: 2, Processes: 3, OOM: true},
		},
	}
	var b bytes.Buffer
	must.OK(t, Write(&b, p))
	back, err := Read(&b, "face.csv")
	must.OK(t, err)
	if !reflect.DeepEqual(back, p) {
		t.Errorf("read %+v\nwant %+v", back, p)
	}
}

func TestUnknownKeys(t *testing.T) {
	for key, ok := range map[string]bool{"min_windows": true, "few_windows": false} {
		text := `# {"version": 1, "share": "gpcs", "sweep": {"` + key + `": 3, "max_windows": 9}}
Mig instance,Batch size,Workload Number,Throughput,Latency,Memory
1,1,1,196.762,0.005,512
`
		p, err := Read(strings.NewReader(text), "face.csv")
		if (err == nil) != ok || ok && (p.Header.Sweep.MinWindows != 3 || p.Header.Sweep.MaxWindows != 9) {
			t.Errorf("%s: got %+v, %v", key, p.Header.Sweep, err)
		}
	}
}
