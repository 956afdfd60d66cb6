package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// found returns the names of the rules that the sentences of a page break.
func found(t *testing.T, text string) []string {
	t.Helper()
	rules, err := parseRules(rulesFile)
	must.OK(t, err)
	var names []string
	for _, s := range sentences("page.md", markdown(text)) {
		for _, r := range rules {
			if r.breaks(s) {
				names = append(names, r.name)
			}
		}
	}
	return names
}

func TestRules(t *testing.T) {
	tests := map[string]struct{ hard, plain []string }{
		"long sentence": {
			hard: []string{
				strings.Repeat("word ", 31) + ".",
				"The manager " + strings.Repeat("waits, and ", 15) + "ends.",
			},
			plain: []string{
				strings.Repeat("word ", 30) + ".",
				strings.Repeat("The manager waits. ", 20),
				"See `" + strings.Repeat("word ", 40) + "`.",
			},
		},
		"where for if": {
			hard: []string{
				"The size is 0 where it is not known.",
				"Where there is no GPU, the CPU serves.",
				"A shadow is woken where no process serves.",
				"Shares change in place where the GPU allows it.",
			},
			plain: []string{
				"The file says where the model is.",
				"This is the socket where the manager listens.",
				"The size is 0 if it is not known.",
				"Where does the time go?",
				"The segments stay where they are.",
			},
		},
		"code as a person": {
			hard: []string{
				"Never wake whoever sleeps.",
				"Nobody falls silent whom nobody serves: there is no telling.",
				"A node runs on when whoever reads its log goes.",
				"The group goes to who has the smallest share.",
				"Who has no share waits.",
				"lost: the device failed under all: nobody's early failure",
			},
			plain: []string{
				"Never mark an unserved instance idle: we cannot tell.",
				"The node keeps running if its log reader exits.",
				"An operator who edits the file sees the change in the log.",
			},
		},
		"pronoun as subject": {
			hard: []string{
				"What is to outlive the node belongs in its configuration file.",
				"One that stays where it was has shown that more of them do.",
				"Those that are late are counted.",
			},
			plain: []string{
				"Put permanent functions in the configuration file.",
				"A process that kept its old groups proves that a larger set works.",
				"What does a batch cost?",
				"This is what the model reads.",
			},
		},
		"inverted order": {
			hard: []string{
				"So is the time of a batch.",
				"Nor for the shadow is there a place.",
				"Of latency's residual only the sign counts.",
				"Only then are the groups given to another.",
				"Beside it lies the profile.",
			},
			plain: []string{
				"So the batch takes longer.",
				"Only the manager writes the epoch.",
				"Then the groups are free.",
			},
		},
		"min and max": {
			hard: []string{
				"least is their number of groups.",
				"The process takes the least that it needs.",
				"It is the most that one tick adds.",
			},
			plain: []string{
				"At least one group is free, and at most three.",
				"Most processes end within 1 s.",
				"min is the smallest number of groups.",
			},
		},
		"per": {
			hard: []string{
				"The port takes 5,000 pictures a second.",
				"One thread a socket receives.",
				"This is one model a process.",
			},
			plain: []string{
				"The port takes 5,000 pictures per second.",
				"A client sends a picture in datagrams.",
				"It gives a request a slot.",
			},
		},
		"reported speech": {
			hard: []string{
				"The client is told at once.",
				"It serves until it is told to drain.",
				"The source is asked for mbufs.",
				"The manager hears of it later.",
			},
			plain: []string{
				"The manager reports it to the client at once.",
				"It serves until it receives a drain order.",
				"The reply says why the request failed.",
			},
		},
		"quaint": {
			hard: []string{
				"Their shares are wishes.",
				"The list is empty but for one entry.",
				"Each has a thread of its own.",
				"The process is buried.",
				"An idle function lends its share.",
				"Figures stand beside those of the paper.",
				"The GPU is lost for good.",
			},
			plain: []string{
				"Shares are not enforced without MPS.",
				"The list has one entry.",
				"Each has its own thread.",
				"The process is marked as exited.",
				"Compared with the paper, the figures are higher.",
			},
		},
	}

	rules, err := parseRules(rulesFile)
	must.OK(t, err)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			if r.advice == "" {
				t.Error("the rule has no advice")
			}
			if len(tests[r.name].hard) == 0 || len(tests[r.name].plain) == 0 {
				t.Error("the rule has no sentences in this test")
			}
			for _, text := range tests[r.name].hard {
				if !slices.Contains(found(t, text), r.name) {
					t.Errorf("not found: %s", text)
				}
			}
			for _, text := range tests[r.name].plain {
				if names := found(t, text); len(names) > 0 {
					t.Errorf("found by %s: %s", names, text)
				}
			}
		})
	}
	if len(tests) != len(rules) {
		t.Errorf("%d rules and sentences for %d", len(rules), len(tests))
	}
}

func TestParseRules(t *testing.T) {
	for text, problem := range map[string]string{
		"words 30":                 "before the first rule",
		"rule a\nmatch (":          "missing closing",
		"rule a\nwords many":       "invalid syntax",
		"rule a\nforbid something": "unknown key forbid",
	} {
		if _, err := parseRules(text); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: %v, want an error with %q", text, err, problem)
		}
	}
}
