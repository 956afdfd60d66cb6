package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/models/zoo"
)

// completeAll gives each verb below cmd the completions that shells ask for: names of functions and
// workers come from the running node, names of models from the built-in ones.
func completeAll(cmd *cobra.Command) {
	for _, verb := range cmd.Commands() {
		completeAll(verb)
		if verb.Hidden {
			continue
		}
		if verb.ValidArgsFunction == nil && len(verb.ValidArgs) == 0 {
			verb.ValidArgsFunction = completeArguments(verb)
		}
		for flag, complete := range flagCompletions {
			if verb.LocalFlags().Lookup(flag) != nil {
				must(verb.RegisterFlagCompletionFunc(flag, complete))
			}
		}
	}
}

// must panics on an error of the programmer: a flag that does not exist, or has two completions.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

var (
	folders   = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	yamlFiles = cobra.FixedCompletions([]cobra.Completion{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt)
)

// flagCompletions are those of flags that mean the same for each verb.
var flagCompletions = map[string]cobra.CompletionFunc{
	"runtime-dir": folders,
	"models":      folders,
	"profiles":    folders,
	"pictures":    folders,
	"config":      yamlFiles,
	"model":       completeModel,
	"worker":      completing(workerNames, false, ""),
	"to":          completing(functionNames, true, ""),
	"rate":        completing(functionNames, false, "="),
}

// completeArguments returns the completion of a verb's arguments, by the words in its usage line.
func completeArguments(verb *cobra.Command) cobra.CompletionFunc {
	var words []string
	for _, word := range strings.Fields(verb.Use)[1:] {
		if strings.HasPrefix(word, "-") {
			break
		}
		words = append(words, word)
	}
	return func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(words) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		word := words[min(len(args), len(words)-1)]
		many := strings.HasSuffix(word, "...")
		if len(args) >= len(words) && !many {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		switch {
		case word == "FUNCTION", word == "NAME" && cmd.Name() != "add":
			return completing(functionNames, false, "")(cmd, args, toComplete)
		case word == "GUEST":
			return completing(guestNames, false, "")(cmd, args, toComplete)
		case word == "NAME", word == "MODEL", word == "CARD":
			return completeModel(cmd, args, toComplete)
		case word == "CONFIG":
			return yamlFiles(cmd, args, toComplete)
		case strings.Contains(word, ".json"):
			return []cobra.Completion{"json"}, cobra.ShellCompDirectiveFilterFileExt
		case strings.HasPrefix(word, "FILE"), word == "SOURCE", strings.HasPrefix(word, "["):
			return nil, cobra.ShellCompDirectiveDefault
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completing completes a name, or the last of several that commas separate. end follows the name.
func completing(names func(*cobra.Command) []string, list bool, end string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, toComplete string) (found []cobra.Completion, how cobra.ShellCompDirective) {
		how = cobra.ShellCompDirectiveNoFileComp
		if list || end != "" {
			how |= cobra.ShellCompDirectiveNoSpace
		}
		given, last := "", toComplete
		if i := strings.LastIndexByte(toComplete, ','); list && i >= 0 {
			given, last = toComplete[:i+1], toComplete[i+1:]
		}
		for _, name := range names(cmd) {
			if strings.HasPrefix(name, last) && !slices.Contains(strings.Split(given, ","), name) {
				found = append(found, given+name+end)
			}
		}
		return found, how
	}
}

// completeModel completes the names of built-in models, and files.
func completeModel(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
	list, _ := completing(func(*cobra.Command) []string { return zoo.Names() }, false, "")(cmd, args, toComplete)
	return list, cobra.ShellCompDirectiveDefault
}

// completionPatience is how long a shell waits for the node.
const completionPatience = time.Second

// nodeStatus returns the status of the running node; the zero value without a node.
func nodeStatus(cmd *cobra.Command) (s control.Status) {
	given := ""
	if flag := cmd.Flag("runtime-dir"); flag != nil {
		given = flag.Value.String()
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionPatience)
	defer cancel()
	if folder, err := nodeFolder(given); err == nil {
		s, _ = control.ReadStatus(ctx, folder)
	}
	return s
}

func functionNames(cmd *cobra.Command) (names []string) {
	for _, f := range nodeStatus(cmd).Functions {
		names = append(names, f.Name)
	}
	return names
}

func workerNames(cmd *cobra.Command) (names []string) {
	for _, w := range nodeStatus(cmd).Workers {
		names = append(names, w.Name)
	}
	return names
}

// outputFlag gives a verb the flag -o, which takes one of some words. The first is the default.
func outputFlag(verb *cobra.Command, to *string, words ...string) {
	*to = words[0]
	verb.Flags().VarP(choice{to, words}, "output", "o", document.OrList(words))
	must(verb.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
}

// choice is a flag's value that is one of some words.
type choice struct {
	value *string
	words []string
}

func (choice) Type() string     { return "string" }
func (c choice) String() string { return *c.value }

func (c choice) Set(text string) error {
	if !slices.Contains(c.words, text) {
		return errors.New("no such word")
	}
	*c.value = text
	return nil
}
