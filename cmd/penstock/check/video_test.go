package check

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/gateway/stream"
)

func TestVideo(t *testing.T) {
	for name, c := range map[string]struct {
		version  string
		err      error
		hwaccels string
		devices  []string
		ok       bool
		want     []string
	}{
		"missing":    {err: stream.ErrNoFFmpeg, want: []string{"ffmpeg is not installed", "apt-get install ffmpeg"}},
		"broken":     {err: errors.New("exit status 127"), want: []string{"run ffmpeg: exit status 127"}},
		"silent":     {version: "ffmpeg", want: []string{"does not print its version"}},
		"old":        {version: "ffmpeg version 4.4.2-0ubuntu0 Copyright", want: []string{"4.4.2-0ubuntu0", "5.1 or later"}},
		"Debian 12":  {version: "ffmpeg version 5.1.9-0+deb12u1 Copyright", ok: true, want: []string{"version 5.1.9-0+deb12u1", "none"}},
		"from git":   {version: "ffmpeg version N-114000-gabc Copyright", ok: true, want: []string{"version N-114000-gabc"}},
		"no devices": {version: "ffmpeg version n7.1 Copyright", ok: true, hwaccels: "vdpau\nvaapi\n", want: []string{"no device for vdpau, vaapi"}},
		"a device":   {version: "ffmpeg version 8 Copyright", ok: true, hwaccels: "vdpau\nvaapi\n", devices: []string{"vaapi"}, want: []string{"--hwaccel vaapi"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &machine{ffmpeg: func(_ context.Context, args ...string) (string, error) {
				switch {
				case c.err != nil:
					return "", c.err
				case args[0] == "-version":
					return c.version, nil
				case args[0] == "-hwaccels":
					return "Hardware acceleration methods:\n" + c.hwaccels, nil
				case slices.ContainsFunc(c.devices, func(d string) bool { return slices.Contains(args, d) }):
					return "", nil
				}
				return "", errors.New("exit status 1")
			}}
			r := run(t.Context(), m, videoChecks)
			var text strings.Builder
			r.Print(&text)
			if r[0].OK != c.ok || !r.Healthy() {
				t.Errorf("%+v", r)
			}
			for _, want := range c.want {
				if !strings.Contains(text.String(), want) {
					t.Errorf("%s, want %s", &text, want)
				}
			}
		})
	}
}
