package streams

import (
	"container/list"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestModel compares a table with a map under random operations.
func TestModel(t *testing.T) {
	type key struct{ owner, stream int }
	type known struct {
		value int
		used  int64
	}
	rapid.Check(t, func(t *rapid.T) {
		const idle = 10
		most := rapid.IntRange(1, 6).Draw(t, "most")
		table, model, now := New[int, key, int](most, idle), map[key]known{}, int64(0)
		count := func(owner int) (n int) {
			for k := range model {
				if k.owner == owner {
					n++
				}
			}
			return n
		}
		// checkVictim checks which stream made room for one of that owner.
		checkVictim := func(by int) {
			for k, v := range model {
				if table.streams[k] != nil {
					continue
				}
				for other, o := range model {
					switch most := count(k.owner); {
					case count(other.owner) > most || count(by) == most && k.owner != by:
						t.Fatalf("%v made room for one of %d; there are %v", k, by, model)
					case o.used < v.used && (other.owner == k.owner || most == 1 && count(by) == 0):
						t.Fatalf("%v made room, and %v was not used for longer", k, other)
					}
				}
				delete(model, k)
			}
		}
		for value := range rapid.IntRange(1, 100).Draw(t, "operations") {
			now += rapid.Int64Range(1, 4).Draw(t, "passed")
			for k, v := range model {
				if now-v.used > idle {
					delete(model, k)
				}
			}
			k := key{rapid.IntRange(0, 3).Draw(t, "owner"), rapid.IntRange(0, 5).Draw(t, "stream")}
			want, ok := model[k]
			found := table.Find(now, k)
			if (found != nil) != ok || ok && *found != want.value {
				t.Fatalf("found %v, want %+v, %v", found, want, ok)
			}
			if rapid.IntRange(0, 9).Draw(t, "operation") == 0 {
				table.Remove(k)
				delete(model, k)
				continue
			}
			if found == nil {
				found = table.Add(now, k.owner, k)
				checkVictim(k.owner)
			}
			*found, model[k] = value, known{value, now}
			if table.Len() != len(model) || table.Len() > most {
				t.Fatalf("%d streams, want %d", table.Len(), len(model))
			}
		}
		checkTable(t, table)
	})
}

// checkTable checks that the lists of a table agree.
func checkTable[O, K comparable, V any](t *rapid.T, table *Table[O, K, V]) {
	n := 0
	for _, o := range table.richest {
		for at := o.streams.Front(); at != nil; at = at.Next() {
			s := at.Value.(*list.Element).Value.(*stream[O, K, V])
			if n++; s.owner != o || table.owners[o.key] != o || table.streams[s.key].Value != any(s) {
				t.Fatalf("stream %v is in the list of %v", s.key, o.key)
			}
		}
	}
	if n != table.used.Len() || n != len(table.streams) || len(table.richest) != len(table.owners) {
		t.Fatalf("%d streams by owner, %d by use, %d by key", n, table.used.Len(), len(table.streams))
	}
}

// TestMillion begins a million streams of one owner. Those of others stay.
func TestMillion(t *testing.T) {
	const most = 1000
	table := New[string, int, int](most, time.Minute)
	for i := range most / 2 {
		*table.Add(int64(i), "camera", -i-1) = i
	}
	for i := range 1_000_000 {
		table.Add(most, "attacker", i)
		if table.Len() > most {
			t.Fatalf("%d streams, want at most %d", table.Len(), most)
		}
	}
	for i := range most / 2 {
		if v := table.Find(most, -i-1); v == nil || *v != i {
			t.Fatalf("stream %d of the camera has the value %v", i, v)
		}
	}
	if table.Find(most+int64(2*time.Minute), -1); table.Len() != 0 {
		t.Errorf("%d streams after two minutes without use", table.Len())
	}
}
