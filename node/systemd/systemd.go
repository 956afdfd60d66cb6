// Package systemd reports the state of a node to the service manager that started it
// (sd_notify(3), Type=notify):
//
//	1 The first answer of the manager makes the node ready.
//	2 Each answer is a sign of life for the watchdog. Without answers systemd restarts the node.
//	3 A status line counts the functions that serve.
//	4 The end of the context makes the node stopping.
package systemd

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
)

// Options describe the node to report on.
type Options struct {
	// Status asks the manager. It must return within a few seconds, also if the manager hangs.
	Status func(context.Context) (control.Status, error)
	Log    zerolog.Logger
}

// The variables that systemd sets for a service of Type=notify.
const (
	socketVariable      = "NOTIFY_SOCKET"
	watchdogVariable    = "WATCHDOG_USEC"
	watchdogPIDVariable = "WATCHDOG_PID"
)

// startInterval is the time between two questions until the manager answers, maxInterval the
// time afterwards if no watchdog needs a shorter one.
const (
	startInterval = 100 * time.Millisecond
	maxInterval   = 5 * time.Second
)

// pingsPerWatchdog is the number of signs of life within the watchdog's time. systemd recommends
// two (sd_watchdog_enabled(3)).
const pingsPerWatchdog = 4

// Environment returns an environment without systemd's variables: only this process may use them.
func Environment(environment []string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return name == socketVariable || name == watchdogVariable || name == watchdogPIDVariable
	})
}

// Report reports the state of the node until ctx ends. It returns at once if no service manager
// waits for reports.
func Report(ctx context.Context, o Options) {
	if os.Getenv(socketVariable) == "" {
		return
	}
	interval := maxInterval
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		o.Log.Error().Err(err).Msg("cannot read the watchdog's time; systemd will restart the node")
	} else if watchdog > 0 {
		interval = min(interval, watchdog/pingsPerWatchdog)
	}

	r := reporter{log: o.Log}
	for wait := startInterval; ; {
		status, err := o.Status(ctx)
		if err == nil && ctx.Err() == nil {
			r.alive(&status)
			wait = interval
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			r.send(daemon.SdNotifyStopping, statusLine("answering the accepted requests"))
			return
		}
	}
}

// reporter sends what changed.
type reporter struct {
	log    zerolog.Logger
	ready  bool
	line   string
	failed bool
}

// alive reports an answer of the manager.
func (r *reporter) alive(status *control.Status) {
	lines := []string{daemon.SdNotifyWatchdog}
	if !r.ready {
		r.ready = true
		lines = append(lines, daemon.SdNotifyReady)
	}
	if line := statusLine(summary(status)); line != r.line {
		r.line = line
		lines = append(lines, line)
	}
	r.send(lines...)
}

// send sends assignments as one datagram. The first failure is logged.
func (r *reporter) send(lines ...string) {
	if _, err := daemon.SdNotify(false, strings.Join(lines, "\n")); err != nil && !r.failed {
		r.failed = true
		r.log.Error().Err(err).Msg("cannot report the node's state to systemd")
	}
}

func statusLine(text string) string { return "STATUS=" + text }

// summary counts the functions that serve.
func summary(status *control.Status) string {
	var waiting []string
	for i := range status.Functions {
		if f := &status.Functions[i]; !f.Serves() {
			waiting = append(waiting, f.Name)
		}
	}
	text := fmt.Sprintf("%d of %d functions serve", len(status.Functions)-len(waiting), len(status.Functions))
	if len(waiting) > 0 {
		text += "; not yet: " + strings.Join(waiting, ", ")
	}
	if status.Configuration.Error != "" {
		text += "; the configuration file has an error"
	}
	return text
}
