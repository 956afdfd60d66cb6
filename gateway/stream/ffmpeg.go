package stream

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/wire"
)

// ErrNoFFmpeg is returned if the program cannot be found.
var ErrNoFFmpeg = errors.New("ffmpeg is not installed; `apt-get install ffmpeg` installs it")

// Input says what is decoded, and how.
type Input struct {
	Address Address
	// Raw describes the frames of standard input; nil if they are in a container.
	Raw *Raw
	// Live: frames come at the source's own pace, a file's too, and a late frame is worth little.
	Live bool
	// Largest is the size of the largest frame, in bytes: ffmpeg shrinks a larger one. 0 is no limit.
	Largest int
	// HWAccel is ffmpeg's name of a hardware decoder, empty for none.
	HWAccel string
	// FFmpeg is the program, "ffmpeg" if empty.
	FFmpeg string
	// FirstFrame is how long the first frame may take, NextFrame each one after it. The defaults
	// are 30 s (a camera may send a key frame every 10 s) and 10 s. They do not hold for
	// standard input, whose writer may pause.
	FirstFrame, NextFrame time.Duration
	Log                   zerolog.Logger
}

// The defaults of Input.
const (
	firstFrame = 30 * time.Second
	nextFrame  = 10 * time.Second
)

const (
	// maxLine is the longest line of ffmpeg's that is read whole, in bytes.
	maxLine = 16 << 10
	// maxAhead is how many frames ffmpeg may describe before it writes them. It decodes a few
	// ahead, one per thread at most.
	maxAhead = 1 << 12
	// endTimeout is how long ffmpeg may take to end after its last frame.
	endTimeout = 5 * time.Second
	// pipeBytes is the wanted size of the pipe, in bytes. The kernel may refuse it.
	pipeBytes = 1 << 20
)

// frameInfo is what ffmpeg says of a frame before it writes it.
type frameInfo struct {
	wire.Picture
	pts   time.Duration
	timed bool // pts is known
}

// Decoder is a running ffmpeg. One goroutine uses it; Close may be called by any.
type Decoder struct {
	input     Input
	process   *process
	frames    *os.File // raw frames
	lines     *os.File // what ffmpeg says
	infos     chan frameInfo
	described chan struct{} // closed when all of lines was read
	next      frameInfo     // of read's: described without its colours
	spare     sync.Pool     // of *picture.Raw

	mu      sync.Mutex // guards below
	rate    float64    // frames per second that the source announces; 0 if it does not
	failure string     // ffmpeg's line that says best why it failed

	count uint64
	last  time.Duration // pts of the last frame
}

// process is a running ffmpeg.
type process struct {
	process *os.Process
	ended   chan struct{}
	err     error // of Wait, once ended
}

// startProcess starts a command that dies with this process. The thread that starts it must
// stay, because the kernel sends PDEATHSIG when that thread ends. With a guard, that is not nil,
// unguarded gets the reason if the guard cannot be installed.
func startProcess(command *exec.Cmd, g *guard, unguarded func(error)) (*process, error) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread, which may have a filter, ends with this goroutine
		if g != nil {
			stop, stopped, err := os.Pipe()
			if err == nil {
				if err = g.install(); err == nil {
					defer stopped.Close()
					go g.serve(stop)
				} else {
					stop.Close()
					stopped.Close()
				}
			}
			if err != nil {
				unguarded(err)
			}
		}
		err := command.Start()
		if err == nil {
			p.process = command.Process
		}
		started <- err
		if err != nil {
			return
		}
		p.err = command.Wait()
		close(p.ended)
	}()
	if err := <-started; err != nil {
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			return nil, ErrNoFFmpeg
		}
		return nil, fmt.Errorf("start ffmpeg: %w", err)
	}
	return p, nil
}

// kill ends the process and waits.
func (p *process) kill() {
	_ = p.process.Kill() // it may have ended
	<-p.ended
}

// wait waits for the end, and kills a process that does not come to it.
func (p *process) wait(patience time.Duration) error {
	select {
	case <-p.ended:
		return p.err
	case <-time.After(patience):
		p.kill()
		return fmt.Errorf("it did not end within %s and was killed", patience)
	}
}

// Open starts ffmpeg. The caller closes the decoder.
func Open(input Input) (*Decoder, error) {
	input.FFmpeg = cmp.Or(input.FFmpeg, "ffmpeg")
	input.FirstFrame, input.NextFrame = cmp.Or(input.FirstFrame, firstFrame), cmp.Or(input.NextFrame, nextFrame)
	args, list := input.arguments()
	command := exec.Command(input.FFmpeg, args...)
	command.Env = environment()
	if input.Address.kind == standardInput {
		command.Stdin = os.Stdin
	}

	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	frames, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open pipe to ffmpeg: %w", err)
	}
	theirs = append(theirs, out)
	lines, stderr, err := os.Pipe()
	if err != nil {
		frames.Close()
		return nil, fmt.Errorf("open pipe to ffmpeg: %w", err)
	}
	theirs = append(theirs, stderr)
	command.Stdout, command.Stderr = out, stderr
	if list != "" {
		address, err := inPipe(list)
		if err != nil {
			frames.Close()
			lines.Close()
			return nil, err
		}
		theirs = append(theirs, address)
		command.ExtraFiles = []*os.File{address}
	}
	setPipeSize(frames)

	d := &Decoder{input: input, frames: frames, lines: lines, infos: make(chan frameInfo, maxAhead), described: make(chan struct{})}
	unguarded := func(err error) {
		input.Log.Warn().Err(err).Msg("not enforced: the source may lead to addresses of this machine")
	}
	if d.process, err = startProcess(command, newGuard(input.Address, d.refuse), unguarded); err != nil {
		frames.Close()
		lines.Close()
		return nil, err
	}
	go d.read()
	return d, nil
}

// inPipe returns a pipe that holds a short text.
func inPipe(text string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open pipe to ffmpeg: %w", err)
	}
	defer w.Close()
	if _, err := io.WriteString(w, text); err != nil { // at most maxAddress: the pipe has room
		r.Close()
		return nil, fmt.Errorf("write address for ffmpeg: %w", err)
	}
	return r, nil
}

func setPipeSize(f *os.File) {
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeBytes) })
	}
}

// environment is ours without what makes ffmpeg write files or colours.
func environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "FFREPORT=") || strings.HasPrefix(v, "AV_LOG_FORCE_")
	})
	return append(env, "AV_LOG_FORCE_NOCOLOR=1")
}

// arguments are ffmpeg's. Frames keep their own size (-autoscale 0), time (passthrough) and, if it is 4:2:0, format. The filter
// scale copies nothing unless the size is odd or too large. showinfo describes each frame on standard error. Without "-thread_type slice" the encoder of
// raw frames holds back a frame per thread, and without "-avioflags direct" ffmpeg copies each frame once more.
func (in Input) arguments() (args []string, list string) {
	args = []string{"-hide_banner", "-nostdin", "-nostats", "-loglevel", "level+info"}
	if in.HWAccel != "" {
		args = append(args, "-hwaccel", in.HWAccel)
	}
	args = append(args, "-max_pixels", strconv.Itoa(picture.MaxPixels))
	switch {
	case in.Live && in.Address.kind == file:
		args = append(args, "-re")
	case in.Live:
		// Decode without reordering delay, and do not analyze for five seconds.
		args = append(args, "-flags", "low_delay", "-analyzeduration", "1000000")
	}
	source, list := in.Address.input(in.Raw)
	args = append(args, source...)
	shrink := "1"
	if in.Largest > 0 {
		shrink = fmt.Sprintf("min(1,sqrt(%d/(1.5*iw*ih)))", in.Largest)
	}
	return append(args, "-map", "0:v:0", "-an", "-sn", "-dn", "-autoscale", "0", "-fps_mode", "passthrough",
		"-vf", "scale=w='2*max(1,trunc(iw/2*"+shrink+"))':h='2*max(1,trunc(ih/2*"+shrink+"))',format=yuv420p|yuvj420p|nv12,sidedata=mode=delete,showinfo@frames=checksum=0",
		"-c:v", "rawvideo", "-thread_type", "slice", "-f", "rawvideo", "-flush_packets", "1", "-avioflags", "direct", "pipe:1"), list
}

var (
	frameLine = regexp.MustCompile(`^\[showinfo@frames @ 0x[0-9a-f]+\] \[info\] n: *\d+ pts: *\S+ pts_time:(\S+) .*\bfmt:(nv12|yuvj?420p) .*\bs:(\d{1,6})x(\d{1,6})\b`)
	// colourLine ends the description of a frame.
	colourLine = regexp.MustCompile(`^\[showinfo@frames @ 0x[0-9a-f]+\] \[info\] color_range:(\S+) color_space:(\S+)`)
	rateLine   = regexp.MustCompile(`^\[showinfo@frames @ 0x[0-9a-f]+\] \[info\] config in .*frame_rate: (\d{1,9})/(\d{1,9})`)
	errorLine  = regexp.MustCompile(`^(?:\[[^\]]* @ 0x[0-9a-f]+\] )?\[(?:error|fatal|panic)\] (.*)`)
)

// read takes ffmpeg's lines until it ends.
func (d *Decoder) read() {
	defer close(d.described)
	defer close(d.infos)
	in := bufio.NewReaderSize(d.lines, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		text := strings.TrimRight(string(line), "\r\n")
		for errors.Is(err, bufio.ErrBufferFull) { // drop the rest
			_, err = in.ReadSlice('\n')
		}
		if !d.take(text) {
			d.setError(fmt.Sprintf("it described %d frames and wrote none", maxAhead))
			d.process.kill()
			return
		}
		if err != nil {
			return
		}
	}
}

// take reads one line. It returns false if too many frames are described.
func (d *Decoder) take(line string) bool {
	if m := frameLine.FindStringSubmatch(line); m != nil {
		info := frameInfo{}
		info.Format = wire.FormatI420
		if m[2] == "nv12" {
			info.Format = wire.FormatNV12
		}
		info.Width, _ = strconv.Atoi(m[3]) // digits
		info.Height, _ = strconv.Atoi(m[4])
		if s, err := strconv.ParseFloat(m[1], 64); err == nil {
			info.pts, info.timed = time.Duration(s*float64(time.Second)), true
		}
		d.next = info
		return true
	}
	if m := colourLine.FindStringSubmatch(line); m != nil {
		d.next.Colours = map[string]wire.Colours{"bt709": wire.BT709, "bt2020nc": wire.BT2020}[m[2]]
		if m[1] == "pc" {
			d.next.Colours |= wire.FullRange
		}
		select {
		case d.infos <- d.next:
			return true
		default:
			return false
		}
	}
	if m := rateLine.FindStringSubmatch(line); m != nil {
		numerator, _ := strconv.ParseFloat(m[1], 64) // digits
		if denominator, _ := strconv.ParseFloat(m[2], 64); denominator > 0 {
			d.mu.Lock()
			d.rate = numerator / denominator
			d.mu.Unlock()
		}
		return true
	}
	if m := errorLine.FindStringSubmatch(line); m != nil {
		text := d.input.Address.clean(m[1])
		for _, name := range []string{"pipe:3", "pipe:0", "file:" + d.input.Address.String(), d.input.Address.String()} {
			text = strings.TrimPrefix(text, name+": ") // callers name the source
		}
		d.input.Log.Debug().Str("text", text).Msg("ffmpeg reports an error")
		d.setError(text)
	}
	return true
}

// setError notes why ffmpeg fails. Its last line says that, unless it was refused a protocol or an address:
// then later lines only say that the source cannot be read.
func (d *Decoder) setError(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !strings.Contains(d.failure, notAllowed) && !strings.Contains(d.failure, leads) {
		d.failure = text
	}
}

// refuse notes an address that ffmpeg may not reach.
func (d *Decoder) refuse(to netip.AddrPort) {
	d.setError(leads + to.String() + ", an address of this machine or link, which it does not name itself; name it in the source's own address to permit that")
}

const (
	notAllowed    = "not on whitelist"
	leads         = "the source leads to "
	unknownFormat = "Format not on whitelist"
)

// Frame is a decoded picture.
type Frame struct {
	Number uint64 // from 0
	// PTS is the source's time of the frame.
	PTS time.Duration
	// Read is when the frame had come from ffmpeg.
	Read time.Time
	// Image is read-only.
	Image *picture.Raw
}

// ErrSize is returned for a frame that is too large.
var ErrSize = errors.New("frame too large")

// Next returns the next frame. It returns io.EOF when the source has ended.
func (d *Decoder) Next() (f Frame, err error) {
	info, err := d.nextInfo()
	if err != nil {
		return f, err
	}
	size, err := info.Bytes()
	if err != nil || info.Width > picture.MaxPixels/info.Height {
		d.process.kill()
		return f, fmt.Errorf("%w: %d × %d pixels, want at most %d Mpixel", ErrSize, info.Width, info.Height, picture.MaxPixels>>20)
	}
	img, ok := d.spare.Get().(*picture.Raw)
	if !ok || len(img.Pix) != size {
		img = &picture.Raw{Pix: make([]byte, size)}
	}
	img.Shape = info.Picture
	if err := d.fill(img.Pix); err != nil {
		return f, err
	}
	if !info.timed {
		info.pts = d.last
		if rate := d.Rate(); rate > 0 && d.count > 0 {
			info.pts += time.Duration(float64(time.Second) / rate)
		}
	}
	f = Frame{Number: d.count, PTS: info.pts, Read: time.Now(), Image: img}
	d.count, d.last = d.count+1, info.pts
	return f, nil
}

// limit is how long the next frame may take; 0 for ever.
func (d *Decoder) limit() time.Duration {
	switch {
	case d.input.Address.kind == standardInput:
		return 0
	case d.count == 0:
		return d.input.FirstFrame
	}
	return d.input.NextFrame
}

// nextInfo waits for the description of the next frame.
func (d *Decoder) nextInfo() (frameInfo, error) {
	var late <-chan time.Time
	if limit := d.limit(); limit > 0 {
		late = time.After(limit)
	}
	select {
	case info, ok := <-d.infos:
		if !ok {
			return info, d.end()
		}
		return info, nil
	case <-late:
		return frameInfo{}, d.stalled()
	}
}

func (d *Decoder) stalled() error {
	d.process.kill()
	return fmt.Errorf("no frame came for %s; ffmpeg was ended%s", d.limit(), d.reason("; its last error was: "))
}

// reason is ffmpeg's error after a prefix, or nothing.
func (d *Decoder) reason(prefix string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failure == "" {
		return ""
	}
	return prefix + d.failure
}

// fill reads a frame.
func (d *Decoder) fill(pix []byte) error {
	var deadline time.Time
	if limit := d.limit(); limit > 0 {
		deadline = time.Now().Add(limit)
	}
	_ = d.frames.SetReadDeadline(deadline) // a pipe takes deadlines
	switch _, err := io.ReadFull(d.frames, pix); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return d.stalled()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		if err := d.end(); !errors.Is(err, io.EOF) {
			return err
		}
		return errors.New("ffmpeg ended within a frame")
	case err != nil:
		return fmt.Errorf("read frame from ffmpeg: %w", err)
	}
	return nil
}

// end is why ffmpeg ended: io.EOF if its source did.
func (d *Decoder) end() error {
	err := d.process.wait(endTimeout)
	select {
	case <-d.described: // the last lines say why
	case <-time.After(endTimeout):
	}
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case strings.Contains(d.reason(""), unknownFormat):
		return errors.New("source is no video of a known format; it may be a playlist, which names other files; want one of these files, or the playlist's http address")
	case strings.Contains(d.reason(""), notAllowed):
		return fmt.Errorf("source names another file or address, which may not be opened: ffmpeg: %s", d.reason(""))
	case exited && exit.ProcessState.Sys().(syscall.WaitStatus).Signaled():
		return fmt.Errorf("ffmpeg was ended by a signal (%v)%s", exit.ProcessState.Sys().(syscall.WaitStatus).Signal(), d.reason("; its last error was: "))
	case err != nil:
		return fmt.Errorf("ffmpeg failed: %s", strings.TrimPrefix(d.reason(": ")+" ("+err.Error()+")", ": "))
	case d.count == 0:
		return fmt.Errorf("ffmpeg found no video frames%s", d.reason(": "))
	}
	return io.EOF
}

// Recycle gives a picture back for later frames. The caller does not use it any more.
func (d *Decoder) Recycle(img *picture.Raw) { d.spare.Put(img) }

// Rate is how many frames per second the source announces; 0 if it is not known.
func (d *Decoder) Rate() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rate
}

// Close ends ffmpeg, if it has not ended. Next returns an error from then on.
func (d *Decoder) Close() {
	d.process.kill()
	d.frames.Close()
	d.lines.Close()
}

var ffmpegName = regexp.MustCompile(`^[a-z0-9_]{0,32}$`)

// CheckName reports a value that is no name of ffmpeg's, like that of a pixel format.
func CheckName(key, name string) error {
	if !ffmpegName.MatchString(name) {
		return fmt.Errorf("%s is %q, want a name of ffmpeg's: lower case letters, digits and '_'", key, name)
	}
	return nil
}
