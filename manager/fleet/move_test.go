package fleet

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/models"
)

// cold and warm are the workers of workerNode.
var (
	cold = configs.Worker{Name: "cold", SharePercent: 30, Lanes: 2, Policy: "edf", Memory: 1 << 20}
	warm = configs.Worker{Name: "warm", SharePercent: 20, Lanes: 1, Policy: "fifo"}
)

// workerNode begins with a configuration file that has two workers and these functions.
func workerNode(t *testing.T, device string, functions ...configs.Function) *nodeBed {
	t.Helper()
	b := newNodeOn(t, device)
	withWorkers(b)
	b.cfg.Functions, b.cfg.File = functions, "/etc/node.yaml"
	must.OK(t, b.Begin())
	b.JudgeConfiguration(nil)
	b.turns()
	return b
}

func withWorkers(b *nodeBed) {
	b.cfg.Shares.Policy = configs.PolicyGuarantee
	b.cfg.Workers = []configs.Worker{cold, warm}
}

// member returns a function in a worker.
func member(name, worker string, slo time.Duration) configs.Function {
	return configs.Function{Name: name, Instances: 1, SLO: slo, Worker: worker}
}

func (b *nodeBed) moved(name, worker string) {
	b.t.Helper()
	end, err := b.move(name, worker)
	must.OK(b.t, err)
	b.replacementEnds(end)
}

// processes returns the desired processes of a function.
func (b *nodeBed) processes(name string) (all []control.DesiredProcess) {
	for _, p := range b.told.Processes {
		if p.IF == name {
			all = append(all, p)
		}
	}
	return all
}

func TestMove(t *testing.T) {
	for _, device := range []string{configs.DeviceCPU, "cuda"} {
		t.Run(device, func(t *testing.T) {
			b := workerNode(t, device, objective("a", 20*time.Millisecond), member("b", "cold", time.Second))
			b.replaced("a", "newer")
			before, _ := b.serves("a")
			swaps := b.status("a").Swaps

			end, err := b.move("a", "cold")
			must.OK(t, err)
			for range 3 {
				b.turn()
				if now, _ := b.serves("a"); now != before {
					t.Fatalf("generation %d serves before the new process is ready", now)
				}
			}
			b.replacementEnds(end)
			b.turns()
			all := b.processes("a")
			if len(all) != 1 || all[0].Worker != "cold" || all[0].Lanes != 2 || all[0].LanePolicy != "edf" || all[0].MemoryBytes != 1<<20 || all[0].Role != control.Serve || all[0].Generation <= before {
				t.Errorf("desired %+v, want one process in the worker and no shadow", all)
			}
			s := b.status("a")
			if s.Worker != "cold" || s.Model != "newer" || s.Swaps != swaps+1 || s.Unsaved != control.UnsavedChanged {
				t.Errorf("status %+v, want one more swap, to the worker", s)
			}
			if older := b.functions.find("a").model.older; len(older) != 1 || older[0].name != "a" {
				t.Errorf("older models %+v, want those before the move", older)
			}

			// A new model stays in the worker.
			b.rolledBack("a")
			if s := b.status("a"); s.Worker != "cold" || s.Model != "a" {
				t.Errorf("after a rollback %s runs in %q", s.Model, s.Worker)
			}
			b.moved("a", "warm")
			if s := b.status("a"); s.Worker != "warm" {
				t.Errorf("it runs in %q", s.Worker)
			}
			b.moved("a", "")
			b.turns()
			all = b.processes("a")
			if len(all) != 2 || all[0].Worker != "" || all[1].Worker != "" {
				t.Errorf("desired %+v, want its own process and a shadow", all)
			}
			if s := b.status("a"); s.Worker != "" {
				t.Errorf("status %+v, want that it left the worker", s)
			}
		})
	}
}

// If its process in the worker cannot start, the function stays.
func TestMoveFails(t *testing.T) {
	b := workerNode(t, configs.DeviceCPU, objective("a", time.Second))
	before, _ := b.serves("a")
	end, err := b.move("a", "cold")
	must.OK(t, err)
	b.turn()
	generation, p := b.shadow("a")
	p.die(control.Failed, "no memory for its weights")
	b.givenUp(end, "new process of a failed, keeping the old one: no memory for its weights")
	if now, _ := b.serves("a"); now != before || generation == before {
		t.Errorf("generation %d serves, want %d", now, before)
	}
	if s := b.status("a"); s.Worker != "" || s.Unsaved != "" || len(b.processes("a")) != 2 {
		t.Errorf("status %+v, want the function as before", s)
	}
}

func TestMoveRefused(t *testing.T) {
	own := objective("own", time.Second)
	own.SharePercent = 20
	b := workerNode(t, configs.DeviceCPU, own, member("member", "cold", time.Second), objective("python", time.Second), objective("program", time.Second), objective("large", time.Second))
	large := filepath.Join(t.TempDir(), "large.onnx")
	must.OK(t, os.WriteFile(large, make([]byte, cold.Memory+1), 0o600))
	for name, change := range map[string]func(*models.Card){
		"python":  func(c *models.Card) { c.Framework = models.PyTorch },
		"program": func(c *models.Card) { c.Framework, c.Command = "", []string{"./serve"} },
		"large":   func(c *models.Card) { c.Model = large },
	} {
		change(b.functions.find(name).model.desired)
	}
	for _, c := range []struct {
		name, worker string
		words        []string
	}{
		{"none", "cold", []string{`no function "none"`, "member"}},
		{"member", "cold", []string{"move member: it runs in worker cold already"}},
		{"own", "", []string{"move own: it runs in its own process already"}},
		{"member", "wram", []string{"move member: worker of function member", `did you mean "warm"?`}},
		{"own", "cold", []string{"move own: share_percent of function own is 20 %", `worker "cold"`}},
		{"python", "cold", []string{"move python: worker", "pytorch", "is a separate program"}},
		{"program", "cold", []string{"move program: worker", "`command` in its card", "is a separate program"}},
		{"large", "cold", []string{"move large: worker", "memory for models of 1.0 MiB", large + " has 1.0 MiB", "want `memory: 4MiB` or more"}},
	} {
		_, err := b.move(c.name, c.worker)
		refused(t, err, c.words...)
	}

	must.Get(b.move("member", "warm"))(t)
	_, err := b.move("member", "")
	refused(t, err, "a replacement is running")
	refused(t, b.setShare("member", 10), "set share of member", "worker cold", "share_percent of the worker", "penstock if move member --own")
}

func TestProgramInWorker(t *testing.T) {
	b := workerNode(t, configs.DeviceCPU, member("a", "cold", time.Second))
	b.changeCards(func(name string, card *models.Card) {
		if name == "python" {
			card.Framework = models.PyTorch
		}
	})
	words := []string{"worker is \"cold\"", "pytorch", "leave the worker out"}
	refused(t, b.add(member("python", "cold", time.Second)), "add function python", words[1], words[2])
	_, err := b.replace("a", "python")
	refused(t, err, append(words, "replace model of a")...)

	cfg := b.cfg
	cfg.Functions = []configs.Function{member("a", "cold", time.Second), member("python", "cold", time.Second)}
	problems := Check(cfg, b.find)
	if len(problems) != 1 || problems[0].Function != 1 || problems[0].Key != "worker" {
		t.Fatalf("problems %+v, want one at the key worker", problems)
	}
	refused(t, problems[0].Err, words[1:]...)
}

// The members of a worker have one guarantee, whatever they do.
func TestWorkerGuarantee(t *testing.T) {
	b := workerNode(t, configs.DeviceCPU, member("quick", "cold", 8*time.Millisecond), member("slow", "cold", time.Second), objective("own", time.Second))
	same := func(when string) {
		t.Helper()
		terms := map[[3]int64]bool{}
		for _, p := range b.told.Processes {
			if p.Worker == "cold" {
				terms[[3]int64{int64(p.GuaranteePercent), int64(p.Level), p.BalanceNanos}] = true
				if p.GuaranteePercent != 30 || p.Level == budget.Demoted || p.SharePercent != 0 {
					t.Errorf("%s: %+v, want a guarantee of 30 %%", when, p)
				}
			}
		}
		if len(terms) != 1 {
			t.Errorf("%s: terms %v, want the same for all members", when, terms)
		}
	}
	same("at the start")
	if got := b.wanted("own")[control.Serve].GuaranteePercent; got != 60 {
		t.Errorf("own has %v %%, want what the worker leaves", got)
	}
	if s := b.status("slow"); s.Guarantee.Percent != 30 || s.SharePercent != 30 {
		t.Errorf("status %+v, want the worker's guarantee", s)
	}

	// A process that is only starting has the same terms.
	end, err := b.move("own", "cold")
	must.OK(t, err)
	b.turn()
	if all := b.processes("own"); !slices.ContainsFunc(all, func(p control.DesiredProcess) bool { return p.Worker == "cold" && p.Role == control.Shadow }) {
		t.Errorf("desired %+v, want one that starts in the worker", all)
	}
	if got := b.wanted("own")[control.Serve]; got.Worker == "" && got.GuaranteePercent == 0 {
		t.Errorf("%+v, want its guarantee until it has moved", got)
	}
	same("while a function moves")
	b.replacementEnds(end)
	same("after the move")

	b.moved("own", "")
	b.turn()
	if s := b.status("own").Guarantee; s.Percent != 60 {
		t.Errorf("own has %v %%, want its own guarantee", s.Percent)
	}
}

// A member of a superseded process moves to the newer one, and only once: if that fails, the member stays.
func TestSuperseded(t *testing.T) {
	b := workerNode(t, configs.DeviceCPU, member("a", "cold", time.Second), member("b", "cold", time.Second))
	old, p := b.serves("a")
	other, _ := b.serves("b")
	swaps := b.status("a").Swaps
	p.superseded = true
	b.settles("a")
	b.turns()
	now, p := b.serves("a")
	if s := b.status("a"); now == old || s.Worker != "cold" || s.Swaps != swaps+1 || s.Unsaved != "" {
		t.Errorf("generation %d serves after %d, status %+v; want one swap within the worker", now, old, s)
	}
	if b, _ := b.serves("b"); b != other {
		t.Errorf("generation %d of b serves, want %d still", b, other)
	}

	p.superseded = true
	started := b.processes("a")
	for turns := 0; len(started) != 2; turns++ {
		if turns == 5 {
			t.Fatalf("desired %+v, want a new process, too", started)
		}
		b.turn()
		started = b.processes("a")
	}
	b.fakes[victim{gslice.ID{IF: "a"}, started[1].Generation}].die(control.Failed, "no memory for its weights")
	b.settles("a")
	if again, _ := b.serves("a"); again != now || b.functions.find("a").model.replacing != nil || len(b.processes("a")) != 1 {
		t.Errorf("generation %d serves of %+v, want only %d", again, b.processes("a"), now)
	}
}

// A worker that dies takes all its members along, and each comes back in it.
func TestWorkerDies(t *testing.T) {
	for _, device := range []string{configs.DeviceCPU, "cuda"} {
		t.Run(device, func(t *testing.T) {
			names := []string{"a", "b", "c"}
			b := workerNode(t, device, member("a", "cold", time.Second), member("b", "cold", time.Second), member("c", "cold", time.Second), objective("own", time.Second))
			own, _ := b.serves("own")
			for round := range 2 {
				before := map[string]uint32{}
				for _, name := range names {
					generation, p := b.serves(name)
					before[name] = generation
					p.die(control.Failed, "signal: killed")
				}
				b.turns()
				for _, name := range names {
					now, _ := b.serves(name)
					all := b.processes(name)
					if now <= before[name] || len(all) != 1 || all[0].Worker != "cold" {
						t.Errorf("round %d: %s has %+v, want one new process in the worker", round, name, all)
					}
					if l := b.status(name).Instances[0].LastFailure; l == nil || l.Reason != "signal: killed" {
						t.Errorf("round %d: %s failed because %+v", round, name, l)
					}
				}
			}
			if now, _ := b.serves("own"); now != own {
				t.Errorf("generation %d of the other function serves, want %d", now, own)
			}
		})
	}
}

// A move outlives the manager, and so does the move of a function that the file has in a worker.
func TestMoveIsRecorded(t *testing.T) {
	dir := t.TempDir()
	functions := []configs.Function{objective("a", time.Second), member("b", "cold", time.Second)}
	b := recordedNode(t, dir, "run", "digest", withWorkers, functions...)
	b.moved("a", "warm")
	b.moved("b", "")
	b.Close()
	b = recordedNode(t, dir, "run", "digest", withWorkers, functions...)
	if a, second := b.status("a"), b.status("b"); a.Worker != "warm" || second.Worker != "" {
		t.Errorf("after a restart of the manager a runs in %q and b in %q", a.Worker, second.Worker)
	}
	b.Close()

	// The worker is gone from the configuration: the functions run as the file says.
	b = recordedNode(t, dir, "run", "digest", func(b *nodeBed) {
		withWorkers(b)
		b.cfg.Workers = []configs.Worker{cold}
	}, functions...)
	if a := b.status("a"); a.Worker != "" {
		t.Errorf("a runs in %q, which the configuration does not have", a.Worker)
	}
}

// A guarantee that was set by hand ends with the move to a worker.
func TestMoveEndsShareByHand(t *testing.T) {
	b := workerNode(t, configs.DeviceCPU, objective("a", time.Second), objective("b", time.Second))
	must.OK(t, b.setShare("a", 40))
	refused(t, b.setShare("b", 20), "share of b is 20 %", "the others have 90 %", "110 % together")
	b.moved("a", "cold")
	if err := b.setShare("b", 20); err != nil {
		t.Error(err)
	}
}

func TestEditWorker(t *testing.T) {
	functions := []configs.Function{objective("a", time.Second), member("b", "cold", time.Second)}
	t.Run("member", func(t *testing.T) {
		b := workerNode(t, configs.DeviceCPU, functions...)
		must.OK(t, b.edited(member("a", "cold", time.Second), objective("b", time.Second)))
		b.settles("a")
		b.settles("b")
		if a, second := b.status("a"), b.status("b"); a.Worker != "cold" || second.Worker != "" || a.Unsaved != "" || second.Unsaved != "" {
			t.Errorf("a runs in %q and b in %q", a.Worker, second.Worker)
		}
	})
	t.Run("new worker", func(t *testing.T) {
		b := workerNode(t, configs.DeviceCPU, functions...)
		c := b.cfg
		c.Workers = []configs.Worker{cold, warm, {Name: "new", SharePercent: 10, Lanes: 1, Policy: "edf"}}
		c.Functions = []configs.Function{member("a", "new", time.Second), functions[1]}
		must.OK(t, b.followed(c))
		b.settles("a")
		if a := b.status("a"); a.Worker != "new" || a.Guarantee.Percent != 10 || len(b.page().Configuration.NeedRestart) != 0 {
			t.Errorf("status %+v, want it in the new worker", a)
		}
	})
	t.Run("guarantee", func(t *testing.T) {
		b := workerNode(t, configs.DeviceCPU, functions...)
		c := b.cfg
		c.Workers = []configs.Worker{{Name: "cold", SharePercent: 50, Lanes: 4, Policy: "fair", Memory: 2 << 20}}
		must.OK(t, b.followed(c))
		b.turn()
		if got := b.wanted("b")[control.Serve]; got.GuaranteePercent != 50 || got.Lanes != 2 || got.LanePolicy != "edf" || got.MemoryBytes != 1<<20 {
			t.Errorf("b has %+v, want the worker's new guarantee and its old lanes and memory", got)
		}
		if keys := b.page().Configuration.NeedRestart; !slices.Equal(keys, []string{"workers"}) {
			t.Errorf("%v need a restart, want workers for their lanes", keys)
		}
	})
	t.Run("worker in use", func(t *testing.T) {
		b := workerNode(t, configs.DeviceCPU, functions...)
		b.moved("a", "warm")
		c := b.cfg
		c.Workers = []configs.Worker{cold}
		refused(t, b.followed(c), "remove worker warm", "function a", "penstock if move a --own")
		if len(b.cfg.Workers) != 2 {
			t.Errorf("workers %+v, want those before the rejected edit", b.cfg.Workers)
		}
		// An edit of the function's entry undoes the move, and frees the worker.
		c.Functions = []configs.Function{objective("a", 2*time.Second), functions[1]}
		must.OK(t, b.followed(c))
		b.settles("a")
		if a := b.status("a"); a.Worker != "" || a.Unsaved != "" {
			t.Errorf("status %+v, want it in its own process", a)
		}
	})
}

// TestEditRemovesWorker takes the last member out of a worker, and removes the worker.
func TestEditRemovesWorker(t *testing.T) {
	functions := []configs.Function{objective("a", time.Second), objective("b", time.Second)}
	edit := func(t *testing.T) *nodeBed {
		b := workerNode(t, configs.DeviceCPU, functions[0], member("b", "cold", time.Second))
		c := b.cfg
		c.Workers, c.Functions = []configs.Worker{warm}, functions
		must.OK(t, b.Follow(c))
		if keys := b.page().Configuration.NeedRestart; len(keys) > 0 {
			t.Errorf("%v need a restart", keys)
		}
		return b
	}
	t.Run("member leaves", func(t *testing.T) {
		b := edit(t)
		b.settles("b")
		b.turns()
		if s := b.status("b"); s.Worker != "" || !slices.Equal(b.cfg.Workers, []configs.Worker{warm}) {
			t.Errorf("b runs in %q, and the workers are %+v", s.Worker, b.cfg.Workers)
		}
	})
	t.Run("member stays", func(t *testing.T) {
		b := edit(t)
		for len(b.processes("b")) < 2 {
			b.turn()
		}
		all := b.processes("b")
		b.fakes[victim{gslice.ID{IF: "b"}, all[len(all)-1].Generation}].die(control.Failed, "no memory")
		b.settles("b")
		_, p := b.serves("b")
		p.die(control.Failed, "signal: killed") // later
		b.turns()
		if all := b.processes("b"); len(all) != 1 || all[0].Worker != "cold" || all[0].WorkerLimits != limitsOf(cold) || all[0].GuaranteePercent != 30 {
			t.Errorf("desired %+v, want the worker with its limits and its guarantee", all)
		}
	})
}
