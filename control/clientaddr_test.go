package control

import "testing"

func TestClientAddr(t *testing.T) {
	for address, want := range map[string]string{"0.0.0.0": "127.0.0.1:7", "::": "[::1]:7", "10.0.0.2": "10.0.0.2:7", "fe80::1%eth0": "[fe80::1%eth0]:7"} {
		f := FunctionStatus{Address: address, Port: 7}
		if got := f.ClientAddr().String(); got != want {
			t.Errorf("%s: clients send to %s, want %s", address, got, want)
		}
	}
}
