package manager

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/webserver"
	"github.com/penstock/penstock/manager/fleet"
	"github.com/penstock/penstock/manager/observe"
	"github.com/penstock/penstock/models"
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
	tell.HandleFunc("GET "+control.RatesPath, m.show(ratesOf))
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
	own.HandleFunc("GET "+control.RatesPath, m.show(ratesOf))
	own.HandleFunc("GET "+control.SamplePath, m.show(sampleOf))
	own.HandleFunc("GET "+control.CardPath, m.card)
	own.HandleFunc("GET "+control.PicturePath, m.picture)
	own.HandleFunc("POST "+control.LoadPath, take(m, func(o control.LoadOrder) (fleet.Order, error) { return m.fleet.Load(o) }))
	own.HandleFunc("POST "+control.AddPath, take(m, func(o configs.Function) (fleet.Order, error) { return m.fleet.Add(o) }))
	own.HandleFunc("POST "+control.RemovePath, take(m, func(o control.NameOrder) (fleet.Order, error) { return m.fleet.Remove(o.Name) }))
	own.HandleFunc("POST "+control.ReplacePath, take(m, func(o control.ReplaceOrder) (fleet.Order, error) { return m.fleet.Replace(o.Name, o.Model) }))
	own.HandleFunc("POST "+control.RollbackPath, take(m, func(o control.NameOrder) (fleet.Order, error) { return m.fleet.Rollback(o.Name) }))
	own.HandleFunc("POST "+control.MovePath, take(m, func(o control.MoveOrder) (fleet.Order, error) { return m.fleet.Move(o.Name, o.Worker) }))
	own.HandleFunc("POST "+control.PlacePath, take(m, func(o control.PlacementOrder) (fleet.Order, error) { return m.fleet.Place(o) }))
	own.HandleFunc("POST "+control.PeersPath, take(m, func(o control.PeersOrder) (fleet.Order, error) { return m.fleet.SetPeers(o) }))
	own.HandleFunc("POST "+control.SharePath, take(m, func(o control.ShareOrder) (fleet.Order, error) { return m.fleet.SetShare(o.Name, o.SharePercent) }))
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

// ready answers 200 when every function has a process that serves, the runtime folder is whole, and the models of the folder
// of `penstock up --models` are loaded.
func (m *Manager) ready(w http.ResponseWriter, _ *http.Request) {
	var restored uint64
	err := m.do(func() error {
		restored = m.folder.restored
		if m.folder.err != nil {
			return fmt.Errorf("runtime folder %s cannot be restored: %w", m.folder.dir, m.folder.err)
		}
		if dir := m.loading(); dir != "" {
			return fmt.Errorf("the models in %s are not all loaded yet", dir)
		}
		return m.fleet.Ready()
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

// loading is control.Status.Loading.
func (m *Manager) loading() string {
	if _, err := os.Stat(m.cfg.LoadedFile()); err != nil {
		return m.cfg.Repository
	}
	return ""
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

func ratesOf(s observe.Snapshot) any {
	rates := control.Rates{Functions: []control.FunctionRate{}}
	for i, f := range s.Functions {
		n := &f.Stats.Requests
		rates.Functions = append(rates.Functions, control.FunctionRate{
			Name: s.Status.Functions[i].Name, Offered: n.Offered(), Planned: f.Planned, Ready: f.Serving, Waiting: n.Gathering + n.InFlight,
		})
	}
	return rates
}

func sampleOf(s observe.Snapshot) any { return observe.NewSample(s) }

// snapshot describes the node.
func (m *Manager) snapshot() (s observe.Snapshot, err error) {
	err = m.do(func() error {
		s = m.fleet.Snapshot()
		s.Frames, s.Restored, s.Lost = m.network.Frames(), m.folder.restored, m.folder.err != nil
		s.Status.Loading = m.loading()
		s.Status.Sandbox, s.Status.ForeignCPUPercent = m.sandbox, m.foreign.Percent()
		return nil
	})
	return s, err
}

// card answers with the card of the model that serves a function, or that will serve it.
func (m *Manager) card(w http.ResponseWriter, r *http.Request) {
	var card *models.Card
	err := m.do(func() (err error) {
		card, err = m.fleet.Card(r.URL.Query().Get("function"))
		return err
	})
	answer(w, card, err)
}

// picture answers with the newest picture of a function.
func (m *Manager) picture(w http.ResponseWriter, r *http.Request) {
	var get func() (control.Picture, error)
	err := m.do(func() (err error) {
		get, err = m.fleet.Picture(r.URL.Query().Get("function"))
		return err
	})
	if err != nil {
		answer(w, nil, err)
		return
	}
	p, err := get()
	answer(w, p, err)
}

// answer answers with a value as JSON, or with what was wrong with the question.
func answer(w http.ResponseWriter, value any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(value)
}

// take returns a handler that reads an order, begins it on the control loop, and waits for its end.
// It answers 200 with a line that tells what was done, or 400 with a line that tells what was wrong.
// The order continues if the caller does not wait.
func take[O any](m *Manager, begin func(O) (fleet.Order, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var read O
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&read); err != nil {
			http.Error(w, fmt.Sprintf("read order: %v", err), http.StatusBadRequest)
			return
		}
		var order fleet.Order
		err := m.do(func() (err error) {
			order, err = begin(read)
			return err
		})
		if err == nil && order.End != nil {
			err = m.await(r.Context(), order.End)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintln(w, order.Done)
	}
}

// await waits for the end of an order.
func (m *Manager) await(ctx context.Context, end <-chan error) error {
	select {
	case err := <-end:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the order: %w", ctx.Err())
	case <-m.done:
		return fleet.ErrStopped
	}
}
