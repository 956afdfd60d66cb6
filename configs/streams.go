package configs

import (
	"strings"

	"github.com/penstock/penstock/models/document"
)

// Stream is a source of video that the gateway keeps running.
type Stream struct {
	// Name in the log and in the gateway's answers.
	Name string `yaml:"name" required:"true" pattern:"^[a-z0-9][a-z0-9_-]{0,63}$" want:"lower case letters, digits, '-' and '_', at most 64" example:"door"`
	// Video that ffmpeg reads: an address like rtsp://..., a device like /dev/video0, or a file. A file is
	// relative to the configuration. It plays at its own pace and begins again at its end.
	Source string `yaml:"source" required:"true" want:"an address like rtsp://camera/main, a file, or a device" example:"rtsp://camera/main"`
	// Functions that get the frames.
	To []string `yaml:"to" required:"true" minItems:"1" maxItems:"16" unique:"true" pattern:"^[a-z0-9][a-z0-9_-]{0,63}$" want:"the name of a function" example:"[face]"`
	// A hardware decoder of ffmpeg; penstock doctor lists them.
	HWAccel string `yaml:"hwaccel,omitempty" pattern:"^[a-z0-9_]{1,32}$" want:"ffmpeg's name of a hardware decoder, like vaapi" example:"vaapi"`
}

// isFile reports whether a source is a file or a device instead of an address.
func (s *Stream) isFile() bool { return s.Source != "" && !strings.Contains(s.Source, "://") }

// checkStreams finds faults of streams that the rules of the single keys do not cover. Errors never
// contain a source, because it may contain a password.
func (c *Config) checkStreams(root document.Value) {
	if c.Gateway.Off && len(c.Streams) > 0 {
		root.Find("streams").Reject("run in the gateway, which is off; want `gateway: off` or streams left out")
	}
	names := map[string]bool{}
	for i, s := range c.Streams {
		at := root.Find("streams", i)
		if s.Name != "" && names[s.Name] {
			at.Find("name").Reject("is %q, which another stream has", s.Name)
		}
		names[s.Name] = true
		if s.Source == "-" {
			at.Find("source").Reject("is standard input, which only `penstock stream` reads; want an address, a file or a device")
		}
	}
}
