// Package class contains the commands of volctl for classes of volumes, with a file for each command.
package class

import (
	"bytes"
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

// New returns the command group "volctl class".
func New(a *command.App) *cobra.Command {
	return command.Group("class", "Show the classes with which volumes are created",
		`Show the classes of this host. A class contains the properties that the volumes of one kind have in
common: the plugin, its parameters, the mount options, and limits for the size. Each file in
/etc/volagent/classes.d contains one class.`,
		newList(a), newShow(a), newStatus(a),
	)
}

// invalid is the state of a class whose file has a mistake.
const invalid = "invalid"

// state returns the state of a class in one word: that of its plugin, or invalid.
func state(c *api.Class) string {
	if c.Problem != "" {
		return invalid
	}
	return c.PluginState
}

func newList(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the classes", Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.Read(cmd, runList) },
	}
}

func runList(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	classes, err := client.Classes(ctx)
	if err != nil {
		return command.Failed(err, "list classes")
	}

	ids, rows := make([]string, len(classes)), make([][]string, len(classes))
	for i := range classes {
		c := &classes[i]
		s := &c.Spec
		ids[i] = s.ID
		rows[i] = []string{
			output.Dash(s.ID), output.Dash(made(c)), state(c), output.SizeOrDash(s.Size.Default), output.SizeOrDash(s.Size.Max),
			strconv.Itoa(len(c.Volumes)), output.Dash(s.Note),
		}
		if out.Wide() {
			rows[i] = append(rows[i], output.SizeOrDash(s.Size.Min), output.Dash(s.Reclaim), output.Dash(s.NamePrefix), c.File)
		}
	}

	return out.Print(classes, ids, func(w *bytes.Buffer) error {
		header := []string{"ID", "Plugin", "State", "Default", "Max", "Volumes", "Note"}
		if out.Wide() {
			header = append(header, "Min", "Reclaim", "Name Prefix", "File")
		}
		return out.Table(w, "", header, rows)
	})
}

// made returns the plugin that creates the volumes. If it is unknown, made returns the id that the
// class names.
func made(c *api.Class) string {
	switch {
	case c.PluginID != "":
		return c.PluginID
	case c.Spec.PluginID != "":
		return c.Spec.PluginID
	default:
		return c.Spec.Driver
	}
}
