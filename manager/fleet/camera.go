package fleet

import (
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
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/wire"
)

// checkCamera returns an error if a camera that sends in a format cannot send what a function takes.
func checkCamera(c *configs.Function, in *models.Input) error {
	format := c.Format
	if r := readerOf(c, in); r != nil && r.Largest > 0 && len(in.Parts) == 0 {
		if r.Format == cameras.RFC4175 {
			if max(r.Width, r.Height) > maxCameraSide {
				return fmt.Errorf("is %s, and max_picture is %s; want at most %d on each side", format, c.MaxPicture, maxCameraSide)
			}
			return r.Shape.Check(r.PictureBytes(), r.Largest)
		}
		return nil
	}
	channels, wanted := []int{3}, "3"
	if format == configs.FormatGVSP {
		channels, wanted = []int{1, 3}, "1 or 3"
	}
	switch {
	case format == "":
		return nil
	case len(in.Parts) > 0:
		return fmt.Errorf("is %s, and the model takes tensors; want a model that takes pictures", format)
	case !slices.Contains(channels, in.Channels):
		return fmt.Errorf("is %s, and the model takes %d channels; want a model with %s", format, in.Channels, wanted)
	case in.WireType != models.U8 || in.WireLayout != models.HWC:
		return fmt.Errorf("is %s, and the model takes %s in the order %s; want a card with `wire: {type: u8, layout: hwc}`", format, in.WireType, in.WireLayout)
	case format == configs.FormatRFC4175UYVY && in.Width%2 != 0:
		return fmt.Errorf("is %s, and the model takes lines of %d pixels; want an even number", format, in.Width)
	case max(in.Width, in.Height) > maxCameraSide:
		return fmt.Errorf("is %s, and the model takes %d x %d pixels; want at most %d on each side", format, in.Width, in.Height, maxCameraSide)
	}
	return nil
}

// uyvyBytes is the size of a pixel in UYVY.
const uyvyBytes = 2

// maxCameraSide is the max width and height of a picture in both formats: RFC 4175 has 15 bits for
// each.
const maxCameraSide = 1<<15 - 1

// readerOf returns the reader of a camera's packets; nil for Penstock's protocol.
func readerOf(c *configs.Function, in *models.Input) *cameras.Reader {
	r := &cameras.Reader{Format: cameras.RFC4175, Width: in.Width, Height: in.Height, PixelBytes: in.Channels}
	if r.Largest = c.MaxPicture.Bytes(); r.Largest > 0 {
		r.Width, r.Height = c.MaxPicture.Size()
		r.PixelBytes, r.Shape = 3, wire.Picture{Format: wire.FormatRGB8, Width: r.Width, Height: r.Height}
	}
	switch c.Format {
	case "":
		return nil
	case configs.FormatGVSP:
		r.Format, r.Shape = cameras.GVSP, wire.Picture{}
	case configs.FormatRFC4175BGR:
		r.Shape.Format = wire.FormatBGR8
	case configs.FormatRFC4175UYVY:
		r.PixelBytes, r.Shape.Format = uyvyBytes, wire.FormatUYVY
	}
	if r.Largest == 0 {
		r.Shape = wire.Picture{}
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

// wireCard returns a card as the processes need it: its picture as it arrives. A camera may send the
// channels in reverse order, which costs the gather nothing, or UYVY.
func wireCard(c *configs.Function, card *models.Card) *models.Card {
	changed := *card
	if c.MaxPicture != "" {
		return card // each request says its format
	}
	switch c.Format {
	case configs.FormatRFC4175BGR:
		changed.Input.ReverseChannels = !card.Input.ReverseChannels
	case configs.FormatRFC4175UYVY:
		changed.Input.UYVY = true
	default:
		return card
	}
	return &changed
}

// toRGB returns a camera's picture as clients send it. It may change the given one.
func toRGB(format configs.Format, in *models.Input, pixels []byte) []byte {
	switch format {
	case configs.FormatRFC4175BGR:
		for i := 0; i+2 < len(pixels); i += 3 {
			pixels[i], pixels[i+2] = pixels[i+2], pixels[i]
		}
	case configs.FormatRFC4175UYVY:
		uyvy := wire.Picture{Format: wire.FormatUYVY, Width: in.Width, Height: in.Height}
		pixels, _ = picture.Resize(&picture.Raw{Shape: uyvy, Pix: pixels}, in)
	}
	return pixels
}

// camera is what a function knows of its cameras.
type camera struct {
	*cameras.Reader
	refusals refusals
}

// maxMinFragment is the max of the min size of a fragment. A camera may send each line of a picture
// in a packet, however short the lines are.
func (c *camera) maxMinFragment() int {
	if c == nil || c.Format == cameras.GVSP && c.Largest > 0 {
		return math.MaxInt
	}
	return c.Width * c.PixelBytes
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
