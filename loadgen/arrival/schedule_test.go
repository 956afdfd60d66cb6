package arrival_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen/arrival"
)

func TestParseSchedule(t *testing.T) {
	schedule, err := arrival.ParseSchedule("rates.csv", []byte("# the demo\ntime,function,rate\n5s, face, 40\n5s, fashion, 0\n1m, face, 2.5\n"))
	must.OK(t, err)
	face, fashion, other := schedule.Rate("face", 10), schedule.Rate("fashion", 20), schedule.Rate("other", 30)
	for _, test := range []struct {
		rate arrival.Rate
		at   time.Duration
		want float64
	}{
		{face, 0, 10},
		{face, 5 * time.Second, 40},
		{face, time.Minute, 2.5},
		{fashion, 4 * time.Second, 20},
		{fashion, 5 * time.Second, 0},
		{other, time.Hour, 30},
	} {
		if got := test.rate.PerSecond(test.at); got != test.want {
			t.Errorf("rate %v at %v, want %v", got, test.at, test.want)
		}
	}
}

// TestByteOrderMark checks the byte order mark that Windows editors and
// spreadsheets write.
func TestByteOrderMark(t *testing.T) {
	schedule, err := arrival.ParseSchedule("a.csv", []byte("\ufefftime,function,rate\r\n5s,face,60\r\n"))
	if err != nil || len(schedule) != 1 || schedule[0].PerSecond != 60 {
		t.Errorf("%v, %v", schedule, err)
	}
}

func TestParseScheduleErrors(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"a.csv", "", "a.csv: is empty, want a header with time,function,rate"},
		{"a.csv", "when,function,rate\n", "a.csv:1:1: unknown column"},
		{"a.csv", "time,function,rate\n5s,face\n", "a.csv:2:4: 2 fields: want 3"},
		{"a.yaml", "- {time: 5s, function: face, rate: 1, more: 2}\n", "a.yaml:1:1: unknown column"},
		{"a.csv", "time,function,rate\n5s,face,10\n5,face,10\n", `a.csv:3:1: time "5": want a duration`},
		{"a.csv", "time,function,rate\n-5s,face,10\n", `a.csv:2:1: time "-5s": want`},
		{"a.csv", "time,function,rate\n\n# a note\n5s,face,fast\n", `a.csv:4:9: rate "fast": want a number`},
		{"a.csv", "time,function,rate\n5s,face,-1\n", `a.csv:2:9: rate "-1": want`},
		{"a.csv", "time,function,rate\n5s,face,NaN\n", `a.csv:2:9: rate "NaN": want`},
		{"a.csv", "time,function,rate\n5s,,1\n", "a.csv:2:4: the function is missing"},
		{"a.csv", "time,function,rate\n5s,face,1\n4s,face,1\n", "a.csv:3:1: time 4s is before that of the previous entry, 5s"},
	} {
		_, err := arrival.ParseSchedule(test.name, []byte(test.text))
		if err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%q: %v, want %q…", test.text, err, test.want)
		}
	}
}

func TestCheckFunctions(t *testing.T) {
	schedule, err := arrival.ParseSchedule("a.csv", []byte("time,function,rate\n1s,face,1\n2s,fase,1\n"))
	must.OK(t, err)
	if err := schedule.CheckFunctions([]string{"face", "fase"}); err != nil {
		t.Error(err)
	}
	err = schedule.CheckFunctions([]string{"face", "detect"})
	if err == nil || err.Error() != `a.csv:3: function "fase" gets no traffic; there are face, detect` {
		t.Errorf("%v", err)
	}
}

func FuzzParseSchedule(f *testing.F) {
	f.Add("a.csv", []byte("time,function,rate\n5s,face,10\n"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		schedule, err := arrival.ParseSchedule(name, data)
		if err != nil {
			return
		}
		for _, change := range schedule {
			schedule.Rate(change.Function, 1).PerSecond(change.At)
		}
	})
}
