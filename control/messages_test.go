package control

import (
	"encoding/json"
	"testing"
)

// A process's terms are fields of the process itself on the wire.
func TestTermsJSON(t *testing.T) {
	p := DesiredProcess{IF: "face", Generation: 1, Role: Serve, Terms: Terms{GuaranteePercent: 40, Level: 3, BalanceNanos: 5, MaxBatch: 8}}
	const want = `{"if":"face","instance":0,"generation":1,"role":"serve","device":"","share_percent":0,"guarantee_percent":40,"level":3,"balance_ns":5,"max_batch":8}`
	if got, err := json.Marshal(p); err != nil || string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}
