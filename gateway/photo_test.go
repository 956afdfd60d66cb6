package gateway

import (
	"image"
	"slices"
	"testing"

	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// The map of a photo has no cells of the padding around it.
func TestMapOfPhoto(t *testing.T) {
	s := newTestServer(t, func(clienttest.Request) (wire.Result, []byte, bool) {
		r := wire.Result{Status: wire.StatusOK, Kind: wire.KindMap, Batch: 1, Credit: 64, ModelVersion: 3}
		return r, append(wire.AppendMapHead(nil, wire.MapU8, 4, 4), 9, 9, 9, 9, 255, 0, 255, 0, 0, 255, 0, 255, 9, 9, 9, 9), true
	})
	f := must.Get(s.functions.Function("finder"))(t)
	a, _, err := f.InferPhoto(t.Context(), image.NewGray(image.Rect(0, 0, 400, 200)), functions.Wanted{})
	must.OK(t, err)
	if want := []float32{1, 0, 1, 0, 0, 1, 0, 1}; a.Map.Rows != 2 || a.Map.Columns != 4 || !slices.Equal(a.Map.Values, want) {
		t.Errorf("%+v, want 2 rows: %v", a.Map, want)
	}
}
