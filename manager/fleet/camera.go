package fleet

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/cameras"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// checkCamera returns an error if a camera that sends in a format cannot send what a function takes.
func checkCamera(c *configs.Function, in *models.Input) error {
	r := readerOf(c, in)
	switch {
	case r == nil:
		return nil
	case len(in.Parts) > 0:
		return fmt.Errorf("is %s, and the model takes tensors; want a model that takes pictures", c.Format)
	case !in.IsPicture():
		return fmt.Errorf("is %s, and the model takes %d channels of %s; want a model that takes pictures (u8, 1 or 3 channels)", c.Format, in.Channels, in.WireType)
	case r.Shape.Format == 0 && r.Largest == 0:
		return fmt.Errorf("is %s, and the model takes %s; want a card with `wire: {layout: hwc}`, or max_picture", c.Format, in.WireLayout)
	case max(r.Shape.Width, r.Shape.Height) > maxCameraSide:
		return fmt.Errorf("is %s, with pictures of %d x %d pixels; want at most %d on each side", c.Format, r.Shape.Width, r.Shape.Height, maxCameraSide)
	case r.Shape.Format == 0:
		return nil
	}
	if err := cameras.CheckShape(r.Shape, maxRequestBytes); err != nil {
		return fmt.Errorf("is %s, whose %w", c.Format, err)
	}
	return nil
}

// maxCameraSide is the max width and height of a picture in both formats: RFC 4175 has 15 bits for
// each.
const maxCameraSide = 1<<15 - 1

// rtpFormats are the pixels of cameras over RTP.
var rtpFormats = map[configs.Format]wire.PictureFormat{
	configs.FormatRFC4175:       wire.FormatRGB8,
	configs.FormatRFC4175BGR:    wire.FormatBGR8,
	configs.FormatRFC4175UYVY:   wire.FormatUYVY,
	configs.FormatRFC4175UYVY10: wire.FormatUYVY10,
	configs.FormatRFC4175YYYYUV: wire.FormatYYYYUV,
	configs.FormatRFC4175RGB10:  wire.FormatRGB10,
}

// readerOf returns the reader of a camera's packets; nil for Penstock's protocol. Without max_picture the camera's picture has
// the card's size, and that of GVSP the card's format, too.
func readerOf(c *configs.Function, in *models.Input) *cameras.Reader {
	r := &cameras.Reader{Format: cameras.GVSP, Largest: c.MaxPicture.Bytes()}
	own, colours := in.Picture(), wire.Colours(slices.Index(wire.ColourNames[:], cmp.Or(c.Colours, "bt601")))
	switch format, rtp := rtpFormats[c.Format]; {
	case c.Format == "":
		return nil
	case rtp:
		r.Format, r.Shape = cameras.RFC4175, wire.Picture{Format: format, Width: in.Width, Height: in.Height, Colours: colours}
		if r.Largest > 0 {
			r.Shape.Width, r.Shape.Height = c.MaxPicture.Size()
		}
		if r.Shape.Stride = r.Shape.RowBytes(); r.Shape != own {
			r.Largest = max(r.Largest, r.PictureBytes())
		}
	case r.Largest > 0:
		r.Shape.Colours = colours // of leaders' pictures
	default:
		r.Shape = own
	}
	return r
}

// answersTo returns the receiver of a function's answers about pictures of cameras. It is not valid
// if they are not sent.
func answersTo(c *configs.Function) netip.AddrPort {
	if c.AnswersTo == nil {
		return netip.AddrPort{}
	}
	return *c.AnswersTo
}

// status describes the function's cameras for users; nil if it takes Penstock's protocol.
func (c *camera) status(config *configs.Function, requests *aggregate.Stats, log zerolog.Logger) *control.CameraStatus {
	if c == nil {
		return nil
	}
	c.note(requests, log)
	s := &control.CameraStatus{
		Format:  string(config.Format),
		Refused: requests.Refused, RefusedWhy: c.Explain(c.refusals.why), Incomplete: requests.Incomplete,
	}
	if to := answersTo(config); to.IsValid() {
		s.AnswersTo = to.String()
	}
	return s
}

// camera is what a function knows of its cameras.
type camera struct {
	*cameras.Reader
	refusals refusals
}

// maxMinFragment is the max of the min size of a fragment. A camera may send each line of a picture
// in a packet, however short the lines are.
func (c *camera) maxMinFragment() int {
	if c == nil || c.Shape.Format == 0 {
		return math.MaxInt
	}
	return c.Shape.RowBytes()
}

// note notes why the model does not take pictures of cameras, and logs another reason.
func (c *camera) note(requests *aggregate.Stats, log zerolog.Logger) {
	if c.refusals.note(requests, runclock.Now()) {
		log.Warn().Str("reason", c.Explain(c.refusals.why)).Msg("refusing pictures of a camera")
	}
}

// refusals says why the model does not take pictures of cameras now.
type refusals struct {
	why   cameras.Refusal // zero if it takes them
	count uint64          // of refused pictures
	at    time.Duration   // when count last grew

	complete uint64 // pictures that were not refused
}

// refusalShown is how long the reason is shown, in running time, although other pictures come.
const refusalShown = 10 * time.Second

// note compares a function's counters with those before. It reports whether there is another reason.
//
// The reason disappears when pictures arrive and none was refused for refusalShown. A camera that
// sends nothing has not been repaired, and another camera may send to the same function.
func (r *refusals) note(s *aggregate.Stats, now time.Duration) (changed bool) {
	accepted := s.Complete > r.complete
	r.complete = s.Complete
	switch {
	case s.Refused > r.count:
		changed = s.Refusal != r.why
		r.why, r.count, r.at = s.Refusal, s.Refused, now
	case accepted && now-r.at >= refusalShown:
		r.why = cameras.Refusal{}
	}
	return changed
}
