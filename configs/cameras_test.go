package configs

import (
	"net/netip"
	"strings"
	"testing"
)

func TestCameras(t *testing.T) {
	s := schema(t)
	to, network := netip.MustParseAddrPort("192.0.2.7:9000"), netip.MustParsePrefix("192.0.2.0/24")
	for text, want := range map[string]Function{
		"":                       {},
		", format: gvsp":         {Format: FormatGVSP},
		", format: rfc4175":      {Format: FormatRFC4175},
		", format: rfc4175-bgr":  {Format: FormatRFC4175BGR},
		", format: rfc4175-uyvy": {Format: FormatRFC4175UYVY},
		", format: rfc4175-uyvy10, colours: bt2020":                   {Format: FormatRFC4175UYVY10, Colours: "bt2020"},
		", format: rfc4175-yyyyuv":                                    {Format: FormatRFC4175YYYYUV},
		", format: gvsp, max_picture: 1920x1200, colours: bt601-full": {Format: FormatGVSP, MaxPicture: "1920x1200", Colours: "bt601-full"},
		", format: gvsp, answers_to: 192.0.2.7:9000":                  {Format: FormatGVSP, AnswersTo: &to},
		", format: gvsp, allowed: [192.0.2.0/24]":                     {Format: FormatGVSP, Allowed: []netip.Prefix{network}},
		", key: /etc/a.keys":                                          {Key: "/etc/a.keys"},
	} {
		text = "functions: [{name: a, port: 1" + text + "}]"
		c, err := Decode("f.yaml", []byte(text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		want.Name, want.Port, want.Instances = "a", 1, 1
		if keys := ChangedKeys(c.Functions[0], want); len(keys) > 0 {
			t.Errorf("%q: %v differ: %+v", text, keys, c.Functions[0])
		}
		if err := valid(t, s, text); err != nil {
			t.Errorf("%q: schema: %v", text, err)
		}
	}
}

func TestAnswersTo(t *testing.T) {
	for _, row := range []struct {
		format Format
		to     string
		want   string
	}{
		{"", "192.0.2.7:9000", "answers_to of a is for cameras"},
		{FormatGVSP, "192.0.2.7:0", "answers_to of a is 192.0.2.7:0, want the address and port of a receiver"},
		{FormatGVSP, "0.0.0.0:9000", "answers_to of a is 0.0.0.0:9000"},
		{FormatGVSP, "[2001:db8::7]:9000", ""},
	} {
		to := netip.MustParseAddrPort(row.to)
		f := Function{Name: "a", Instances: 1, Format: row.format, AnswersTo: &to}
		err := f.Check()
		if row.want == "" {
			if err != nil {
				t.Errorf("%s %s: %v", row.format, row.to, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s %s: error %v does not say %q", row.format, row.to, err, row.want)
		}
	}
}

func TestSenders(t *testing.T) {
	for text, want := range map[string]string{
		"key: /etc/a.keys, format: gvsp":         "is for clients, and a camera (format: gvsp) has no key",
		"allowed: [192.0.2.0/24]":                "is for cameras, and clients can have a key",
		"format: gvsp, allowed: [192.0.2.7:500]": "want a network like",
		"colours: bt709":                         "is for cameras that send Y, U and V",
		"format: rfc4175, colours: bt709":        "is for cameras that send Y, U and V",
		"format: gvsp, colours: bt709":           "of GigE Vision, with `max_picture`",
		"format: rfc4175-uyvy, colours: bt470":   "bt470",
	} {
		_, err := Decode("f.yaml", []byte("functions: [{name: a, port: 1, "+text+"}]"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v does not say %q", text, err, want)
		}
	}
}
