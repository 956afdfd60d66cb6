package systemd

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
)

// patience bounds each wait for a report.
const patience = time.Minute

// listen opens the socket that systemd would open, and returns the reports that arrive there.
func listen(t *testing.T) (reports <-chan string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must.OK(t, err)
	t.Cleanup(func() { socket.Close() })
	t.Setenv(socketVariable, path)
	received := make(chan string, 1000)
	go func() {
		defer close(received)
		for buffer := make([]byte, 4096); ; {
			n, err := socket.Read(buffer)
			if err != nil {
				return
			}
			received <- string(buffer[:n])
		}
	}()
	return received
}

// next returns the next report with a line.
func next(t *testing.T, reports <-chan string, line string) (report string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case report := <-reports:
			if slices.Contains(strings.Split(report, "\n"), line) {
				return report
			}
		case <-deadline:
			t.Fatalf("waited %s for %s", patience, line)
		}
	}
}

func serving(name string, serves bool) control.FunctionStatus {
	f := control.FunctionStatus{Name: name, Instances: make([]control.InstanceStatus, 1)}
	if serves {
		f.Instances[0].Processes = []control.ProcessStatus{{Role: control.Serve, State: control.Active}}
	}
	return f
}

func TestReport(t *testing.T) {
	reports := listen(t)
	t.Setenv(watchdogVariable, "4000") // 4 ms
	var status atomic.Pointer[control.Status]
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Report(ctx, Options{Log: zerolog.Nop(), Status: func(context.Context) (control.Status, error) {
			if s := status.Load(); s != nil {
				return *s, nil
			}
			return control.Status{}, errors.New("no answer")
		}})
	}()

	// The first report comes after the first answer.
	status.Store(&control.Status{Functions: []control.FunctionStatus{serving("face", true), serving("detect", false)}})
	if got, want := next(t, reports, "READY=1"), "WATCHDOG=1\nREADY=1\nSTATUS=1 of 2 functions serve; not yet: detect"; got != want {
		t.Errorf("first report %q, want %q", got, want)
	}
	if got := next(t, reports, "WATCHDOG=1"); got != "WATCHDOG=1" {
		t.Errorf("report without news %q", got)
	}
	status.Store(&control.Status{Functions: []control.FunctionStatus{serving("face", true), serving("detect", true)}})
	if got, want := next(t, reports, "STATUS=2 of 2 functions serve"), "WATCHDOG=1\nSTATUS=2 of 2 functions serve"; got != want {
		t.Errorf("report %q, want %q", got, want)
	}

	stop()
	next(t, reports, "STOPPING=1")
	<-ended
	if len(reports) != 0 {
		t.Errorf("report after the end: %q", <-reports)
	}
}

// TestReportSilence counts the reports while the manager does not answer.
func TestReportSilence(t *testing.T) {
	reports := listen(t)
	t.Setenv(watchdogVariable, "4000")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	const questions = 5
	asked := 0
	Report(ctx, Options{Log: zerolog.Nop(), Status: func(context.Context) (control.Status, error) {
		if asked++; asked == questions {
			stop()
		}
		if asked == 1 {
			return control.Status{}, nil
		}
		return control.Status{}, errors.New("no answer")
	}})
	if got := next(t, reports, "READY=1"); !strings.Contains(got, "WATCHDOG=1") {
		t.Errorf("first report %q", got)
	}
	if got := <-reports; !strings.HasPrefix(got, "STOPPING=1") {
		t.Errorf("report %q, want none before the end", got)
	}
}

func TestReportWithoutSystemd(t *testing.T) {
	t.Setenv(socketVariable, "")
	Report(t.Context(), Options{Status: func(context.Context) (control.Status, error) {
		t.Error("asks the manager, and no service manager waits for it")
		return control.Status{}, nil
	}})
}

func TestEnvironment(t *testing.T) {
	given := []string{"PATH=/bin", "NOTIFY_SOCKET=/run/x", "WATCHDOG_USEC=1", "WATCHDOG_PID=2", "NOTIFY_SOCKETS=3"}
	if got, want := Environment(given), []string{"PATH=/bin", "NOTIFY_SOCKETS=3"}; !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}
	if len(given) != 5 || given[1] == "" {
		t.Errorf("changed its argument: %q", given)
	}
}
