package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// rule is one block of rules.txt.
type rule struct {
	name   string
	advice string
	// maxWords is the length from which a sentence is too long; 0 for no limit.
	maxWords int
	match    []*regexp.Regexp
	// except are removed from a sentence before match is tried.
	except []*regexp.Regexp
}

// breaks reports whether a sentence breaks the rule.
func (r *rule) breaks(s sentence) bool {
	if r.maxWords > 0 && s.words > r.maxWords {
		return true
	}
	text := s.text
	for _, except := range r.except {
		text = except.ReplaceAllString(text, " ")
	}
	for _, match := range r.match {
		if match.MatchString(text) {
			return true
		}
	}
	return false
}

// parseRules reads rules.txt: blocks of lines that begin with rule, advice, words, match or
// except. A line that begins with # is a comment.
func parseRules(text string) ([]*rule, error) {
	var rules []*rule
	for i, l := range strings.Split(text, "\n") {
		if l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		key, value, _ := strings.Cut(l, " ")
		value = strings.TrimSpace(value)
		if key == "rule" {
			rules = append(rules, &rule{name: value})
			continue
		}
		if len(rules) == 0 {
			return nil, fmt.Errorf("rules.txt:%d: %q is before the first rule", i+1, l)
		}
		if err := rules[len(rules)-1].set(key, value); err != nil {
			return nil, fmt.Errorf("rules.txt:%d: %w", i+1, err)
		}
	}
	return rules, nil
}

func (r *rule) set(key, value string) (err error) {
	switch key {
	case "advice":
		r.advice = value
	case "words":
		r.maxWords, err = strconv.Atoi(value)
	case "match", "except":
		var pattern *regexp.Regexp
		if pattern, err = regexp.Compile(value); err != nil {
			break
		}
		if key == "match" {
			r.match = append(r.match, pattern)
		} else {
			r.except = append(r.except, pattern)
		}
	default:
		err = errors.New("unknown key " + key)
	}
	return err
}
