package client_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

const functionKey = "the key of the function"

// keyFile returns a file with keys.
func keyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	must.OK(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	return path
}

// TestKey sends requests of one and of several fragments, with a token that expires in between.
func TestKey(t *testing.T) {
	m := startManager(t, clienttest.Echo(16), clienttest.ManagerOptions{Key: []byte(functionKey), NACKAfter: -1})
	c := dial(t, m.Addr(), client.Options{KeyFile: keyFile(t, functionKey), ResendAfter: patience})
	for i := range 6 {
		picture := make([]byte, []int{10, 5000}[i%2])
		r, err := c.Do(t.Context(), picture, client.RequestOptions{})
		if err != nil || r.Status != client.StatusOK {
			t.Fatalf("request %d: %+v, %v", i, r, err)
		}
		if i == 2 {
			m.ExpireToken()
		}
	}
	if granted := m.ExpireToken(); granted != 2 {
		t.Errorf("%d tokens were given, want one at first and one when it expired", granted)
	}
}

// TestKeyOverBadNetwork loses, delays and reorders the handshake, too.
func TestKeyOverBadNetwork(t *testing.T) {
	m := startManager(t, clienttest.Echo(16), clienttest.ManagerOptions{Key: []byte(functionKey)})
	faults := clienttest.Faults{Lose: 0.05, Repeat: 0.1, Delay: 0.3, MaxDelay: 2 * time.Millisecond, Seed: 1}
	r := startRelay(t, m.Addr(), faults, faults)
	c := dial(t, r.Addr(), client.Options{KeyFile: keyFile(t, functionKey), ResendAfter: 20 * time.Millisecond})
	for i := range 40 {
		if _, err := c.Do(t.Context(), make([]byte, 5000), client.RequestOptions{}); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if i%10 == 0 {
			m.ExpireToken()
		}
	}
}

func TestKeyRefused(t *testing.T) {
	m := startManager(t, clienttest.Echo(16), clienttest.ManagerOptions{Key: []byte(functionKey)})
	for name, file := range map[string]string{"none": "", "another": keyFile(t, "a key of another function\n"+functionKey)} {
		c := dial(t, m.Addr(), client.Options{KeyFile: file})
		for range 3 {
			r, err := c.Do(t.Context(), make([]byte, 5000), client.RequestOptions{})
			if !errors.Is(err, client.ErrKey) || !r.NeedsToken || r.Status != client.StatusRefused {
				t.Errorf("%s: got %+v, %v", name, r, err)
			}
		}
	}
	if runs, _ := m.Requests(); runs != 0 {
		t.Errorf("%d requests were run", runs)
	}
	if _, err := client.Dial(context.Background(), m.Addr().String(), client.Options{KeyFile: keyFile(t, "short")}); err == nil {
		t.Error("Dial takes a key of 5 characters")
	}
}

// TestKeyChanges gives the client another key in its file while it runs.
func TestKeyChanges(t *testing.T) {
	m := startManager(t, clienttest.Echo(16), clienttest.ManagerOptions{Key: []byte(functionKey)})
	file := keyFile(t, "an old key of the function")
	c := dial(t, m.Addr(), client.Options{KeyFile: file})
	if _, err := c.Do(t.Context(), []byte{1}, client.RequestOptions{}); !errors.Is(err, client.ErrKey) {
		t.Fatalf("the old key: %v", err)
	}
	must.OK(t, os.WriteFile(file, []byte(functionKey), 0o600))
	if _, err := c.Do(t.Context(), []byte{1}, client.RequestOptions{}); err != nil {
		t.Errorf("the new key: %v", err)
	}
}

// TestForgedHello sends answers to hellos that the client did not send.
func TestForgedHello(t *testing.T) {
	manager := make(chan *clienttest.Manager, 1)
	forged := func(q clienttest.Request) (wire.Result, []byte, bool) {
		m := <-manager
		for _, kind := range []wire.Type{wire.TypeHello, wire.TypeProof} {
			m.Inject(q.From, (&wire.Hello{Value: 1}).Append(nil, kind))
			m.Inject(q.From, (&wire.Hello{}).Append(nil, kind))
		}
		return wire.Result{Status: wire.StatusLate}, nil, true
	}
	m := startManager(t, forged, clienttest.ManagerOptions{})
	manager <- m
	c := dial(t, m.Addr(), client.Options{KeyFile: keyFile(t, functionKey)})
	var late client.StatusError
	if _, err := c.Do(t.Context(), []byte{1}, client.RequestOptions{}); !errors.As(err, &late) {
		t.Fatal(err)
	}
	if s := c.Stats(); s.Foreign != 4 || len(s.Malformed) != 0 {
		t.Errorf("the client counts %+v", s)
	}
}
