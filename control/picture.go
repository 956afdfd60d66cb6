package control

import (
	"context"
	"net/netip"
	"net/url"
	"time"

	"github.com/penstock/penstock/wire"
)

// PicturePath returns the newest Picture of a function as JSON. The query names the function.
const PicturePath = "/picture"

// MaxPictureBytes is the size of the largest request of which a Picture is kept. As JSON it must
// fit into an answer.
const MaxPictureBytes = 8 << 20

// Picture is a copy of a request that was answered ok, with its answer.
type Picture struct {
	// Number rises with each picture of a function.
	Number uint64 `json:"number"`
	// From is the client's address.
	From netip.AddrPort `json:"from"`
	// Answered is when the answer was sent, Latency how long after the first packet's arrival.
	Answered time.Time     `json:"answered"`
	Latency  time.Duration `json:"latency_ns"`
	// ModelVersion, Kind and Payload are those of the wire. Payload is empty for raw outputs.
	ModelVersion uint32    `json:"model_version"`
	Kind         wire.Kind `json:"kind"`
	Payload      []byte    `json:"payload"`
	// Pixels are the request's bytes. Without Shape they are as the card says.
	Pixels []byte       `json:"pixels"`
	Shape  wire.Picture `json:"shape,omitzero"`
}

// ReadPicture asks the manager whose runtime folder is dir for the newest picture of a function.
func ReadPicture(ctx context.Context, dir, function string) (Picture, error) {
	return read[Picture](ctx, dir, PicturePath+"?function="+url.QueryEscape(function))
}
