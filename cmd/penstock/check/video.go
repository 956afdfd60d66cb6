package check

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/penstock/penstock/gateway/stream"
)

// No node needs ffmpeg unless it has streams.
var videoChecks = []row{
	{subject: "ffmpeg", run: ffmpegVersion},
	{subject: "video decoders", applies: func(m *machine) bool { return m.ffmpeg != nil }, run: hardwareDecoders},
}

// oldestFFmpeg is the first version with the options that streams need (-fps_mode).
var oldestFFmpeg = [2]int{5, 1}

// ffmpegTimeout is how long one call of ffmpeg may take. A call that opens a decoder loads a driver.
const ffmpegTimeout = 5 * time.Second

// runFFmpeg returns what ffmpeg prints.
func runFFmpeg(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, ffmpegTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, "ffmpeg", append([]string{"-hide_banner", "-nostdin"}, args...)...)
	command.WaitDelay = time.Second
	out, err := command.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", stream.ErrNoFFmpeg
	}
	return string(out), err
}

func ffmpegVersion(ctx context.Context, m *machine) Finding {
	const fix = "apt-get install ffmpeg"
	text, err := m.ffmpeg(ctx, "-version")
	if errors.Is(err, stream.ErrNoFFmpeg) {
		return fail("ffmpeg is not installed; penstock stream and streams: do not work", fix)
	}
	if err != nil {
		return failed(fmt.Errorf("run ffmpeg: %w", err))
	}
	words := strings.Fields(text)
	if len(words) < 3 {
		return fail("ffmpeg does not print its version", fix)
	}
	version := words[2]
	// 5.1.9-0+deb12u1, n7.1 or 8. Builds from git are called N-12345-g0123456; they are newer.
	var major, minor int
	read, _ := fmt.Sscanf(strings.TrimPrefix(version, "n"), "%d.%d", &major, &minor)
	if read > 0 && (major < oldestFFmpeg[0] || major == oldestFFmpeg[0] && minor < oldestFFmpeg[1]) {
		return fail(fmt.Sprintf("version %s; streams need %d.%d or later", version, oldestFFmpeg[0], oldestFFmpeg[1]), fix)
	}
	return pass("version " + version)
}

// hardwareDecoders opens a device of each kind that ffmpeg was built with.
func hardwareDecoders(ctx context.Context, m *machine) Finding {
	text, err := m.ffmpeg(ctx, "-hwaccels")
	if err != nil {
		return pass("none; ffmpeg decodes on the CPU")
	}
	var works, without []string
	_, names, _ := strings.Cut(text, "\n") // the first line is a heading
	for _, name := range strings.Fields(names) {
		if _, err := m.ffmpeg(ctx, "-loglevel", "quiet", "-init_hw_device", name, "-f", "lavfi", "-i", "color=size=16x16", "-frames:v", "1", "-f", "null", "-"); err == nil {
			works = append(works, name)
		} else {
			without = append(without, name)
		}
	}
	switch {
	case len(works) > 0:
		return pass("--hwaccel " + strings.Join(works, ", "))
	case len(without) > 0:
		return pass("none; ffmpeg decodes on the CPU, and finds no device for " + strings.Join(without, ", "))
	}
	return pass("none; ffmpeg decodes on the CPU")
}
