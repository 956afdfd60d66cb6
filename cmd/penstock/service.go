package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
)

// logFormat is the annotation of a verb that runs until it is told to end: how it logs, as a
// configuration says it.
const logFormat = "log-format"

// service makes a verb one that runs until it is told to end. Programs read its log: where that
// is JSON, the error that ends it is a line of it. And it outlives them: a write to descriptor
// 1 or 2 that nobody reads any more would end a Go program by SIGPIPE, and a node must not end
// because its log's reader did (systemd starts services without SIGPIPE, too).
func service(format string, cmd *cobra.Command) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cmd.Annotations[logFormat] = format
		// Caught, not ignored: children would inherit that. Nobody reads the channel.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		return run(cmd, args)
	}
	// A verb that has verbs below it is also what a misspelt one of them ends up at.
	if !cmd.HasSubCommands() {
		cmd.Annotations[logFormat] = format
	}
	return cmd
}

// logsAs notes how a configuration wants a verb's log; one-shot verbs have none.
func logsAs(cmd *cobra.Command, format string) {
	if _, runs := cmd.Annotations[logFormat]; runs {
		cmd.Annotations[logFormat] = format
	}
}

// complain says why a verb ended.
func complain(cmd *cobra.Command, err error) {
	format, runs := cmd.Annotations[logFormat]
	if !runs || !logsJSON(format) {
		fmt.Fprintln(os.Stderr, "penstock:", err)
		return
	}
	log, end := openLog(configs.Log{Level: "info", Format: "json"}, cmd.Name())
	defer end()
	for _, err := range each(err) {
		log.WithLevel(zerolog.FatalLevel).Err(err).Msg("process ends with an error")
	}
}

// each are the parts of an error that is a list of them, a line each.
func each(err error) []error {
	list, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var text []string
	for _, part := range list.Unwrap() {
		text = append(text, part.Error())
	}
	if strings.Join(text, "\n") != err.Error() {
		return []error{err}
	}
	return list.Unwrap()
}
