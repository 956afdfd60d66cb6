package manager

import (
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/observe"
)

// The status port answers next to connections that send nothing, and not to pages of other sites.
func TestStatusPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	web := &servers{}
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok")) })
	web.serve(l, ownPages(page, true), zerolog.Nop())
	defer web.close()
	for range 3 * maxConnections {
		c, err := net.Dial("tcp", l.Addr().String())
		must.OK(t, err)
		defer c.Close()
	}

	client := http.Client{Timeout: 10 * time.Second}
	for _, c := range []struct {
		name, host, site string
		want             int
	}{
		{"own", "", "", 200},
		{"name of this machine", "localhost:9650", "none", 200},
		{"another name", "evil.example", "", 403},
		{"a port that is a name", "localhost:evil.example", "", 403},
		{"page of another site", "", "cross-site", 403},
	} {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String(), nil)
		request.Host = c.host
		if c.site != "" {
			request.Header.Set("Sec-Fetch-Site", c.site)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		response.Body.Close()
		if response.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", c.name, response.Status, c.want)
		}
	}
	request := httptest.NewRequest(http.MethodGet, "http://node.example:9650/", nil)
	answer := httptest.NewRecorder()
	if ownPages(page, false).ServeHTTP(answer, request); answer.Code != 200 {
		t.Errorf("on another address than loopback: %d %s", answer.Code, answer.Body)
	}
}

// Offered requests are also those turned away for lack of room, but not those that the model does not take.
func TestRates(t *testing.T) {
	s := observe.Snapshot{
		Status: control.Status{Functions: []control.FunctionStatus{{Name: "a"}, {Name: "b"}}},
		Functions: []observe.Function{
			{Serving: true, Planned: 50, Stats: datapath.Stats{Requests: aggregate.Stats{
				Begun: 100, Complete: 90, Busy: 20, Refused: 7, Shed: 3, Gathering: 2, InFlight: 4,
			}}},
			{},
		},
	}
	want := control.Rates{Functions: []control.FunctionRate{{Name: "a", Offered: 120, Planned: 50, Ready: true, Waiting: 6}, {Name: "b"}}}
	if got := ratesOf(s); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
