package stream

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// Address is where a source is, checked and taken apart. Its String has no passwords. It is
// immutable.
type Address struct {
	kind      kind
	text      string // a path, or the address as it was given, with its passwords
	redacted  string
	secrets   []string // parts of text that no line may show, the longest first
	protocols string   // that ffmpeg may open
	formats   string   // that ffmpeg may read; empty if an option names the format
}

// kind is how ffmpeg opens a source.
type kind uint8

const (
	standardInput kind = iota
	file
	session // a file that describes RTP (SDP)
	device
	network
)

// Stdin is the address of standard input.
const Stdin = "-"

// protocols are the schemes of addresses, and what ffmpeg may open to read one. `file` is in
// none: a playlist from the network must not name files of this machine.
var protocols = map[string]string{
	"rtsp":  "rtsp,rtp,srtp,udp,tcp,tls,http,https,httpproxy",
	"rtsps": "rtsp,rtsps,rtp,srtp,udp,tcp,tls,http,https,httpproxy",
	"rtp":   "rtp,srtp,udp",
	"srt":   "srt",
	"udp":   "udp",
	"tcp":   "tcp",
	"tls":   "tls,tcp",
	"rist":  "rist",
	"http":  "http,https,httpproxy,tcp,tls,crypto,data",
	"https": "http,https,httpproxy,tcp,tls,crypto,data",
	"rtmp":  "rtmp,rtmps,rtmpt,rtmpts,tcp,tls,http,https,ffrtmphttp",
	"rtmps": "rtmp,rtmps,rtmpt,rtmpts,tcp,tls,http,https,ffrtmphttp",
}

// formats are those that ffmpeg may read. None of them opens other files, as playlists do, and none draws text or
// pictures of other programs.
const formats = "apng,asf,av1,avi,bmp_pipe,cavsvideo,dirac,dv,evc,flv,gif,gxf,h261,h263,h264,hevc,ivf,j2k_pipe,jpeg_pipe," +
	"jpegls_pipe,jpegxl_pipe,live_flv,m4v,matroska,mjpeg,mov,mp4,mpeg,mpegts,mpegvideo,mpjpeg,mxf,nut,obu,ogg,pam_pipe,pbm_pipe," +
	"pgm_pipe,png_pipe,ppm_pipe,qoi_pipe,rm,tiff_pipe,vc1,vc1test,vvc,webm,webp_pipe,wtv,yuv4mpegpipe"

// moreFormats are what some schemes need in addition. A playlist of http cannot name files, because of protocols. Its
// audio and subtitles may come in files of other formats.
var moreFormats = map[string]string{
	"rtsp": ",rtsp", "rtsps": ",rtsp", "rtp": ",rtp,sdp",
	"http": ",hls,dash,aac,ac3,eac3,mp3,webvtt", "https": ",hls,dash,aac,ac3,eac3,mp3,webvtt",
}

// plainQueries are schemes whose query has settings of the socket and no secrets.
var plainQueries = []string{"udp", "rtp", "tcp"}

// maxAddress is the max length of an address, in bytes.
const maxAddress = 4 << 10

// ParseAddress reads what a user names as the source: a file, an address like rtsp://..., a
// device like /dev/video0, or Stdin. It opens files to check that they can be read. Errors
// contain no passwords.
func ParseAddress(text string) (Address, error) {
	switch {
	case text == "":
		return Address{}, errors.New("source is empty; want a file, an address like rtsp://..., /dev/video0, or - for standard input")
	case len(text) > maxAddress:
		return Address{}, fmt.Errorf("source has %d characters, want at most %d", len(text), maxAddress)
	case strings.ContainsFunc(text, unicode.IsControl):
		return Address{}, errors.New("source has control characters")
	case text == Stdin:
		return Address{kind: standardInput, text: text, redacted: "standard input", protocols: "pipe", formats: formats}, nil
	}
	if scheme, _, ok := strings.Cut(text, "://"); ok && !strings.Contains(scheme, "/") {
		return parseNetwork(strings.ToLower(scheme), text)
	}
	return parseFile(text)
}

func parseNetwork(scheme, text string) (Address, error) {
	allowed, ok := protocols[scheme]
	if !ok {
		known := slices.Sorted(maps.Keys(protocols))
		return Address{}, fmt.Errorf("source begins with %q; want a file, or one of %s", scheme+"://", strings.Join(known, ", "))
	}
	a := Address{kind: network, text: text, protocols: allowed, formats: formats + moreFormats[scheme]}
	a.redact(scheme)
	return a, nil
}

// hidden stands for what is not shown.
const hidden = "***"

// minSecret is the min length of a secret that is also hidden alone, in bytes. To hide shorter
// ones would make lines unreadable.
const minSecret = 4

// redact finds what is secret.
func (a *Address) redact(scheme string) {
	rest := a.hideUser(a.text[len(scheme)+len("://"):])
	path, query, hasQuery := strings.Cut(rest, "?")
	if hasQuery {
		path += "?" + a.hideQuery(scheme, query)
	}
	a.redacted = scheme + "://" + a.hideSegments(path)
	if len(a.secrets) > 0 {
		a.secrets = append(a.secrets, a.text)
	}
	slices.SortFunc(a.secrets, func(x, y string) int { return len(y) - len(x) })
}

// hideUser hides the user and the password. They end at the last @, also if the password has a / that
// should have been escaped.
func (a *Address) hideUser(rest string) string {
	end := strings.IndexAny(rest, "?#")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndex(rest[:end], "@")
	if at <= 0 {
		return rest
	}
	user, password, _ := strings.Cut(rest[:at], ":")
	a.hideAll(rest[:at])
	a.hide(password)
	if password == "" {
		a.hide(user) // a token
	}
	return hidden + rest[at:]
}

// hideQuery hides the query, unless the scheme has a plain one.
func (a *Address) hideQuery(scheme, query string) string {
	if slices.Contains(plainQueries, scheme) {
		return query
	}
	a.hideAll(query)
	for pair := range strings.SplitSeq(query, "&") {
		_, value, _ := strings.Cut(pair, "=")
		a.hide(value)
	}
	return hidden
}

// hideSegments hides the password of cameras that take it in the path: /user=admin_password=1234.
func (a *Address) hideSegments(path string) string {
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		if strings.Contains(segment, "=") && !strings.Contains(segment, "?") {
			a.hide(segment)
			segments[i] = hidden
		}
	}
	return strings.Join(segments, "/")
}

// hide hides a secret, unless it is too short to be hidden alone.
func (a *Address) hide(secret string) {
	if len(secret) >= minSecret {
		a.hideAll(secret)
	}
}

// hideAll hides a secret of any length, as it is written and without its escapes.
func (a *Address) hideAll(secret string) {
	if secret == "" {
		return
	}
	a.secrets = append(a.secrets, secret)
	if plain, err := url.PathUnescape(secret); err == nil && plain != secret {
		a.secrets = append(a.secrets, plain)
	}
}

func parseFile(text string) (Address, error) {
	path, err := filepath.Abs(strings.TrimPrefix(text, "file:"))
	if err != nil {
		return Address{}, fmt.Errorf("find source: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return Address{}, fmt.Errorf("find source: %w", err)
	}
	switch {
	case info.IsDir():
		return Address{}, fmt.Errorf("source %s is a folder, want a file", path)
	case info.Mode()&os.ModeDevice != 0:
		return Address{kind: device, text: path, redacted: path}, nil
	case !info.Mode().IsRegular():
		return Address{}, fmt.Errorf("source %s is no regular file; want - and the data on standard input", path)
	}

	f, err := os.Open(path)
	if err != nil {
		return Address{}, fmt.Errorf("open source: %w", err)
	}
	defer f.Close()
	begin := make([]byte, len("v=0"))
	_, _ = io.ReadFull(f, begin) // ffmpeg reports what cannot be read later
	if string(begin) == "v=0" {
		return Address{kind: session, text: path, redacted: path, protocols: "file,rtp,srtp,udp"}, nil
	}
	return Address{kind: file, text: path, redacted: path, protocols: "file", formats: formats}, nil
}

// Live reports whether frames come at the source's own pace: all but files and standard input.
func (a Address) Live() bool { return a.kind != file && a.kind != standardInput }

// String is the address without passwords.
func (a Address) String() string { return a.redacted }

// clean removes the passwords from a line of ffmpeg's.
func (a Address) clean(line string) string {
	for _, secret := range a.secrets {
		if secret == a.text {
			line = strings.ReplaceAll(line, secret, a.redacted)
		} else {
			line = strings.ReplaceAll(line, secret, hidden)
		}
	}
	return line
}

// list is the address as a playlist of ffmpeg's concat demuxer, for an address with secrets: on
// the command line every user of the machine could read it. It is empty if there are none.
func (a Address) list() string {
	if len(a.secrets) == 0 {
		return ""
	}
	text := "ffconcat version 1.0\nfile '" + strings.ReplaceAll(a.text, "'", `'\''`) + "'\noption format_whitelist " + a.formats + "\n"
	for i := 0; i+1 < len(a.transport()); i += 2 {
		text += "option " + strings.TrimPrefix(a.transport()[i], "-") + " " + a.transport()[i+1] + "\n"
	}
	return text
}

// transport are the options of the address's own protocol.
func (a Address) transport() []string {
	if strings.HasPrefix(a.text, "rtsp") && a.kind == network {
		return []string{"-rtsp_flags", "prefer_tcp"} // UDP loses packets, and with them whole frames
	}
	return nil
}

// Raw describes frames without a container on standard input.
type Raw struct {
	Width, Height int
	Format        string // ffmpeg's name, like rgb24
	Rate          float64
}

// input is the part of ffmpeg's arguments that names the source. A list that is not empty is what
// ffmpeg reads from descriptor 3.
func (a Address) input(raw *Raw) (args []string, list string) {
	if list = a.list(); list != "" {
		return []string{"-protocol_whitelist", "pipe," + a.protocols, "-format_whitelist", "concat," + a.formats, "-f", "concat", "-safe", "0", "-i", "pipe:3"}, list
	}
	if a.protocols != "" {
		args = []string{"-protocol_whitelist", a.protocols}
	}
	if a.formats != "" && raw == nil {
		args = append(args, "-format_whitelist", a.formats)
	}
	switch a.kind {
	case standardInput:
		if raw != nil {
			args = append(args, "-f", "rawvideo", "-pixel_format", raw.Format,
				"-video_size", fmt.Sprintf("%dx%d", raw.Width, raw.Height), "-framerate", fmt.Sprint(raw.Rate))
		}
		return append(args, "-i", "pipe:0"), ""
	case device:
		return append(args, "-f", "v4l2", "-i", a.text), ""
	case network:
		return append(append(args, a.transport()...), "-i", a.text), ""
	case session:
		return append(args, "-f", "sdp", "-i", "file:"+a.text), ""
	}
	return append(args, "-i", "file:"+a.text), ""
}
