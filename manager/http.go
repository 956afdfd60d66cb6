package manager

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/internal/webserver"
	"github.com/penstock/penstock/manager/observe"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// servers has two HTTP servers. One, on the configured address, is read-only: metrics,
// health and status. The other is on a Unix socket in the runtime folder, whose
// permissions protect it. It takes orders (`penstock if`), and also answers with status,
// samples, cards and pictures.
type servers struct {
	list   []*webserver.Server
	orders *control.Listener
}

// maxConnections is the max number of connections of each server. It leaves file descriptors for
// processes and their memory.
const maxConnections = 128

func (m *Manager) serveHTTP(dir string) (*servers, error) {
	tell := http.NewServeMux()
	tell.Handle("GET /metrics", promhttp.HandlerFor(m.metrics.Registry, promhttp.HandlerOpts{}))
	tell.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := m.do(func() error { return nil }); err != nil { // the control loop has ended
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	tell.HandleFunc("GET /readyz", m.ready)
	tell.HandleFunc("GET "+control.StatusPath, m.show(statusOf))
	listener, err := net.Listen("tcp", m.cfg.HTTP.String())
	if err != nil {
		return nil, fmt.Errorf("serve metrics: %w; stop the other node, or set another address with `http:` in the configuration", err)
	}
	orders, err := control.ListenAdmin(dir)
	if err != nil {
		listener.Close()
		return nil, err
	}
	own := http.NewServeMux()
	own.HandleFunc("GET "+control.StatusPath, m.show(statusOf))
	own.HandleFunc("GET "+control.SamplePath, m.show(sampleOf))
	own.HandleFunc("GET "+control.CardPath, m.card)
	own.HandleFunc("GET "+control.PicturePath, m.picture)
	for path, handler := range m.takeOrders() {
		own.HandleFunc("POST "+path, handler)
	}
	s := &servers{orders: orders}
	s.serve(listener, ownPages(tell, m.cfg.HTTP.Addr().IsLoopback()), m.log)
	s.serve(orders, own, m.log)
	m.log.Info().Stringer("http", listener.Addr()).Msg("serving metrics, health and status")
	return s, nil
}

func (s *servers) serve(l net.Listener, h http.Handler, to zerolog.Logger) {
	server := webserver.New(l, h, webserver.Options{Connections: maxConnections, Log: to})
	s.list = append(s.list, server)
	go func() {
		if err := server.Run(); err != nil {
			to.Error().Err(err).Stringer("listener", l.Addr()).Msg("HTTP server ended")
		}
	}()
}

// ownPages refuses what a browser asks for pages of other sites.
func ownPages(next http.Handler, loopback bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := webserver.CheckSite(r)
		if loopback && err == nil {
			err = webserver.CheckLoopbackHost(r)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *servers) close() {
	for _, server := range s.list {
		server.Close()
	}
}

// ready answers 200 when every function has a process that serves. It ignores functions that
// are being removed, and functions on trial, which are not yet part of the node.
func (m *Manager) ready(w http.ResponseWriter, _ *http.Request) {
	var restored uint64
	err := m.do(func() error {
		restored = m.folder.restored
		if m.draining {
			return errors.New("draining")
		}
		if m.folder.err != nil {
			return fmt.Errorf("runtime folder %s cannot be restored: %w", m.folder.dir, m.folder.err)
		}
		if !m.sharing.Device.Known && len(m.functions) > 0 {
			return fmt.Errorf("the orchestrator has not found device %s yet; see its log", m.cfg.Device)
		}
		var waits []string
		for _, f := range m.functions {
			if !f.instances.serving() && !f.removing && !f.trial.running() {
				waits = append(waits, strings.TrimSuffix(f.name+" ("+cmp.Or(f.held, f.instances.failure())+")", " ()"))
			}
		}
		if len(waits) > 0 {
			return fmt.Errorf("no process serves yet: %s", strings.Join(waits, ", "))
		}
		return nil
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
	if restored > 0 {
		fmt.Fprintf(w, "the runtime folder was emptied and restored %d times\n", restored)
	}
}

// show answers with what view makes of a snapshot.
func (m *Manager) show(view func(observe.Snapshot) any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		s, err := m.snapshot()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(view(s))
	}
}

func statusOf(s observe.Snapshot) any { return s.Status }

func sampleOf(s observe.Snapshot) any { return observe.NewSample(s) }

// snapshot describes the node.
func (m *Manager) snapshot() (s observe.Snapshot, err error) {
	err = m.do(func() error {
		s = observe.Snapshot{Frames: m.network.Frames(), Restored: m.folder.restored, Lost: m.folder.err != nil}
		s.Status = control.Status{
			Started: m.started.UTC(), Sandbox: m.sandbox, Policy: string(m.cfg.Shares.Policy), Lab: m.cfg.Lab.String(),
			Mechanism: m.orchestrator.observed.Mechanism, Device: m.sharing.Device.GPU, Faults: m.faults.status(),
			Configuration: m.file.status, ForeignCPUPercent: m.foreign.Percent(), Functions: []control.FunctionStatus{}, Workers: m.functions.workersStatus(m.cfg.Workers),
		}
		for _, f := range m.functions {
			stats := f.port.Stats()
			s.Status.Functions = append(s.Status.Functions, f.status(&stats))
			s.Functions = append(s.Functions, observe.Function{
				Stats: stats, Histograms: m.metrics.Of(f.name), Picture: f.port.PictureNumber(),
				Serving: f.instances.serving(), Failures: f.instances.failures(),
				PersistentBytes: f.memory.persistentBytes, EphemeralBytes: f.memory.ephemeralBytes, Uses: f.sharing.Uses(),
			})
		}
		return nil
	})
	return s, err
}

// card answers with the card of the model that serves a function, or that will serve it.
func (m *Manager) card(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("function")
	var card *models.Card
	err := m.do(func() error {
		f := m.functions.find(name)
		if f == nil {
			return m.functions.unknown(name)
		}
		card = f.model.current()
		return nil
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(card)
}

// picture answers with the newest picture of a function.
func (m *Manager) picture(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("function")
	var port *datapath.Port
	var format configs.Format
	err := m.do(func() error {
		f := m.functions.find(name)
		if f == nil {
			return m.functions.unknown(name)
		}
		port, format = f.port, f.config.Format
		return nil
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p, ok := port.Picture()
	if !ok {
		http.Error(w, fmt.Sprintf("function %s has no picture yet; `pictures: 1/s` in its configuration keeps some", name), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(control.Picture{
		Number: p.Number, From: p.From, Answered: time.Now().Add(time.Duration(p.Sent - shm.Now())), Latency: time.Duration(p.Sent - p.FirstFragment),
		ModelVersion: p.ModelVersion, Kind: p.Kind, Payload: p.Payload, Pixels: toRGB(format, p.Pixels),
	})
}

// takeOrders are the handlers of orders, by path.
func (m *Manager) takeOrders() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		control.AddPath: take(m.awaitTrial),
		control.RemovePath: take(func(_ context.Context, o control.NameOrder) (string, error) {
			return o.Name + " is removed", m.await(func() (<-chan error, error) {
				f := m.functions.find(o.Name)
				if f == nil {
					return nil, m.functions.unknown(o.Name)
				}
				return f.gone, m.remove(o.Name)
			})
		}),
		control.ReplacePath: take(func(_ context.Context, o control.ReplaceOrder) (string, error) {
			return m.awaitModel("%s: replaced %s by %s", o.Name, func() (<-chan error, error) { return m.replace(o.Name, o.Model) })
		}),
		control.RollbackPath: take(func(_ context.Context, o control.NameOrder) (string, error) {
			return m.awaitModel("%s: rolled back from %s to %s", o.Name, func() (<-chan error, error) { return m.rollback(o.Name) })
		}),
		control.MovePath: take(func(_ context.Context, o control.MoveOrder) (string, error) {
			return fmt.Sprintf("%s: %s", o.Name, hostText(o.Worker)),
				m.await(func() (<-chan error, error) { return m.move(o.Name, o.Worker) })
		}),
		control.SharePath: take(func(_ context.Context, o control.ShareOrder) (string, error) {
			return fmt.Sprintf("%s: share set to %v %%", o.Name, o.SharePercent),
				m.do(func() error { return m.setShare(o.Name, o.SharePercent) })
		}),
	}
}

// awaitModel is await for an order that changes a function's model. text is a format for the
// function and its models before and after.
func (m *Manager) awaitModel(text, name string, start func() (<-chan error, error)) (done string, err error) {
	err = m.await(func() (<-chan error, error) {
		before := m.functions.find(name)
		if before == nil {
			return nil, m.functions.unknown(name)
		}
		from := modelName(before.model.desired)
		end, err := start()
		done = withWarnings(fmt.Sprintf(text, name, from, modelName(before.model.desired)), before.model.desired)
		return end, err
	})
	return done, err
}

// withWarnings appends the warnings of a function's card to an answer, a line each.
func withWarnings(text string, card *models.Card) string {
	for _, w := range card.Warnings {
		text += "\nwarning: " + w
	}
	return text
}

// await starts something on the control loop and waits for it to end.
func (m *Manager) await(start func() (<-chan error, error)) error {
	var end <-chan error
	err := m.do(func() (err error) {
		end, err = start()
		return err
	})
	if err != nil {
		return err
	}
	select {
	case err := <-end:
		// The changes were posted before end: after this call they are done.
		return errors.Join(err, m.do(func() error { return nil }))
	case <-m.done:
		return errStopped
	}
}

// take returns a handler that reads an order and carries it out. It answers 200 with a line that tells
// what was done, or 400 with a line that tells what was wrong.
func take[O any](carryOut func(context.Context, O) (string, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var order O
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&order); err != nil {
			http.Error(w, fmt.Sprintf("read order: %v", err), http.StatusBadRequest)
			return
		}
		done, err := carryOut(r.Context(), order)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintln(w, done)
	}
}
