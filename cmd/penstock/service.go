package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/loadgen"
)

// logFormat is the annotation of a service, a verb that runs until it is stopped. Its value is
// the configured log format.
const logFormat = "log-format"

// service marks a verb that runs until it is stopped. Programs read its log. If the log is
// JSON, the error that ends the verb is also a JSON line.
//
// A service survives the loss of its log reader. By default, a write to a broken pipe on
// descriptor 1 or 2 ends a Go program with SIGPIPE. (systemd, too, starts services with SIGPIPE
// ignored.)
func service(format string, cmd *cobra.Command) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cmd.Annotations[logFormat] = format
		// Catch the signal: children would inherit an ignored one. No goroutine receives from
		// the channel.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		return run(cmd, args)
	}
	// A verb with subcommands also runs if its subcommand is misspelt.
	if !cmd.HasSubCommands() {
		cmd.Annotations[logFormat] = format
	}
	return cmd
}

// logsAs sets a verb's log format from its configuration. It has no effect on verbs that are no
// service.
func logsAs(cmd *cobra.Command, format string) {
	if _, runs := cmd.Annotations[logFormat]; runs {
		cmd.Annotations[logFormat] = format
	}
}

// complain prints or logs why a verb failed.
func complain(cmd *cobra.Command, err error) {
	if faults, ok := errors.AsType[loadgen.Faults](err); ok {
		for _, fault := range faults {
			fmt.Fprintf(os.Stderr, "%s: %s\n", cmd.CommandPath(), fault)
		}
		return
	}
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

// each lists the errors that an error joins. Each becomes one line.
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
