package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/publish"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/wire"
)

// publishingGateway serves the fake node's functions and writes the answers to a file.
func publishingGateway(t *testing.T, answer clienttest.Handler) (web *httptest.Server, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "answers.jsonl")
	s := newServer(Options{
		Dir: fakeNode(t, answer), Version: "test", Log: zerolog.Nop(),
		Publish: []configs.Publish{{Name: "log", Kind: configs.PublishJSONL, File: file, Every: time.Hour}},
	})
	must.OK(t, s.functions.Refresh(t.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.publishers.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	web = httptest.NewServer(ownAccess(t).guard(s.routes()))
	t.Cleanup(web.Close)
	return web, file
}

// published waits until a file has n lines.
func published(t *testing.T, file string, n int) (answers []publish.Answer) {
	t.Helper()
	var text []byte
	wait.For(t, fmt.Sprintf("%d lines in %s", n, file), func() bool {
		text, _ = os.ReadFile(file) // it is made with the first answer
		return bytes.Count(text, []byte("\n")) >= n
	})
	for line := range bytes.Lines(text) {
		var a publish.Answer
		if err := json.Unmarshal(line, &a); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		answers = append(answers, a)
	}
	return answers
}

// Each picture of HTTP inference is published with its boxes, however it came.
func TestPublishHTTP(t *testing.T) {
	web, file := publishingGateway(t, oneBox)
	post(t, web.URL+"/v2/models/finder/infer", "image/jpeg", photo(t, 400, 200))
	tensor := `{"inputs": [{"name": "image", "shape": [2, 4, 4, 3], "datatype": "UINT8", "data": [` + strings.TrimSuffix(strings.Repeat("1,", 96), ",") + `]}]}`
	if response, text := post(t, web.URL+"/v2/models/finder/infer", "application/json", []byte(tensor)); response.StatusCode != 200 {
		t.Fatal(text)
	}
	post(t, web.URL+"/v2/models/finder/infer", "application/json", []byte("{}")) // not the function's answer

	answers := published(t, file, 3)
	if len(answers) != 3 {
		t.Errorf("%+v", answers)
	}
	for i, want := range []struct {
		width, height int
		box           [4]int
	}{{400, 200, [4]int{100, 0, 300, 200}}, {4, 4, [4]int{1, 1, 3, 3}}, {4, 4, [4]int{1, 1, 3, 3}}} {
		a := answers[i]
		if a.Stream != "http" || a.Function != "finder" || a.Status != "ok" || a.Model != 3 || a.Width != want.width || a.Height != want.height ||
			len(a.Found) != 1 || a.Found[0].Label != "dog" || [4]int(a.Found[0].Box) != want.box || a.StagesMS["infer"] != 5 {
			t.Errorf("%+v, want %+v", a, want)
		}
	}

	// An answer is counted after it is written.
	var list []publish.Status
	if !wait.Until(func() bool {
		response, err := http.Get(web.URL + "/api/publish")
		must.OK(t, err)
		list = nil
		err = json.NewDecoder(response.Body).Decode(&list)
		response.Body.Close()
		return err == nil && len(list) == 1 && list[0].Name == "log" && list[0].Sent == 3 && list[0].State == publish.Running
	}) {
		t.Fatalf("publishers %+v", list)
	}
}

// An answer that is late is published, too.
func TestPublishLate(t *testing.T) {
	web, file := publishingGateway(t, status(wire.StatusLate))
	post(t, web.URL+"/v2/models/finder/infer", "image/jpeg", photo(t, 40, 20))
	if a := published(t, file, 1)[0]; a.Status != "late" || a.Error == "" || len(a.Found) != 0 {
		t.Errorf("%+v", a)
	}
}
