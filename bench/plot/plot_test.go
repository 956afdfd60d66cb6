package main

import (
	"encoding/json"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/bench"
)

// folder is an empty one of that name.
func folder(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// put writes a report whose numbers are made up.
func put(t *testing.T, dir, name string, report any) {
	t.Helper()
	text, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func madeUp(t *testing.T, dir string) {
	gather := bench.Gather{Device: "made-up GPU", PieceBytes: 1024}
	for _, kind := range []string{"u8 hwc", "f32 hwc"} {
		for _, pictures := range []int{1, 8, 32} {
			for _, alignment := range []string{"aligned", "odd"} {
				gather.Cases = append(gather.Cases, bench.GatherCase{Wire: kind, Tensor: "f16 chw", Normalised: true, Pictures: pictures, PictureBytes: 150528, Alignment: alignment,
					GigabytesPerSecond: float64(30 + pictures/2), CopyGBPerSecond: 54, Ratio: float64(30+pictures/2) / 54, PieceCopyGBPerSecond: 0.3, CPUCopyGBPerSecond: 5})
			}
		}
	}
	put(t, dir, "gather", gather)

	var overhead bench.Overhead
	overhead.Device = "made-up GPU"
	for i, batch := range []int{1, 8, 32, 1, 8, 32} {
		bare := float64(2000 * (i%3 + 1))
		c := bench.OverheadCase{Model: []string{"resnet50", "mobilenetv2"}[i/3], Batch: batch, BareImagesPerSecond: bare, BareOverlappedImagesPerSecond: bare * 1.1}
		c.BareBatch.P50 = 500
		for way := range 2 {
			w := bench.OverheadWay{BusyPollMillis: float64(5 * way), Best: bench.ThroughputCase{Ports: 1 + i/5, ImagesPerSecond: bare * 0.97}}
			w.Throughput = []bench.ThroughputCase{w.Best}
			w.Latency.Queue.P50, w.Latency.Gather.P50, w.Latency.Infer.P50, w.Latency.Reply.P50 = 20, float64(10*batch), 510, 15
			w.Latency.Added.P99, w.Latency.Volleys, w.Latency.Whole = 90, 100, 100
			c.Ways = append(c.Ways, w)
		}
		overhead.Cases = append(overhead.Cases, c)
	}
	put(t, dir, "overhead", overhead)

	moves := func(how string, base float64) bench.MovesCase {
		m := bench.MovesCase{How: how, Moves: 100}
		for i := range 100 {
			m.Every = append(m.Every, base*(1+float64(i*i)/2000))
		}
		m.SteadyP99.P50, m.AroundP99.P50, m.AroundP99.Max = 3, base/10, base/5
		return m
	}
	restart := moves("restart", 900e3)
	restart.AroundP99.P50, restart.AroundP99.Max = 900, 950
	put(t, dir, "swap-shadow", bench.Moves{Device: "made-up GPU", Change: moves("shadow", 40), Restart: &restart})
	put(t, dir, "swap-partition", bench.Moves{Device: "made-up GPU", Change: moves("partition", 4), Restart: &restart})

	limit := bench.Limit{Model: "vgg19", Batch: 8, Aggressor: "spin"}
	for _, change := range []string{"shadow", "partition"} {
		s := bench.LimitSeries{Change: change}
		for sms := 12; sms <= 132; sms += 12 {
			p := bench.LimitPoint{SMs: sms, Alone: bench.LimitLoad{ImagesPerSecond: float64(22 * sms)}}
			p.Alone.Latency.P99 = 400e3 / float64(sms)
			if sms < 132 {
				p.Beside = &bench.LimitLoad{ImagesPerSecond: float64(20 * sms)}
				p.Beside.Latency.P99 = 500e3 / float64(sms)
			}
			s.Points = append(s.Points, p)
		}
		limit.Series = append(limit.Series, s)
	}
	put(t, dir, "limit", limit)

	fault := bench.Fault{Device: "made-up GPU", Functions: []string{"face", "resnet50"}, Requests: 12345}
	for i := range 10 {
		fault.Faults = append(fault.Faults, bench.FaultResult{
			SilenceMillis: map[string]float64{"face": float64(900 + 20*i), "resnet50": float64(700 + 10*i)}, NodeMillis: float64(880 + 20*i),
		})
	}
	put(t, dir, "fault", fault)
}

func TestEveryReportBecomesFigures(t *testing.T) {
	dir := folder(t, "h200")
	madeUp(t, dir)
	if err := drawAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gather", "gather-types", "overhead-throughput", "overhead-latency", "swap-idle", "swap-latency", "limit", "fault"} {
		file, err := os.Open(filepath.Join(dir, name+".png"))
		if err != nil {
			t.Error(err)
			continue
		}
		img, err := png.DecodeConfig(file)
		file.Close()
		if err != nil || img.Width < 600 {
			t.Errorf("%s: %d pixels wide, %v", name, img.Width, err)
		}
	}
	if keep := os.Getenv("PENSTOCK_KEEP_FIGURES"); keep != "" {
		if err := os.CopyFS(keep, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
}

// The page of docs/benchmarks has all the marks, and what stands between them is
// what the reports say.
func TestThePageIsFilledFromTheReports(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarks/h200.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := folder(t, "h200")
	if err := os.WriteFile(dir+".md", page, 0o600); err != nil {
		t.Fatal(err)
	}
	madeUp(t, dir)
	for range 2 { // filled again it is the same
		if err := fill(dir, pages["h200"]); err != nil {
			t.Fatal(err)
		}
	}
	filled, err := os.ReadFile(dir + ".md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"5,820/s", "12,345", "46.0 GB/s"} {
		if !strings.Contains(string(filled), want) {
			t.Errorf("the page does not say %s", want)
		}
	}
	if n := strings.Count(string(filled), "Not measured yet."); n > 0 {
		t.Errorf("%d sections were not filled", n)
	}
	if keep := os.Getenv("PENSTOCK_KEEP_FIGURES"); keep != "" {
		if err := os.WriteFile(filepath.Join(keep, "page.md"), filled, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatWasNotMeasuredIsLeftOut(t *testing.T) {
	for name := range pages {
		dir := folder(t, name)
		if err := drawAll(dir); err != nil {
			t.Errorf("an empty folder: %v", err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("drew %v from nothing", left)
		}
	}
	if err := drawAll(folder(t, "h201")); err == nil || !strings.Contains(err.Error(), "evaluation or h200 or ingest or planner") {
		t.Errorf("a folder that has no page: %v", err)
	}
}

func TestNumbersHaveThousands(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -12345: "-12,345"} {
		if got := number(v); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
}
